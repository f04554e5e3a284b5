"""Commands for many runs: reproduce, status, report, demo."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from esupcon._console import count, duration, progress_bar
from esupcon._io import OwnedFolder, write_bytes
from esupcon.cli import options
from esupcon.cli.options import argument, option
from esupcon.cli.output import answer, answer_json, complain, log, note, table
from esupcon.cli.stopping import MISTAKE, PARTIAL, Stopped, Stopper
from esupcon.experiments.executors import LocalExecutor
from esupcon.experiments.grid import GridState, resolve, run_grid
from esupcon.experiments.grid import status as store_status
from esupcon.experiments.plan import Plan, make_plan, read_override, read_seeds, shipped
from esupcon.experiments.store import Store, export_study, import_study
from esupcon.training.result import REPORT_FILE

_MAX_ROWS = 40
_DEMO = ("demo", "smoke")  # table and profile
_DEMO_OVERRIDES: dict[str, Any] = {}  # tests make the demo shorter
_TABLES, _PROFILES = (f"{', '.join(shipped(kind))}, or your own file." for kind in ("tables", "profiles"))
_DATA_DIR = "Folder of the named data sets. Default: $ESUPCON_DATA, otherwise the cache folder."
_SOURCE = "Path of a data set of the table, as in photos=/data/photos. May be repeated."
_STUDY = "Take finished runs from this file, if it exists, and write all finished runs to it at the end."
_OUT = "File to write: .html, .md or .csv. Without it, Markdown and CSV go to standard output."

Words = list[str] | None
_what, _where = (partial(option, panel=panel) for panel in ("What to run", "Where to run"))


def reproduce(
    tables: Annotated[list[str], argument("TABLE...", _TABLES)],
    profile: Annotated[str | None, _what(_PROFILES, show_default="cpu; a table with recipe = true needs none")] = None,
    dataset: Annotated[Words, _what("Only these data sets, as in cifar10,cifar100.")] = None,
    setting: Annotated[Words, _what("Only the column with this setting, as in N=2K. May be repeated.")] = None,
    method: Annotated[Words, _what("Only these methods or contestants, as in ce,esupcon.")] = None,
    seeds: Annotated[str | None, _what("Number of seeds (3), or a list of seeds (0,4,7).")] = None,
    overrides: Annotated[
        Words, _what("Change a setting of every run, as in epochs=10. May be repeated.", "--set")
    ] = None,
    store: Annotated[
        Path, _where("Folder of the runs. The same command continues them.", metavar="DIR", show_default=True)
    ] = Path("runs/store"),
    workers: Annotated[int | None, _where("Number of runs at once.", show_default="one per core")] = None,
    data_dir: Annotated[str | None, _where(_DATA_DIR, metavar="DIR")] = None,
    sources: Annotated[Words, _where(_SOURCE, "--source", metavar="NAME=PATH")] = None,
    study: Annotated[Path | None, _where(_STUDY, metavar="FILE.jsonl")] = None,
    keep_models: Annotated[bool, _where("Also keep every trained model.", "--keep-models")] = False,
    allow_code: Annotated[bool, _where("Run the Python modules that a table names.", "--allow-code")] = False,
    recompute: Annotated[bool, _where("Compute stored runs of another version of torch again.", "--recompute")] = False,
    dry_run: Annotated[bool, option("List the runs and exit.", "--dry-run")] = False,
    as_json: options.Json = False,
) -> None:
    """Compute the runs of a table of the paper, or of your own table.

    Finished runs are skipped and started ones continue from their checkpoint. Several commands may share a store.
    """
    chosen: dict[str, Any] = {
        "datasets": _split(dataset),
        "settings": setting or (),
        "methods": _split(method),
        "seeds": read_seeds(seeds) if seeds else (),
        "overrides": dict(read_override(text) for text in overrides or ()),
        "sources": dict(map(_source, sources or ())),
    }
    plans = [make_plan(name, profile, **chosen, allow_code=allow_code, dry_run=dry_run) for name in tables]
    if study is not None and (n_taken := import_study(study, Store(store))):
        note(f"{count(n_taken, 'run')} taken from {study}.")
    if dry_run:
        _list(resolve(plans, data_dir, download=False), Store(store), as_json)
        return
    import torch  # noqa: PLC0415 - slow to import

    executor = LocalExecutor(workers, n_gpus=torch.cuda.device_count())
    try:
        state = _run(plans, Store(store), executor, data_dir=data_dir, keep_models=keep_models, recompute=recompute)
    finally:
        if study is not None and Store(store).keys():
            note(f"{count(export_study(Store(store), study), 'run')} written to {study}.")
    _show(state, Store(store), as_json)
    if not as_json:
        answer(f"Next:  {shlex.join(['esupcon', 'report', str(store), '--out', 'report.html'])}")
    if state.failed:
        raise typer.Exit(PARTIAL if state.n_done else MISTAKE)


def _split(given: list[str] | None) -> tuple[str, ...]:
    """Return values that were given one by one or separated by commas."""
    return tuple(part.strip() for text in given or () for part in text.split(",") if part.strip())


def _source(text: str) -> tuple[str, str]:
    """Return the name and the path of `name=path`."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise ValueError(f"--source is written name=path, as in photos=/data/photos; got {text!r}.")
    return name, path


def _run(plans: Sequence[Plan], store: Store, executor: LocalExecutor, **settings: Any) -> GridState:
    """Compute what is missing, with a line per finished run. Exit if a signal asks for it."""
    command, shown, stopper = _command(), 0, Stopper()
    try:
        with stopper, progress_bar("runs", sum(len(plan.rows) for plan in plans)) as advance:

            def watch(state: GridState) -> None:
                nonlocal shown
                advance(state.n_done - shown)
                shown = state.n_done

            hooks: dict[str, Any] = {"should_stop": stopper, "watch": watch, "log": log}
            return run_grid(plans, store, executor, command=command, **hooks, **settings)
    except Stopped:
        if stopper.signal is None:
            raise
        complain(f"stopped with {shown} runs done. To continue: {command}")
        raise typer.Exit(stopper.exit_code) from None


def _command() -> str:
    return shlex.join(["esupcon", *sys.argv[1:]])


def _show(state: GridState, store: Store, as_json: bool, **more: str) -> None:
    """Print all runs as JSON, or each table: a row per data set and setting, a column per method."""
    from esupcon.report.aggregate import result_tables  # noqa: PLC0415 - slow to import
    from esupcon.report.format import method_title, n_text, value_text  # noqa: PLC0415

    stored = {key: store.read(key) for key in (*state.stored, *state.finished)}
    if as_json:
        runs = []
        for key, row in state.rows.items():
            accuracy = stored[key].accuracy if key in stored else None
            runs.append({**row.model_dump(mode="json"), "accuracy": accuracy, "error": state.failed.get(key)})
        answer_json({"store": str(store.root), "runs": runs, **more})
        return
    for one in result_tables(state.plans, stored):
        measure, cells = one.panels[0].measure, one.panels[0].cells
        body = [
            [
                f"{column.dataset} {column.setting}",
                *(f"{value_text(c[i], measure)} {n_text(c[i])}" for c in cells.values()),
            ]
            for i, column in enumerate(one.columns)
        ]
        made = table(["", *map(method_title, cells)], body)
        made.title = f"{measure.title} in {measure.unit}, mean ± standard deviation over seeds"
        made.title_justify = "left"
        answer(made)
    for reason, n in Counter(state.failed.values()).items():
        first = next(key for key, error in state.failed.items() if error == reason)
        complain(f"failed: {state.rows[first].name}{f' and {n - 1} more' if n > 1 else ''}: {reason}")
    answer(f"{state.n_done} of {count(len(state.rows), 'run')} are in {store.root}.")


def _list(plans: Sequence[Plan], store: Store, as_json: bool) -> None:
    """Print every planned run, and whether it is stored."""
    rows = [row for plan in plans for row in plan.rows]
    entries = [{**row.model_dump(mode="json"), "stored": store.is_done(row.key)} for row in rows]
    if as_json:
        answer_json(entries)
        return
    names = ("key", "table", "dataset", "setting", "method", "seed", "paper_accuracy")
    cells = [["–" if entry[name] is None else str(entry[name]) for name in names] for entry in entries[:_MAX_ROWS]]
    answer(table([*names[:-1], "paper, %"], cells))
    if len(entries) > _MAX_ROWS:
        note(f"and {len(entries) - _MAX_ROWS} more; --json lists all of them.")
    stored = {entry["key"]: entry["stored"] for entry in entries}
    note(f"{count(len(stored), 'run')}, {sum(stored.values())} of them stored.")


def status(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder that esupcon reproduce has written.")] = Path(
        "runs/store"
    ),
    as_json: options.Json = False,
) -> None:
    """Show how many runs of each table are done, running, failed or open, and how long the rest will take.

    Errors of failed runs are printed on standard error.
    """
    found, problems = store_status(Store(store))
    for line in problems:
        complain(line)
    if as_json:
        answer_json([{**one.model_dump(), "n_runs": len(one.runs), **one.counts} for one in found])
        return
    rows = []
    for one in found:
        n, left = one.counts, one.seconds_left
        rest = "unknown" if left is None else f"about {duration(left)}" if n["done"] < len(one.runs) else "–"
        numbers = [f"{n['done']} of {len(one.runs)}", *map(str, (n["running"], n["failed"], n["open"] + n["begun"]))]
        rows.append([one.table, one.profile, *numbers, rest])
    answer(table(["table", "profile", "done", "running", "failed", "open", "time left, one run at a time"], rows))
    for one in found:
        for reason, times in Counter(one.errors.values()).items():
            complain(f"{one.table}: {times} failed: {reason}")


def report(
    store: Annotated[Path, argument("STORE", "Folder that esupcon reproduce has written, or a study (.jsonl).")],
    out: Annotated[Path | None, option(_OUT, metavar="FILE")] = None,
    format: Annotated[
        str | None,
        option("html, markdown or csv.", "--format", show_default="by the ending of --out"),
    ] = None,
    tables: Annotated[
        Words, option("Only this table. May be repeated.", "--table", metavar="NAME", show_default="all")
    ] = None,
) -> None:
    """Write the results of a store: tables, figures and findings, on one page that works offline.

    Nothing is trained. Runs that cannot be read are left out and named in the report and on standard error.
    """
    from esupcon.report.content import read  # noqa: PLC0415 - slow to import
    from esupcon.report.write import format_of, render  # noqa: PLC0415

    wanted = format_of(out or Path("report.html"), format)
    if out is None and wanted == "html":
        raise ValueError("HTML needs a file: pass --out report.html, or --format markdown for standard output.")
    content = read(store, tables or (), _command())
    text = render(content, wanted)
    for line in content.problems:
        complain(line)
    if out is None:
        sys.stdout.write(text.decode())
    else:
        write_bytes(out, text)
        note(f"{content.completeness} The report is in {out}.")
    if content.problems:
        raise typer.Exit(PARTIAL)


def demo(
    out: Annotated[
        Path,
        option("Folder of the runs and the report. The same command continues them.", metavar="DIR", show_default=True),
    ] = Path("runs/demo"),
    as_json: options.Json = False,
) -> None:
    """Run a demo: few digits, a fifth of them mislabelled, three methods, three seeds, a report."""
    from esupcon.report import build  # noqa: PLC0415 - slow to import

    started, store = time.monotonic(), Store(out)
    plan = make_plan(*_DEMO, overrides=_DEMO_OVERRIDES)
    first, methods = plan.rows[0].spec, list(dict.fromkeys(row.method for row in plan.rows))
    note(
        f"{first.n_train} handwritten digits, {100 * (first.noise_rate or 0):.0f} % of their labels wrong; "
        f"{len(methods)} methods x {len(plan.rows) // len(methods)} seeds, equal settings except the method."
    )
    store.create()
    OwnedFolder(out, [REPORT_FILE]).claim()
    state = _run([plan], store, LocalExecutor(), keep_models=True)
    if state.failed:
        raise ValueError(f"{len(state.failed)} of the runs failed: {next(iter(state.failed.values()))}")
    written = build(out, out / REPORT_FILE, command=_command())
    _show(state, store, as_json, report=str(written))
    if as_json:
        return
    note(f"{time.monotonic() - started:.0f} s. {plan.notes[0]}")
    last = next(row.key for row in state.rows.values() if row.method == methods[-1])
    answer(
        f"Report:  {written.absolute()}\n"
        f"Next:    esupcon evaluate {store.run_folder(last)} digits\n"
        "         esupcon train YOUR_IMAGES --out runs/first\n"
        "         esupcon methods"
    )
