"""`esupcon demo`."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from esupcon.cli import options as shared
from esupcon.cli.grid_view import GridView
from esupcon.cli.output import answer, answer_json, complain, say, table
from esupcon.cli.stopping import Stopper
from esupcon.experiments.plan import Choice, make_plan
from esupcon.experiments.profile import read_profile
from esupcon.experiments.store import Store, StoredRun
from esupcon.experiments.summary import Line, paired_gains, spread, summarise
from esupcon.methods import METHODS

TABLE, PROFILE, BASELINE = "demo", "smoke", "ce"
FIELDS: dict[str, Any] = {}  # settings instead of the table's


def demo(
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where the runs and the report go; the same command again takes them up."),
    ] = Path("runs/demo"),
    as_json: shared.Json = False,
) -> None:
    """See what it is about: few digits, a fifth of them mislabelled, three methods, three seeds, a report."""
    from esupcon.experiments.local import LocalExecutor  # noqa: PLC0415 - slow to import, as are the next
    from esupcon.experiments.reproduce import Request, reproduce  # noqa: PLC0415
    from esupcon.report.build import write_report  # noqa: PLC0415

    started = time.monotonic()
    plan = make_plan(TABLE, read_profile(PROFILE), Choice(fields=FIELDS))
    first = plan.rows[0].spec
    methods = list(dict.fromkeys(row.method for row in plan.rows))
    say(
        f"{first.n_train} handwritten digits, {100 * (first.noise_rate or 0):.0f} % of their labels wrong; "
        f"{len(methods)} methods x {len(plan.rows) // len(methods)} seeds, all settings but the method equal."
    )
    store, command = Store(out), ["esupcon", *sys.argv[1:]]
    request, executor = Request((plan,), store, keep_models=True, command=command), LocalExecutor()
    with Stopper() as stopper, GridView(store, executor.slots) as view:
        standing = reproduce(request, executor, should_stop=stopper, watch=view, say=lambda line: None)
        accuracies = view.accuracies(standing)
    if stopper.signal is not None:
        complain(f"stopped, and saved in {out}. To go on: {' '.join(command)}")
        raise typer.Exit(stopper.exit_code)
    if standing.failed:
        raise ValueError(f"{len(standing.failed)} of the runs failed: {next(iter(standing.failed.values()))}")
    line = summarise(plan.rows, accuracies)[0]
    runs = {row.key: store.read(row.key) for row in plan.rows}
    report = write_report(out, out / "report.html", command=" ".join(command))
    figures = [
        _figures(method, line, [runs[row.key] for row in plan.rows if row.method == method]) for method in methods
    ]
    if as_json:
        answer_json({"settings": first.model_dump(), "report": str(report), "lines": figures})
        return
    answer(f"On {figures[0]['n_test']:,} test digits with right labels, mean ± deviation (n seeds):")
    answer(table(["method", "accuracy, %", "gain over CE", "ECE, %"], [_row(one) for one in figures]))
    say(f"{time.monotonic() - started:.0f} s. {plan.table.notes[0]}")
    shown = next(row.key for row in plan.rows if row.method == methods[-1])
    answer(
        f"Report:  {report.absolute()}\n"
        f"Next:    esupcon evaluate {store.run_folder(shown)} digits\n"
        "         esupcon train YOUR_IMAGES --out runs/first\n"
        "         esupcon methods"
    )


def _figures(method: str, line: Line, runs: list[StoredRun]) -> dict[str, Any]:
    accuracies = list(line.accuracies[method].values())
    tests = [run.result["metrics"]["test"] for run in runs]
    gains = paired_gains(line, method, BASELINE)
    return {
        "method": method,
        "n": len(accuracies),
        "n_test": tests[0]["n"],
        "accuracies": accuracies,
        "accuracy_mean": statistics.fmean(accuracies),
        "gains_over_ce": gains,
        "gain_over_ce_mean": statistics.fmean(gains),
        "eces": [test["ece"] for test in tests],
    }


def _row(figures: dict[str, Any]) -> list[str]:
    gains = figures["gains_over_ce"]
    gain = "" if figures["method"] == BASELINE else f"{100 * statistics.fmean(gains):+.1f}"
    if gain and len(gains) > 1:
        gain += f" ± {100 * statistics.stdev(gains):.1f}"
    return [METHODS[figures["method"]].title, spread(figures["accuracies"]), gain, spread(figures["eces"])]
