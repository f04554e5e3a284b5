"""`esupcon demo`."""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from esupcon.cli import options as shared
from esupcon.cli.output import answer, answer_json, say, table


def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the runs there; the same command again takes them up.", show_default=False
        ),
    ] = None,
    as_json: shared.Json = False,
) -> None:
    """See what it is about: few digits, a fifth of them mislabelled, three methods, three seeds, under a minute."""
    from esupcon.pipeline import demo as plan  # noqa: PLC0415 - slow to import

    started = time.monotonic()
    say(
        f"{plan.N_TRAIN} handwritten digits, {100 * plan.NOISE_RATE:.0f} % of their labels wrong; "
        f"{len(plan.METHOD_KEYS)} methods x {len(plan.SEEDS)} seeds, all settings but the method equal."
    )
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="esupcon-demo-")))
        lines = plan.run_demo(
            folder,
            seeds=plan.SEEDS,
            finished=lambda method, seed, accuracy: say(f"  {method}, seed {seed}: {100 * accuracy:.1f} %"),
        )
    if as_json:
        answer_json(
            {
                "n_train": plan.N_TRAIN,
                "noise_rate": plan.NOISE_RATE,
                "settings": plan.SHARED,
                "lines": [one.as_dict() for one in lines],
            }
        )
        return
    n_test = lines[0].n_test
    rows = [
        [one.title, _spread(one.accuracies), "" if one.key == plan.BASELINE else _gain(one.gains), _spread(one.eces)]
        for one in lines
    ]
    answer(f"On {n_test:,} test digits with right labels, mean ± deviation (n seeds):")
    answer(table(["method", "accuracy, %", "gain over CE", "ECE, %"], rows))
    say(f"{time.monotonic() - started:.0f} s. A demonstration, its settings chosen to show a difference; not a study.")
    kept = (
        f"esupcon evaluate {out / 'esupcon-0'} digits"
        if out is not None
        else "esupcon demo --out demo-runs   (keeps the models)"
    )
    answer(f"Next:  {kept}\n       esupcon train YOUR_IMAGES --out runs/first\n       esupcon methods")


def _spread(values: tuple[float, ...]) -> str:
    from esupcon.pipeline.demo import deviation  # noqa: PLC0415 - slow to import

    return f"{100 * statistics.fmean(values):.1f} ± {100 * deviation(values):.1f} (n={len(values)})"


def _gain(values: tuple[float, ...]) -> str:
    from esupcon.pipeline.demo import deviation  # noqa: PLC0415 - slow to import

    return f"{100 * statistics.fmean(values):+.1f} ± {100 * deviation(values):.1f}"
