"""Write the report of one run into its folder: figures, weak classes, and thumbnails of what deserves a look."""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esupcon._console import count, percent, printable
from esupcon._io import write_bytes
from esupcon.doctor import SEVERITIES
from esupcon.doctor.data import suspect_labels
from esupcon.experiments.store import StoredRun
from esupcon.probability import Figures
from esupcon.report.content import DrawnColumn, drawn_run, read_file, read_predictions
from esupcon.report.format import method_title
from esupcon.report.write import html_page
from esupcon.training.result import HELD_OUT_FILE, PREDICTIONS_FILE, REPORT_FILE, Result

Part = Literal["test", "held_out"]
Image = NDArray[np.uint8]  # (channels, height, width) with one or three channels
SIDE, QUALITY = 96, 80  # longest side of a thumbnail in pixels, and its quality as a JPEG
MOST_PICTURES = 12  # of a gallery
MOST_LINES = 10  # of a table


class Images(NamedTuple):
    """Images of one part of the data, in the order of its stored predictions. `names` are file names, if any."""

    rows: Sequence[Image] | Image
    names: Sequence[str] = ()


class Picture(NamedTuple):
    """A thumbnail, as an address that contains it, and the lines below it. Without an image there is only text."""

    source: str
    lines: Sequence[str]


class Gallery(NamedTuple):
    """Pictures of one kind, and a sentence that explains them."""

    key: str
    title: str
    hint: str
    pictures: Sequence[Picture]


def run_report(folder: str | os.PathLike[str], images: Mapping[Part, Images] | None = None) -> Path:
    """Write `report.html` into the folder of a finished run, and return its path.

    Parameters
    ----------
    folder : folder that `esupcon train` made
    images : images of the test and of the held-out part, for thumbnails; without them samples are listed by number

    The page works offline. A damaged file of the run is left out and named.
    """
    result, problems = Result.read(Path(folder)), list[str]()
    run, method, images = StoredRun(result.key, result, Path(folder)), result.run.train.method, images or {}
    classes = [printable(name) for name in result.data.classes]
    test = read_file(run, PREDICTIONS_FILE, read_predictions, problems)
    held_out = read_file(run, HELD_OUT_FILE, read_predictions, problems)
    part: Part = "test" if test is not None else "held_out"
    found, figures = test or held_out, result.metrics.test or result.metrics.held_out
    fitted = result.calibration.held_out or figures
    temperature = 1.0 if fitted is None else fitted.temperature
    galleries = []
    if held_out is not None:
        p = held_out.probabilities(temperature)
        galleries.append(_suspects(p, held_out.labels, classes, images.get("held_out")))
    if found is not None:
        galleries.append(_mistakes(found.probabilities(temperature), found.labels, classes, images.get(part)))
    values = {
        "title": printable(f"{method_title(method)} on {Path(result.data.name).name}"),
        "part": "test" if part == "test" else "held-out",
        "result": result,
        "figures": figures,
        "guess": math.log(max(1, len(classes))),
        "weakest": _weakest(figures),
        "galleries": galleries,
        "findings": [(one, ()) for one in sorted(result.findings, key=lambda one: -SEVERITIES.index(one.severity))],
        "problems": [printable(line) for line in problems],
        "facts": [(name, printable(value)) for name, value in _facts(run)],
    }
    drawn = drawn_run(run, result.calibration.held_out or result.calibration.paper, found, problems)
    page = html_page("run.html", values, [DrawnColumn("", "", classes, {method: drawn})], [method])
    return write_bytes(Path(folder) / REPORT_FILE, page.encode("utf-8", errors="replace"))


def _weakest(figures: Figures | None) -> list[list[str]]:
    """Return name, samples, accuracy, precision and mean probability of the classes with the lowest accuracy."""
    known = [one for one in (figures.per_class if figures else ()) if one.accuracy is not None and one.accuracy < 1]
    known.sort(key=lambda one: (one.accuracy, -one.n))
    return [
        [printable(one.name), f"{one.n:,}", *map(percent, (one.accuracy, one.precision, one.probability))]
        for one in known[:MOST_LINES]
    ]


def _facts(run: StoredRun) -> list[tuple[str, str]]:
    settings = {**run.spec.scenario, **run.spec.train.model_dump(), "augmentation": run.result.augmentation}
    shown = ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
    about = run.result.provenance
    versions = ", ".join(f"{name} {version}" for name, version in sorted(about.versions.items(), reverse=True))
    facts = [("command", about.command), ("data", about.source), ("settings", shown), ("finished", about.finished)]
    return [*facts, ("commit", about.commit or "unknown (installed, not a checkout)"), ("versions", versions)]


# --- Thumbnails ------------------------------------------------------------------------------------------------------


def _suspects(p: NDArray[np.float64], y: NDArray[np.int64], classes: Sequence[str], images: Images | None) -> Gallery:
    rows = suspect_labels(p, y).tolist()
    samples = count(len(y), "held-out training sample")
    hint = f"None of the labels of {samples} looks wrong."
    if rows:
        hint = (
            f"Of {samples}, {len(rows):,} have a label that contradicts a classifier not trained on them; the clearest "
            "come first. Correct or drop what is wrong, and train again."
        )
    texts = {
        i: (f"labelled {classes[y[i]]}", f"looks like {classes[p[i].argmax()]}, {percent(p[i].max(), 0)}")
        for i in rows[:MOST_PICTURES]
    }
    return Gallery("suspects", "Suspicious labels", hint, _pictures(texts, images, len(y)))


def _mistakes(p: NDArray[np.float64], y: NDArray[np.int64], classes: Sequence[str], images: Images | None) -> Gallery:
    top = p.argmax(axis=1)
    wrong = np.flatnonzero(top != y)
    rows = wrong[np.argsort(-p[wrong, top[wrong]], kind="stable")].tolist()
    hint = f"{count(len(rows), 'mistake')} in {count(len(y), 'sample')}; the most confident come first."
    texts = {
        i: (f"predicted {classes[top[i]]}", f"is {classes[y[i]]}", f"{percent(p[i].max(), 0)} confident")
        for i in rows[:MOST_PICTURES]
    }
    return Gallery("mistakes", "Most confident mistakes", hint, _pictures(texts, images, len(y)))


def _pictures(texts: Mapping[int, Sequence[str]], images: Images | None, n: int) -> list[Picture]:
    """Return a picture of each row with its text; the last line is the file with its folder."""
    rows, names = images or ((), ())
    if images is not None and len(rows) != n:
        raise ValueError(f"images must match {n:,} predictions; got {len(rows):,} images.")
    files = {i: "/".join(Path(names[i]).parts[-2:]) if len(names) else f"sample {i:,}" for i in texts}
    sources = {i: _thumbnail(rows[i]) if len(rows) else "" for i in texts}
    return [Picture(sources[i], [printable(line) for line in (*texts[i], files[i])]) for i in texts]


def _thumbnail(image: Image) -> str:
    """Return an address that contains the image; none for rows that are no images."""
    if np.ndim(image) != 3:
        return ""
    from PIL import Image as Pillow  # noqa: PLC0415 - slow to import

    pixels = np.moveaxis(np.asarray(image, dtype=np.uint8), 0, -1)
    small = Pillow.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0])
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
