"""`esupcon reproduce`."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from esupcon.cli import exit_codes
from esupcon.cli import options as shared
from esupcon.cli.grid_view import GridView, duration, means_table
from esupcon.cli.output import answer, answer_json, complain, say, table
from esupcon.cli.stopping import Stopper
from esupcon.experiments.cost import Probe, first_stages_kept
from esupcon.experiments.grid import Standing, name_of
from esupcon.experiments.local import LocalExecutor, usable_cores
from esupcon.experiments.plan import Choice, Plan, make_plan, read_field, read_seeds
from esupcon.experiments.profile import read_profile
from esupcon.experiments.reproduce import Request
from esupcon.experiments.reproduce import reproduce as compute
from esupcon.experiments.store import Store
from esupcon.experiments.table import shipped

if TYPE_CHECKING:
    from esupcon.experiments.executor import Executor

_WHAT, _WHERE = "What is run", "Where it is run"
_SHOWN_ROWS = 40


def _option(help_text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **{"show_default": False, **more})


def reproduce(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE...", help=f"{', '.join(shipped('tables'))}, or a table file of yours.", show_default=False
        ),
    ],
    store: Annotated[
        Path, _option("Folder of the runs; the same command again continues.", _WHERE, metavar="DIR", show_default=True)
    ] = Path("runs/store"),
    profile: Annotated[
        str,
        _option(f"{', '.join(shipped('profiles'))}, or a profile file of yours.", _WHAT, show_default=True),
    ] = "cpu",
    dataset: Annotated[list[str] | None, _option("Only these data sets: cifar10,cifar100.", _WHAT)] = None,
    setting: Annotated[
        list[str] | None, _option("Only this column, by its setting: N=2K. May be repeated.", _WHAT)
    ] = None,
    method: Annotated[list[str] | None, _option("Only these methods: ce,esupcon.", _WHAT)] = None,
    seeds: Annotated[str | None, _option("How many (3), or which (0,4,7).", _WHAT)] = None,
    fields: Annotated[
        list[str] | None,
        _option("Any setting of a run, instead of the profile's: epochs=10.", _WHAT, "--set"),
    ] = None,
    workers: Annotated[
        int | None, _option("Runs at once; each gets cores / workers threads.", _WHERE, show_default="one a core")
    ] = None,
    ray: Annotated[str | None, _option("Run on a Ray cluster: its address, or local.", _WHERE)] = None,
    cpus: Annotated[float, _option("CPUs that each run asks Ray for.", _WHERE, show_default=True)] = 1.0,
    gpus: Annotated[float, _option("GPUs that each run asks Ray for.", _WHERE, show_default=True)] = 0.0,
    data_dir: shared.DataDir = None,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Keep every trained model, too.", rich_help_panel=_WHERE)
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and stop; no data are read.")] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="With --dry-run: what each would take here.")] = False,
    as_json: shared.Json = False,
) -> None:
    """Fill a table of the paper, or one of yours, run by run.

    Finished runs are skipped, started ones go on from their checkpoint; several of these commands may share a store.
    """
    choice = Choice(
        datasets=_words(dataset),
        settings=tuple(setting or ()),
        methods=_words(method),
        seeds=read_seeds(seeds) if seeds else (),
        fields=dict(read_field(text) for text in fields or ()),
    )
    scale = read_profile(profile)
    plans = tuple(make_plan(name, scale, choice) for name in tables)
    if dry_run or estimate:
        _list(plans, Store(store), estimate, workers, as_json)
        return
    request = Request(plans, Store(store), data_dir, keep_models, ["esupcon", *sys.argv[1:]])
    standing, accuracies = _run(request, _executor(workers, ray, cpus, gpus), ray)
    if as_json:
        answer_json(_as_json(standing, accuracies, store))
    else:
        _tell(standing, accuracies, store)
    if standing.failed:
        raise typer.Exit(exit_codes.PARTIAL if standing.n_done else exit_codes.MISTAKE)


def _words(given: list[str] | None) -> tuple[str, ...]:
    """Each given by itself, or several with commas."""
    return tuple(part.strip() for text in given or () for part in text.split(",") if part.strip())


def _executor(workers: int | None, ray: str | None, cpus: float, gpus: float) -> Executor:
    if ray is not None:
        from esupcon.experiments.on_ray import RayExecutor  # noqa: PLC0415 - an extra, and slow to import

        return RayExecutor(ray, cpus=cpus, gpus=gpus)
    return LocalExecutor(workers, n_gpus=_n_gpus())


def _n_gpus() -> int:
    import torch  # noqa: PLC0415 - slow to import

    return torch.cuda.device_count()


def _run(request: Request, executor: Executor, ray: str | None) -> tuple[Standing, dict[str, float | None]]:
    with Stopper() as stopper, GridView(request.store, executor.slots) as view:
        standing = compute(request, executor, data_are_here=ray is None, should_stop=stopper, watch=view, say=view.say)
        accuracies = view.accuracies(standing)
    if stopper.signal is not None:
        again = shlex.join(request.command)
        complain(f"stopped with {standing.n_done} of {len(standing.rows)} runs done. To go on: {again}")
        raise typer.Exit(stopper.exit_code)
    return standing, accuracies


def _tell(standing: Standing, accuracies: dict[str, float | None], store: Path) -> None:
    answer(means_table(standing, accuracies))
    for reason, n in Counter(standing.failed.values()).items():
        names = [name_of(standing.rows[key]) for key, error in standing.failed.items() if error == reason]
        more = f" and {n - 1} more" if n > 1 else ""
        complain(f"failed: {names[0]}{more}: {reason}")
    answer(
        f"{standing.n_done} of {len(standing.rows)} runs are in {store}.\n"
        f"Next:  {shlex.join(['esupcon', 'report', str(store), '--out', 'report.html'])}"
    )


def _as_json(standing: Standing, accuracies: dict[str, float | None], store: Path) -> dict[str, Any]:
    return {
        "store": str(store),
        "runs": [
            {**row.as_dict(), "accuracy": accuracies.get(key), "error": standing.failed.get(key)}
            for key, row in standing.rows.items()
        ],
    }


def _list(plans: tuple[Plan, ...], store: Store, estimate: bool, workers: int | None, as_json: bool) -> None:
    slots = workers or usable_cores()
    probe = Probe(max(1, usable_cores() // slots)) if estimate else None
    entries = []
    for plan in plans:
        kept = first_stages_kept([row.spec for row in plan.rows])
        for row, is_kept in zip(plan.rows, kept, strict=True):
            entry = {**row.as_dict(), "stored": store.is_done(row.key)}
            if probe is not None:
                shares = is_kept and plan.table.measure != "cost"
                entry["estimated_seconds"] = probe.seconds(row.spec, first_stage_is_kept=shares)
            entries.append(entry)
    if as_json:
        answer_json(entries)
        return
    columns = ["key", "table", "dataset", "setting", "method", "seed", "paper, %"]
    if estimate:
        columns.append("takes")
    answer(table(columns, [_listed(entry, estimate) for entry in entries[:_SHOWN_ROWS]]))
    if len(entries) > _SHOWN_ROWS:
        say(f"and {len(entries) - _SHOWN_ROWS} more; --json lists them all.")
    _sum_up(entries, slots if estimate else None)


def _listed(entry: dict[str, Any], estimate: bool) -> list[str]:
    paper = entry["paper_accuracy"]
    cells = [entry[name] for name in ("key", "table", "dataset", "setting", "method")]
    cells += [str(entry["seed"]), "–" if paper is None else f"{paper:.2f}"]
    if estimate:
        seconds = entry["estimated_seconds"]
        cells.append("done" if entry["stored"] else "unknown" if seconds is None else duration(seconds))
    return cells


def _sum_up(entries: list[dict[str, Any]], slots: int | None) -> None:
    distinct = {entry["key"]: entry for entry in entries}
    n_stored = sum(entry["stored"] for entry in distinct.values())
    line = f"{len(distinct)} runs, {n_stored} of them stored."
    if slots is not None:
        costs = [entry["estimated_seconds"] for entry in distinct.values() if not entry["stored"]]
        known = [seconds for seconds in costs if seconds is not None]
        line += f" The rest takes about {duration(sum(known) / slots)} here, {slots} at once"
        line += f", besides {len(costs) - len(known)} on data of unknown size." if len(known) < len(costs) else "."
    say(line)
