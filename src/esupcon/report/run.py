"""Write the report of one run into its folder: figures, weak classes, and thumbnails of what deserves a look."""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esupcon._console import count, percent, printable
from esupcon._io import write_bytes
from esupcon.doctor import SEVERITIES
from esupcon.doctor.data import suspect_labels
from esupcon.experiments.store import StoredRun
from esupcon.probability import Figures, Predictions
from esupcon.report.content import DrawnColumn, drawn_run, read_file, read_predictions
from esupcon.report.format import method_title
from esupcon.report.write import html_page
from esupcon.training.result import HELD_OUT_FILE, PREDICTIONS_FILE, REPORT_FILE, Result

Part = Literal["test", "held_out"]
Image = NDArray[np.uint8]  # (channels, height, width) with one or three channels
SIDE, QUALITY = 96, 80  # longest side of a thumbnail in pixels, and its quality as a JPEG
MOST_SUSPECTS = MOST_MISTAKES = 12
MOST_COPIES = 6  # pairs
MOST_TYPICAL, MOST_OF_A_CLASS = 36, 4
MOST_LINES = 10  # of a table


class Images(NamedTuple):
    """Images of one part of the data, in the order of its stored predictions. `names` are file names, if any."""

    rows: Sequence[Image] | Image
    names: Sequence[str] = ()


class Picture(NamedTuple):
    """A thumbnail, as an address that contains it, and what stands below it. Without an image there is only text."""

    source: str
    title: str
    lines: Sequence[str]


class Samples(NamedTuple):
    """Samples of one part, from which pictures are chosen."""

    probabilities: NDArray[np.float64]
    labels: NDArray[np.int64]
    classes: Sequence[str]
    images: Images | None


class Gallery(NamedTuple):
    """Pictures of one kind, and a sentence that explains them."""

    key: str
    title: str
    hint: str
    pictures: Sequence[Picture]


def run_report(
    folder: str | os.PathLike[str],
    images: Mapping[Part, Images] | None = None,
    *,
    copies: Iterable[tuple[Picture, Picture]] = (),
) -> Path:
    """Write `report.html` into the folder of a finished run, and return its path.

    Parameters
    ----------
    folder : folder that `esupcon train` made
    images : images of the test and of the held-out part, for thumbnails; without them samples are listed by number
    copies : training images with their copies in the test part, as `picture` makes them

    The page works offline. A damaged file of the run is left out and named.
    """
    result, problems = Result.read(Path(folder)), list[str]()
    run, method, images = StoredRun(result.key, result, Path(folder)), result.run.train.method, images or {}
    classes = [printable(name) for name in result.data.classes]
    test = read_file(run, PREDICTIONS_FILE, read_predictions, problems)
    held_out = read_file(run, HELD_OUT_FILE, read_predictions, problems)
    part: Part = "test" if test is not None else "held_out"
    found, figures = test or held_out, result.metrics.test or result.metrics.held_out
    drawn = drawn_run(run, result.calibration.held_out or result.calibration.paper, found, problems)
    fitted = result.calibration.held_out or figures
    temperature = 1.0 if fitted is None else fitted.temperature
    galleries = []
    if held_out is not None:
        galleries.append(_suspects(_samples(held_out, temperature, classes, images.get("held_out"))))
    if found is not None:
        samples = _samples(found, temperature, classes, images.get(part))
        galleries += [_mistakes(samples), *([_typical(samples)] if samples.images else [])]
    if pairs := [one for pair in list(copies)[:MOST_COPIES] for one in pair]:
        hint = "Each training image is followed by its copy in the test part, on which accuracy measures memorisation."
        galleries.append(Gallery("copies", "Copies in the test part", hint, pairs))
    values = {
        "title": printable(f"{method_title(method)} on {Path(result.data.name).name}"),
        "part": "test" if part == "test" else "held-out",
        "result": result,
        "figures": figures,
        "guess": math.log(max(1, len(classes))),
        "weakest": _weakest(figures),
        "confused": [] if found is None else _confused(found, classes),
        "galleries": galleries,
        "findings": [(one, ()) for one in sorted(result.findings, key=lambda one: -SEVERITIES.index(one.severity))],
        "problems": [printable(line) for line in problems],
        "facts": [(name, printable(value)) for name, value in _facts(run)],
    }
    page = html_page("run.html", values, [DrawnColumn("", "", classes, {method: drawn})], [method])
    return write_bytes(Path(folder) / REPORT_FILE, page.encode("utf-8", errors="replace"))


# --- Numbers ---------------------------------------------------------------------------------------------------------


def _weakest(figures: Figures | None) -> list[list[str]]:
    """Return name, samples, accuracy, precision and mean probability of the classes with the lowest accuracy."""
    known = [one for one in (figures.per_class if figures else ()) if one.accuracy is not None and one.accuracy < 1]
    known.sort(key=lambda one: (one.accuracy, -one.n))
    return [
        [printable(one.name), f"{one.n:,}", *map(percent, (one.accuracy, one.precision, one.probability))]
        for one in known[:MOST_LINES]
    ]


def _confused(found: Predictions, classes: Sequence[str]) -> list[list[str]]:
    """Return true class, predicted class, number and share of the most frequent mistakes."""
    y, top = found.labels, found.logits.argmax(axis=1)
    pairs, numbers = np.unique(np.stack([y, top])[:, y != top], axis=1, return_counts=True)
    sizes = np.bincount(y, minlength=len(classes))
    order = np.argsort(-numbers, kind="stable")[:MOST_LINES]
    return [
        [classes[a], classes[b], f"{n:,}", percent(n / sizes[a])]
        for a, b, n in zip(*pairs[:, order], numbers[order], strict=True)
    ]


def _facts(run: StoredRun) -> list[tuple[str, str]]:
    settings = {**run.spec.scenario, **run.spec.train.model_dump(), "augmentation": run.result.augmentation}
    shown = ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
    about = run.result.provenance
    versions = ", ".join(f"{name} {version}" for name, version in sorted(about.versions.items(), reverse=True))
    facts = [("command", about.command), ("data", about.source), ("settings", shown), ("finished", about.finished)]
    return [*facts, ("commit", about.commit or "unknown (installed, not a checkout)"), ("versions", versions)]


# --- Thumbnails ------------------------------------------------------------------------------------------------------


def picture(image: Image | None, title: str, *lines: str) -> Picture:
    """Return a thumbnail of an image, with a title and lines of text below it."""
    source = ""
    if image is not None and np.ndim(image) == 3:
        from PIL import Image as Pillow  # noqa: PLC0415 - slow to import

        pixels = np.moveaxis(np.asarray(image, dtype=np.uint8), 0, -1)
        small = Pillow.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0])
        small.thumbnail((SIDE, SIDE))
        file = io.BytesIO()
        small.save(file, "JPEG", quality=QUALITY)
        source = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    return Picture(source, printable(title), [printable(line) for line in lines])


def _samples(found: Predictions, temperature: float, classes: Sequence[str], images: Images | None) -> Samples:
    if images is not None and not len(found) == len(images.rows) == len(images.names or images.rows):
        n = len(images.rows), len(images.names)
        raise ValueError(f"images must match {len(found):,} predictions; got {n[0]:,} images and {n[1]:,} names.")
    return Samples(found.probabilities(temperature), found.labels, classes, images)


def _pictures(given: Samples, rows: Sequence[int], text: Callable[[int], tuple[str, ...]]) -> list[Picture]:
    """Return the pictures of some rows; `text` gives title and lines, and the last line is the file with its folder."""
    images, names = given.images or ((), ())
    files = {i: "/".join(Path(names[i]).parts[-2:]) if len(names) else f"sample {i:,}" for i in rows}
    return [picture(images[i] if len(images) else None, *text(i), files[i]) for i in rows]


def _suspects(given: Samples) -> Gallery:
    p, y, classes, _ = given
    rows = suspect_labels(p, y).tolist()
    hint = f"None of the labels of {count(len(y), 'held-out training sample')} looks wrong."
    if rows:
        hint = (
            f"Of {count(len(y), 'held-out training sample')}, {len(rows):,} have a label that contradicts a classifier "
            "not trained on them; the clearest come first. Correct or drop what is wrong, and train again."
        )

    def text(i: int) -> tuple[str, ...]:
        return f"labelled {classes[y[i]]}", f"looks like {classes[p[i].argmax()]}, {percent(p[i].max(), 0)}"

    return Gallery("suspects", "Suspicious labels", hint, _pictures(given, rows[:MOST_SUSPECTS], text))


def _mistakes(given: Samples) -> Gallery:
    p, y, classes, _ = given
    top = p.argmax(axis=1)
    wrong = np.flatnonzero(top != y)
    rows = wrong[np.argsort(-p[wrong, top[wrong]], kind="stable")].tolist()
    hint = f"{count(len(rows), 'mistake')} in {count(len(y), 'sample')}; the most confident come first."

    def text(i: int) -> tuple[str, ...]:
        return f"predicted {classes[top[i]]}", f"is {classes[y[i]]}", f"{percent(p[i].max(), 0)} confident"

    return Gallery("mistakes", "Most confident mistakes", hint, _pictures(given, rows[:MOST_MISTAKES], text))


def _typical(given: Samples) -> Gallery:
    """Choose the images that are most clearly of their class, for as many classes as fit on the page."""
    p, y, classes, _ = given
    top = p.argmax(axis=1)
    largest = np.sort(np.argsort(-np.bincount(y, minlength=len(classes)), kind="stable")[:MOST_TYPICAL])
    rows: list[int] = []
    for k in largest.tolist():
        own = np.flatnonzero((y == k) & (top == k))
        best = own[np.argsort(-p[own, k], kind="stable")]
        rows += best[: min(MOST_OF_A_CLASS, MOST_TYPICAL // len(largest))].tolist()
    few = f" {MOST_TYPICAL} of {count(len(classes), 'class')} are shown." if len(classes) > MOST_TYPICAL else ""
    hint = f"Correctly classified images with the highest probability of their class.{few}"
    return Gallery("typical", "Typical images", hint, _pictures(given, rows, lambda i: (classes[y[i]],)))
