"""`esupcon calibrate`."""

from __future__ import annotations

from typing import Annotated

import typer

from esupcon.cli import options as shared
from esupcon.cli.output import INTERVALS, answer, answer_json, percent, say, table


def calibrate(
    context: typer.Context,
    model: shared.Model,
    data: shared.Data,
    on: Annotated[
        str,
        typer.Option(
            help="What the temperature is fitted on: held-out, what training kept aside; train; test, a fifth of "
            "it; all. auto: held-out for the data the model was trained on, else train."
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
    """Fit the temperature that makes a classifier's probabilities agree with its accuracy, and store it in the model.

    `esupcon predict` and `predict_proba` use it from then on. The labels that are predicted do not change.
    """
    from esupcon.pipeline.evaluate import calibrate as run  # noqa: PLC0415 - slow to import

    found = run(model, data, on=on, reading=shared.reading(context), plot=plot, log=say)  # type: ignore[arg-type]  # it checks `on`
    if as_json:
        answer_json(found.as_dict())
        return
    report = found.report
    before, after = report.ece_before_interval, report.ece_after_interval
    rows = [
        ["ECE", *(f"{percent(one.value)} ({100 * one.low:.1f} to {100 * one.high:.1f})" for one in (before, after))],
        ["NLL", f"{report.nll_before:.3f}", f"{report.nll_after:.3f}"],
    ]
    answer(f"{found.model}, measured on {found.measured_on}: {report.n_evaluation:,} samples")
    answer(table(["", "before, T = 1", f"after, T = {report.temperature:.3g}"], rows))
    say(INTERVALS)
    say(f"T was fitted on {found.fitted_on} ({report.n_calibration:,} samples) and is stored in {found.model}.")
    if plot is not None:
        say(f"The reliability diagram is in {plot}.")
