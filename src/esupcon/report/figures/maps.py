"""Embeddings on a plane, with the prototypes among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from esupcon.experiments.store import StoredRun
from esupcon.npz_file import NotPlainArrays, array_names, read_arrays
from esupcon.report.details import Detail
from esupcon.report.embedding import MOST_CLASSES, Embedding, PlaneMap, plane_maps
from esupcon.report.sections import Card, Figure, Option, Section, axis, plain, rounded
from esupcon.report.words import method_title

EMBEDDING = "embedding.npz"
MOST_MAPS = 4  # columns that get maps; each map is computed here
_CLASS_COLOURS = (
    "#2f7fd6",
    "#dd8438",
    "#2f9c77",
    "#c65b4a",
    "#9a6bc4",
    "#8d7b5f",
    "#d0608a",
    "#7b8594",
    "#a3a12e",
    "#4aa3bf",
)


def embeddings(details: Sequence[Detail]) -> Section:
    options: list[Option] = []
    n_left_out = 0
    for detail in details:
        loaded = {method: _load_embedding(run) for method, run in detail.runs.items()}
        found = {method: arrays for method, arrays in loaded.items() if arrays is not None}
        if not found:
            continue
        if len(options) == MOST_MAPS:
            n_left_out += 1
            continue
        cards = []
        for method, drawn in zip(found, plane_maps(list(found.values())), strict=True):
            cards.append(Card(f"{method_title(method)}, {drawn.method}", _map(drawn, detail.classes), method))
        few = max(len(np.unique(arrays.labels)) for arrays in found.values()) > MOST_CLASSES
        note = f" The {MOST_CLASSES} classes with most samples are shown." if few else ""
        options.append(Option(detail.label, cards, detail.note + note))
    if n_left_out:
        last = options[-1]
        more = f" Maps are drawn of {MOST_MAPS} settings; {n_left_out} others are left out."
        options[-1] = Option(last.label, last.cards, last.note + more)
    return Section(
        "embedding",
        "The embedding, as a map",
        "Classes that are learnt form islands, and a star, the prototype of a class, lies on its own island. "
        "Maps are of test samples and say how they were made: by principal components where these keep classes apart, "
        "else by t-SNE, whose distances between islands mean little. Axes have no unit.",
        options,
        "No run here has stored embeddings.",
    )


def _load_embedding(run: StoredRun) -> Embedding | None:
    path = run.folder / EMBEDDING
    try:
        names = {"z", "labels", *array_names(path)} & {"z", "labels", "prototypes"}
        arrays = read_arrays(path, names)
    except (OSError, NotPlainArrays):
        return None
    z, labels, prototypes = arrays["z"], arrays["labels"], arrays.get("prototypes")
    usable = z.ndim == 2 and labels.shape == z.shape[:1] and labels.dtype.kind in "iu" and z.dtype.kind == "f"
    if not usable or len(z) < 3 or labels.min() < 0 or not np.isfinite(z).all():
        return None
    if prototypes is not None and (prototypes.shape[1:] != z.shape[1:] or not np.isfinite(prototypes).all()):
        prototypes = None
    return Embedding(z, labels, prototypes)


def _map(drawn: PlaneMap, classes: Sequence[str]) -> Figure:
    def name(k: int) -> str:
        return classes[k] if k < len(classes) else f"class {k}"

    traces: list[dict[str, Any]] = []
    centres: dict[int, Any] = {}
    kinds = [int(k) for k in np.unique(drawn.labels)]
    for index, k in enumerate(kinds):
        chosen = drawn.points[drawn.labels == k]
        centres[k] = np.median(chosen, axis=0)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": rounded(chosen[:, 0], 3),
                "y": rounded(chosen[:, 1], 3),
                "text": plain(name(k)),
                "marker": {"size": 6, "opacity": 0.65, "color": _CLASS_COLOURS[index % len(_CLASS_COLOURS)]},
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    if len(drawn.prototypes):
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": rounded(drawn.prototypes[:, 0], 3),
                "y": rounded(drawn.prototypes[:, 1], 3),
                "text": [plain(name(int(k))) for k in drawn.prototype_labels],
                "marker": {
                    "symbol": "star",
                    "size": 13,
                    "color": [
                        _CLASS_COLOURS[kinds.index(int(k)) % len(_CLASS_COLOURS)] for k in drawn.prototype_labels
                    ],
                    "line": {"width": 1.5, "color": "ink"},
                },
                "hovertemplate": "prototype of %{text}<extra></extra>",
            }
        )
    labels = [
        {
            "x": round(x, 3),
            "y": round(y, 3),
            "text": plain(name(k), 12),
            "showarrow": False,
            "yshift": 15,
            "font": {"size": 11},
            "bgcolor": "surface",
            "bordercolor": _CLASS_COLOURS[index % len(_CLASS_COLOURS)],
            "borderpad": 1,
            "opacity": 0.9,
        }
        for index, (k, (x, y)) in enumerate(zip(kinds, _apart([centres[k] for k in kinds], drawn.points), strict=True))
    ]
    bare = {"showticklabels": False, "zeroline": False, "showgrid": False}
    layout = {
        "xaxis": axis("first direction", **bare),
        "yaxis": axis("second direction", **bare),
        "showlegend": False,
        "annotations": labels,
    }
    return {"data": traces, "layout": layout, "height": 300}


def _apart(places: Sequence[Any], points: Any) -> list[tuple[float, float]]:
    """Labels at these places, moved up from those below them until they can be read; a label is wide and low."""
    width, height = 0.24 * float(np.ptp(points[:, 0])), 0.075 * float(np.ptp(points[:, 1]))
    moved = [(float(x), float(y)) for x, y in places]
    taken: list[tuple[float, float]] = []
    for index in sorted(range(len(moved)), key=lambda one: moved[one][1]):
        x, y = moved[index]
        for below in sorted(taken, key=lambda one: one[1]):
            if abs(below[0] - x) < width and abs(below[1] - y) < height:
                y = below[1] + height
        moved[index] = (x, y)
        taken.append(moved[index])
    return moved
