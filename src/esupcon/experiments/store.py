"""Where runs are kept: one folder a key, whole or absent.

    runs/KEY/      a finished run: spec.json, result.json, history.jsonl, timing.jsonl, predictions.npz, held_out.npz,
                   embedding.npz, and model/ where models are kept
    work/KEY/      a run that was begun: its checkpoints
    stages/KEY.pt  a first stage that runs of several methods share, until the last of them has it
    failed/KEY.json   what went wrong the last time
    plans/*.json   which runs were asked for, and by which command
    locks/         held by whoever computes a run, until that process ends

A finished run comes into `runs` by one rename, so that no reader ever sees half of one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from esupcon.data.locking import exclusive
from esupcon.experiments.spec import Row, RunSpec
from esupcon.experiments.stored_files import what_is_wrong, what_is_wrong_with_plan
from esupcon.files import read_json, read_sealed_json, write_json
from esupcon.spec import canonical_json

SPEC_FILE, RESULT_FILE, LOG_FILE = "spec.json", "result.json", "log.txt"
State = Literal["done", "running", "begun", "failed", "open"]


@dataclass(frozen=True)
class StoredRun:
    """A finished run. `result` is `result.json`: metrics, findings, data, preparation and provenance."""

    key: str
    folder: Path
    spec: RunSpec
    result: Mapping[str, Any]

    @property
    def accuracy(self) -> float | None:
        """On the test part, as a share."""
        metrics = self.result["metrics"]["test"]
        return None if metrics is None else metrics["accuracy"]

    @property
    def seconds(self) -> float:
        """Of training, over all the processes it took."""
        return float(self.result["provenance"].get("train_seconds") or self.result["provenance"]["seconds"])


class Store:
    """A folder of runs that several processes may read and fill at once."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def create(self) -> None:
        for name in ("runs", "work", "failed", "plans", "locks"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def require(self) -> None:
        """A line that says so where this is no store."""
        if not (self.root / "runs").is_dir():
            raise FileNotFoundError(
                f"{self.root} is no store of runs: it has no folder runs/. Fill one with esupcon reproduce --store DIR."
            )

    def run_folder(self, key: str) -> Path:
        return self.root / "runs" / key

    def work_folder(self, key: str) -> Path:
        return self.root / "work" / key

    def stage_file(self, key: str) -> Path:
        return self.root / "stages" / f"{key}.pt"

    @contextmanager
    def locked(self, key: str) -> Iterator[bool | None]:
        """Whether this process may compute the run: False where another one does, None where nothing can be locked."""
        with exclusive(self.root / "locks" / f"{key}.lock") as held:
            yield held

    def is_running(self, key: str) -> bool:
        if not (self.root / "locks" / f"{key}.lock").exists():
            return False
        with self.locked(key) as held:
            return held is False

    def is_done(self, key: str) -> bool:
        return (self.run_folder(key) / RESULT_FILE).is_file()

    def keys(self) -> list[str]:
        folder = self.root / "runs"
        if not folder.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))

    def read(self, key: str) -> StoredRun:
        """A finished run, checked: its specification must have the key it is stored under."""
        folder = self.run_folder(key)
        try:
            spec = RunSpec.read(_without_key(read_json(folder / SPEC_FILE)))
        except ValidationError as error:
            raise ValueError(f"{folder / SPEC_FILE} does not describe a run: {error.errors()[0]['msg']}.") from None
        except UnicodeEncodeError:
            raise ValueError(f"{folder / SPEC_FILE} holds half of a character, and so no run's settings.") from None
        except FileNotFoundError:
            raise ValueError(f"{folder / SPEC_FILE} is missing.") from None
        result = read_sealed_json(folder / RESULT_FILE)
        complaint = what_is_wrong(result)
        if complaint is not None:
            raise ValueError(f"{folder / RESULT_FILE} is not the result of a run: {complaint}.")
        if spec.key != key:
            raise ValueError(f"{folder} holds the run {spec.key}, not {key}.")
        return StoredRun(key, folder, spec, result)

    def finish(self, key: str, folder: Path) -> bool:
        """Brings a complete folder into the store; False where the run is there already, and the folder is dropped."""
        target = self.run_folder(key)
        try:
            folder.rename(target)
        except OSError:
            if not self.is_done(key):
                raise
            shutil.rmtree(folder, ignore_errors=True)
            return False
        (self.root / "failed" / f"{key}.json").unlink(missing_ok=True)
        return True

    def set_aside(self, key: str) -> Path:
        """Takes a damaged run out of the way, without deleting it, so that it is computed again."""
        place = self.root / "damaged" / f"{key}-{uuid.uuid4().hex[:6]}"
        place.parent.mkdir(exist_ok=True)
        self.run_folder(key).rename(place)
        return place

    def note_failure(self, key: str, error: str) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(self.root / "failed" / f"{key}.json", {"error": error, "when": when})

    def failure(self, key: str) -> str | None:
        path = self.root / "failed" / f"{key}.json"
        if not path.is_file():
            return None
        try:
            return str(read_json(path)["error"])
        except (ValueError, KeyError, TypeError):
            return f"{path} cannot be read"

    def state(self, key: str) -> State:
        if self.is_done(key):
            return "done"
        if self.is_running(key):
            return "running"
        if self.failure(key) is not None:
            return "failed"
        return "begun" if self.work_folder(key).is_dir() else "open"

    def note_plan(self, rows: Sequence[Row], *, title: str, notes: Sequence[str], extra: Mapping[str, Any]) -> None:
        """Remembers which runs were asked for; the same question again is remembered once."""
        content: dict[str, Any] = {
            "table": rows[0].table,
            "profile": rows[0].profile,
            "title": title,
            "notes": list(notes),
            "rows": [row.as_dict() for row in rows],
            **extra,
            "asked": _moment(time.time()),
        }
        identity = hashlib.sha256(canonical_json([row.as_dict() for row in rows]).encode()).hexdigest()[:12]
        write_json(self.root / "plans" / f"{rows[0].table}-{rows[0].profile}-{identity}.json", content)

    def plan_paths(self) -> list[Path]:
        return sorted((self.root / "plans").glob("*.json"))

    def read_plan(self, path: Path) -> dict[str, Any]:
        content = read_json(path)
        complaint = what_is_wrong_with_plan(content)
        if complaint is not None:
            raise ValueError(
                f"{path} is not a plan of runs: {complaint}. Delete it; the command that made it makes it again."
            )
        plan: dict[str, Any] = content
        plan.setdefault("asked", _moment(path.stat().st_mtime))
        return plan

    def plans(self) -> list[dict[str, Any]]:
        """Every plan, oldest first; one that cannot be read is a ValueError that names its file."""
        return in_order(self.read_plan(path) for path in self.plan_paths())


def in_order(plans: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Oldest first, by what they say themselves: a copy, or a clone of a repository, has other times of files."""
    return sorted(plans, key=lambda plan: plan["asked"])


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def write_spec(folder: Path, spec: RunSpec) -> None:
    write_json(folder / SPEC_FILE, {"key": spec.key, **spec.model_dump()})


def _without_key(content: Any) -> Any:
    return {name: value for name, value in content.items() if name != "key"} if isinstance(content, dict) else content
