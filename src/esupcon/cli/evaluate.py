"""`esupcon evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer

from esupcon.cli import options as shared
from esupcon.cli.output import INTERVALS, answer, answer_json, classes_table, figures_table, say


def evaluate(
    context: typer.Context,
    model: shared.Model,
    data: shared.Data,
    part: Annotated[
        str,
        typer.Option(
            help="test, train, all; auto: the test part of data that have one or that the model was trained on, "
            "else all."
        ),
    ] = "auto",
    plot: shared.Plot = None,
    as_json: shared.Json = False,
    data_dir: shared.DataDir = None,
    split_seed: shared.SplitSeed = None,
    test_fraction: shared.TestFraction = None,
    n_per_class: shared.NPerClass = None,
    layout: shared.Layout = None,
    image_column: shared.ImageColumn = None,
    label_column: shared.LabelColumn = None,
    strict: shared.Strict = False,
    workers: shared.Workers = None,
) -> None:
    """Measure a classifier on labelled images: accuracy, every class, calibration.

    Classes are matched by name. After `esupcon calibrate` the figures are shown before and after it.
    """
    from esupcon.pipeline.evaluate import evaluate as run  # noqa: PLC0415 - slow to import

    found = run(model, data, part=part, reading=shared.reading(context), plot=plot, log=say)  # type: ignore[arg-type]  # it checks the part
    if as_json:
        answer_json(found.as_dict())
        return
    of = {"test": "the test part of ", "train": "the train part of ", "all": "all of "}[found.part]
    sides = [("value", found.before)]
    if found.after is not None:
        sides = [("before calibration", found.before), (f"T = {found.after['temperature']:.3g}", found.after)]
    answer(f"{found.model} on {of}{found.data}: {found.before['n']:,} samples")
    answer(figures_table(sides))
    answer(classes_table(found.after or found.before))
    say(INTERVALS)
    if found.classes_without_samples:
        say(f"No samples of {len(found.classes_without_samples)} of the model's classes.")
    if found.after is None:
        say(f"Not calibrated yet: esupcon calibrate {model} {data}")
    if plot is not None:
        say(f"The reliability diagram is in {plot}.")
