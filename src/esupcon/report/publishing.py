"""A copy of a store that is small enough to be committed beside a paper or a README."""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from esupcon.experiments.store import RESULT_FILE, SPEC_FILE, Store
from esupcon.files import write_json
from esupcon.report.kept_calibration import keep_calibration
from esupcon.report.reading import collect

_KEPT_FILES = (SPEC_FILE, RESULT_FILE, "history.jsonl", "timing.jsonl")


@dataclass(frozen=True)
class Published:
    n_added: int
    n_there: int
    complaints: list[str]


def publish(source: Path, out: Path) -> Published:
    """Copies specifications, results, histories and plans; of the predictions it keeps the figures of calibration.

    Weights, predictions, embeddings and checkpoints stay behind, and a report of the copy shows all but the maps of
    embeddings and the confusions. Runs that `out` holds already stay as they are, so that a study can be published as
    it grows; a run of the same key with another result is an error. Damaged runs are left out and named.
    """
    collected = collect(source)
    target = Store(out)
    if out.exists() and not (out / "runs").is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is neither empty nor a store of runs. Choose another folder.")
    for name in ("runs", "plans"):
        (out / name).mkdir(parents=True, exist_ok=True)
    added = there = 0
    for key, run in collected.runs.items():
        if target.is_done(key):
            if not filecmp.cmp(run.folder / RESULT_FILE, target.run_folder(key) / RESULT_FILE, shallow=False):
                raise ValueError(f"{target.run_folder(key)} holds another result of the same run. Remove one of them.")
            there += 1
            continue
        with tempfile.TemporaryDirectory(dir=out, prefix=".publishing-") as made:
            folder = Path(made) / key
            folder.mkdir()
            for name in _KEPT_FILES:
                if (run.folder / name).is_file():
                    shutil.copyfile(run.folder / name, folder / name)
            keep_calibration(run.folder, folder)
            target.finish(key, folder)
        added += 1
    for path in Store(source).plan_paths():
        with suppress(ValueError):  # `collect` has complained of those that cannot be read
            write_json(out / "plans" / path.name, Store(source).read_plan(path))
    return Published(added, there, collected.complaints)
