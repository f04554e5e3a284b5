"""`esupcon predict`."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from esupcon.cli import exit_codes
from esupcon.cli import options as shared
from esupcon.cli.output import complain

if TYPE_CHECKING:
    from esupcon.pipeline.predict import Prediction

_FORMATS = ("csv", "jsonl")
# A spreadsheet takes a cell that begins like this for a formula.
_FORMULA_MARKS = ("=", "+", "-", "@", "\t", "\r")


def predict(
    model: shared.Model,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES...",
            help="Image files and folders of them; - reads paths from standard input, one a line.",
            show_default=False,
        ),
    ],
    top_k: Annotated[int, typer.Option(help="So many classes for each image, likeliest first.")] = 1,
    output_format: Annotated[str, typer.Option("--format", help="csv or jsonl (JSON lines).")] = "csv",
    workers: shared.Workers = None,
) -> None:
    """Predict labels and probabilities of image files.

    Probabilities are calibrated where the model is. Files that cannot be read are named on standard error and left
    out, and the exit code is then 1. In CSV, a name that a spreadsheet would take for a formula gets a ' before it,
    and a path ./; JSON lines hold every name as it is.
    """
    if output_format not in _FORMATS:
        raise ValueError(f"--format must be {' or '.join(_FORMATS)}; got {output_format!r}.")
    from esupcon.pipeline.predict import predict_files  # noqa: PLC0415 - slow to import
    from esupcon.pipeline.trained import load_trained  # noqa: PLC0415

    lost = 0

    def unreadable(path: str, reason: str) -> None:
        nonlocal lost
        lost += 1
        complain(f"left out: {path} ({reason})")

    if hasattr(sys.stdout, "reconfigure"):  # file names need not be text; give back the bytes they came as
        sys.stdout.reconfigure(errors="surrogateescape")
    found = predict_files(load_trained(model), _paths(images), top_k=top_k, unreadable=unreadable, workers=workers)
    n_predicted = _write_csv(found, top_k) if output_format == "csv" else _write_json_lines(found)
    if lost:
        complain(f"{lost:,} could not be used, {n_predicted:,} predicted.")
        raise typer.Exit(exit_codes.PARTIAL)


def _paths(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if word != "-":
            yield word
            continue
        for line in sys.stdin.buffer:
            name = os.fsdecode(line.rstrip(b"\r\n"))
            if name:
                yield name


def _write_csv(found: Iterable[Prediction], top_k: int) -> int:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    heading = ["path"]
    for k in range(1, top_k + 1):
        rank = "" if k == 1 else f"_{k}"
        heading += [f"label{rank}", f"probability{rank}"]
    writer.writerow(heading)
    count = 0
    for one in found:
        row = [f"./{one.path}" if one.path.startswith(_FORMULA_MARKS) else one.path]
        for label, probability in one.ranked:
            row += [f"'{label}" if label.startswith(_FORMULA_MARKS) else label, f"{probability:.6f}"]
        writer.writerow(row)
        count += 1
    return count


def _write_json_lines(found: Iterable[Prediction]) -> int:
    count = 0
    for one in found:
        label, probability = one.ranked[0]
        value: dict[str, object] = {"path": one.path, "label": label, "probability": probability}
        if len(one.ranked) > 1:
            value["top"] = [{"label": name, "probability": p} for name, p in one.ranked]
        print(json.dumps(value))
        count += 1
    return count
