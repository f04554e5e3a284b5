"""Finished runs on disk: a store folder that several processes fill, or a published study in one file. No torch.

A store folder holds

    runs/KEY/         finished runs: result.json, history.jsonl, timing.jsonl, predictions.npz, held_out.npz,
                      embedding.npz, and model/ if models are kept
    work/KEY/         started runs with their checkpoints
    failed/KEY.txt    the error of the last attempt
    plans/*.json      the runs that were planned, and by which command
    locks/            lock files; the process that computes a run holds its lock until it ends
    aside/            runs that were damaged, or that were computed again

A finished run is moved into `runs` by one rename, so no reader sees an incomplete one.

A study is a file of JSON lines, each with its own seal: first the plans, then the runs.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from esupcon import _io
from esupcon._console import printable
from esupcon._io import write_json
from esupcon.experiments.plan import Plan
from esupcon.spec import RunSpec, key_of
from esupcon.training.result import HISTORY_FILE, RESULT_FILE, TIMING_FILE, Result

LOG_FILE = "log.txt"
STUDY_SUFFIX = ".jsonl"
_FOLDERS = ("runs", "work", "failed", "plans", "locks", "aside")
_CURVES = {"history": HISTORY_FILE, "timing": TIMING_FILE}

State = Literal["done", "running", "begun", "failed", "open"]
Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class StoredRun:
    """A finished run. `folder` is None for a run of a study, which has no arrays and no model."""

    key: str
    result: Result
    folder: Path | None = None
    curves: dict[str, Lines] = field(default_factory=dict, repr=False)  # of a run of a study

    @property
    def spec(self) -> RunSpec:
        return self.result.run

    @property
    def history(self) -> Lines:
        """One record per epoch: stage, loss, held-out accuracy."""
        return self._lines("history")

    @property
    def timing(self) -> Lines:
        """One record per epoch: seconds, images per second."""
        return self._lines("timing")

    def _lines(self, name: str) -> Lines:
        return self.curves[name] if self.folder is None else _io.read_json_lines(self.folder / _CURVES[name])

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the test part, as a share."""
        test = self.result.metrics.test
        return None if test is None else test.accuracy

    @property
    def seconds(self) -> float:
        """Seconds of training, summed over all processes that worked on the run."""
        return self.result.provenance.train_seconds or self.result.provenance.seconds


@dataclass(frozen=True)
class Contents:
    """Everything in a store or study. `problems` has one line for each plan or run that cannot be read."""

    plans: list[Plan]
    runs: dict[str, StoredRun]
    problems: list[str]
    failures: dict[str, str]


class Store:
    """A folder of runs that several processes may read and fill at the same time."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def create(self) -> None:
        """Create the folders; refuse a folder that holds files of others under these names."""
        if self.root.is_file():
            raise ValueError(
                f"{self.root} is a file; a store is a folder. To bring a study into one: esupcon reproduce --study."
            )
        owned = _io.OwnedFolder(self.root, _FOLDERS)
        try:
            owned.claim()
        except ValueError:
            if not owned.is_ours:  # otherwise another process may have created the store at this moment
                raise
            owned.claim()
        for name in _FOLDERS:
            (self.root / name).mkdir(exist_ok=True)

    def run_folder(self, key: str) -> Path:
        return self.root / "runs" / key

    def work_folder(self, key: str) -> Path:
        return self.root / "work" / key

    def locked(self, key: str) -> AbstractContextManager[bool]:
        """Hold the lock of a run; yield False if another process computes it."""
        return _io.locked(self.root / "locks" / f"{key}.lock")

    def is_done(self, key: str) -> bool:
        return (self.run_folder(key) / RESULT_FILE).is_file()

    def state(self, key: str) -> State:
        if self.is_done(key):
            return "done"
        if (self.root / "locks" / f"{key}.lock").exists():
            with self.locked(key) as held:
                if not held:
                    return "running"
        if self.failure(key) is not None:
            return "failed"
        return "begun" if self.work_folder(key).is_dir() else "open"

    def keys(self) -> list[str]:
        """Return the keys of the finished runs, sorted."""
        return sorted(path.name for path in (self.root / "runs").glob("[!.]*") if path.is_dir())

    def read(self, key: str) -> StoredRun:
        """Return a finished run; raise a ValueError that names the file if it is damaged or has another key."""
        folder = self.run_folder(key)
        try:
            result = Result.read(folder)
        except FileNotFoundError as error:
            raise ValueError(str(error)) from None
        if result.run.key != key:
            raise ValueError(f"{folder} holds the run {result.run.key}, not {key}.")
        return StoredRun(key, result, folder)

    def finish(self, key: str, folder: Path) -> None:
        """Move a complete folder into the store; if the run is there already, remove the folder."""
        try:
            folder.rename(self.run_folder(key))
        except OSError:
            if not self.is_done(key):
                raise
            shutil.rmtree(folder, ignore_errors=True)
        self._failure_file(key).unlink(missing_ok=True)

    def set_aside(self, key: str) -> Path:
        """Move a stored run out of the way without deleting it, so that it is computed again."""
        return self.run_folder(key).rename(self.root / "aside" / f"{key}-{uuid.uuid4().hex[:6]}")

    def note_failure(self, key: str, error: str) -> None:
        _io.write_bytes(self._failure_file(key), error.encode(errors="replace"))

    def failure(self, key: str) -> str | None:
        """Return the error of the last attempt at a run, or None."""
        path = self._failure_file(key)
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None

    def _failure_file(self, key: str) -> Path:
        return self.root / "failed" / f"{key}.txt"

    def write_plan(self, plan: Plan) -> None:
        """Store which runs were planned; the same runs again replace the earlier plan."""
        identity = key_of([row.model_dump(mode="json") for row in plan.rows])
        write_json(self.root / "plans" / f"{plan.table}-{plan.profile}-{identity}.json", plan.model_dump(mode="json"))

    def plans(self) -> tuple[list[Plan], list[str]]:
        """Return the plans, oldest first, and one line for each that cannot be read."""
        plans, problems = [], []
        for path in sorted((self.root / "plans").glob("*.json")):
            try:
                plans.append(_read_plan(_io.read_json(path), path))
            except (ValueError, OSError) as error:
                problems.append(f"a plan is left out: {printable(error)} The command that made it makes it again.")
        return sorted(plans, key=lambda plan: plan.asked), problems


def read_contents(path: str | os.PathLike[str]) -> Contents:
    """Read a store folder or a study file. A run that cannot be read costs its own entry, not the others."""
    place = Path(path)
    contents = _read_study(place) if place.is_file() else _read_store(Store(place))
    if not contents.runs and not contents.plans:
        remedy = " ".join(["Fill it with esupcon reproduce.", *contents.problems[:1]])
        raise ValueError(f"{place} must hold finished runs or a plan; it holds neither. {remedy}")
    return contents


def _read_store(store: Store) -> Contents:
    if not (store.root / "runs").is_dir():
        raise FileNotFoundError(f"{store.root} is not a store of runs. Pass a folder of esupcon reproduce or demo.")
    runs, problems = {}, []
    for key in store.keys():  # noqa: SIM118 - a method of the store
        try:
            runs[key] = store.read(key)
        except (ValueError, OSError) as error:
            problems.append(f"run {printable(key)} is left out: {printable(error)}")
    plans, unreadable = store.plans()
    failures = {path.stem: store.failure(path.stem) or "" for path in sorted((store.root / "failed").glob("*.txt"))}
    return Contents(plans, runs, [*problems, *unreadable], failures)


# --- Studies: all finished runs in one file --------------------------------------------------------------------------


def export_study(store: Store, path: str | os.PathLike[str]) -> int:
    """Write all finished runs and plans of a store into one file, and return the number of runs.

    The file has results, calibration figures and training curves. It has no weights, predictions or embeddings, so a
    report of it lacks confusion matrices and maps of embeddings. Of absolute paths only the last part is kept.
    """
    contents = read_contents(store.root)
    if contents.problems:
        raise ValueError(f"{contents.problems[0]} Repair or remove it before you publish {store.root}.")
    _check_name(path)
    lines: Lines = []
    for plan in contents.plans:
        content = plan.model_dump(mode="json")
        content["command"] = _without_folders(content["command"])
        for row in content["rows"]:
            row["spec"] = _without_path(row["spec"])
            row["second"] = row["second"] and Path(row["second"]).name
        lines.append({"plan": content})
    for run in contents.runs.values():
        result = run.result.model_dump(mode="json")
        result["run"] = _without_path(result["run"])
        for part, name in (("data", "name"), ("provenance", "source")):
            result[part][name] = Path(result[part][name]).name
        result["provenance"]["command"] = _without_folders(result["provenance"]["command"])
        lines.append({"result": result, "history": run.history, "timing": run.timing})
    texts = (json.dumps(_io.sealed(line), sort_keys=True, separators=(",", ":")).encode() + b"\n" for line in lines)
    _io.write_whole(path, lambda file: file.writelines(texts))
    return len(contents.runs)


def _without_folders(command: str) -> str:
    """Return a command in which absolute paths, also those of `name=path`, are reduced to their last part."""
    words = (word.rpartition("=") for word in command.split(" "))
    return " ".join(f"{name}{equals}{Path(path).name if path[:1] == '/' else path}" for name, equals, path in words)


def _without_path(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a specification without the folder of its data. Without a digest of them it would be another run."""
    return {**spec, "source": Path(spec["source"]).name} if spec["content"] is not None else spec


def _check_name(path: str | os.PathLike[str]) -> None:
    if Path(path).suffix != STUDY_SUFFIX:
        raise ValueError(f"a study is a file named *{STUDY_SUFFIX}; got {path}. Choose such a name.")


def import_study(path: str | os.PathLike[str], store: Store) -> int:
    """Bring the runs of a study into a store that lacks them, so that a grid continues it; return how many.

    A study that does not exist yet has none. One that cannot be read as a whole is an error: `export_study` would
    write it again without the rest.
    """
    _check_name(path)
    if not Path(path).exists():
        return 0
    contents = _read_study(Path(path))
    if contents.problems:
        raise ValueError(f"{contents.problems[0]} Repair or remove the line, or name another file.")
    store.create()
    for plan in contents.plans:
        store.write_plan(plan)
    missing = [run for run in contents.runs.values() if not store.is_done(run.key)]
    for run in missing:
        folder = store.work_folder(f".{run.key}-{uuid.uuid4().hex[:8]}")
        folder.mkdir()
        for name, file in _CURVES.items():
            (folder / file).write_text("".join(json.dumps(line) + "\n" for line in run.curves[name]))
        run.result.write(folder)
        store.finish(run.key, folder)
        shutil.rmtree(store.work_folder(run.key), ignore_errors=True)  # what a process may have started
    return len(missing)


def _read_study(path: Path) -> Contents:
    plans: list[Plan] = []
    runs: dict[str, StoredRun] = {}
    problems = []
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        where = f"line {number} of {path}"
        try:
            line = _io.unsealed(json.loads(text), where)
            if "plan" in line:
                plans.append(_read_plan(line["plan"], where))
            else:
                result = Result.parse(line.get("result"), where)
                curves = {name: [one for one in line.get(name, ()) if isinstance(one, dict)] for name in _CURVES}
                runs[result.key] = StoredRun(result.key, result, None, curves)
        except (ValueError, TypeError, RecursionError) as error:
            problems.append(f"{where} is left out: {printable(error)}")
    return Contents(sorted(plans, key=lambda plan: plan.asked), runs, problems, {})


def _read_plan(content: Any, where: object) -> Plan:
    try:
        return Plan.model_validate(content)
    except ValueError as error:  # also text that is not valid Unicode
        reason = _io.first_error(error) if isinstance(error, ValidationError) else error
        raise ValueError(f"{where} is not a plan of runs: {reason}.") from None
