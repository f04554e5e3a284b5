"""The readers of grids: tables, profiles, and what a report reads of a store."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from harness import Read, Reader

from esupcon.experiments.execution import execute
from esupcon.experiments.plan import make_plan
from esupcon.experiments.profile import read_profile
from esupcon.experiments.spec import Row, RunSpec
from esupcon.experiments.status import status_of
from esupcon.experiments.store import Store
from esupcon.files import write_sealed_json
from esupcon.report.content import read as read_content
from esupcon.report.figures import sections
from esupcon.report.write import FORMATS, json_block, render
from esupcon.spec import TrainSpec
from esupcon.training.result import training_seconds

PLAN = "plan.json"


def grid_readers() -> Iterator[tuple[str, Reader]]:
    yield "table", Reader(lambda: _shipped("tables"), _read_table, kind="table")
    yield "profile", Reader(lambda: _shipped("profiles"), _read_own_profile, kind="profile")
    yield "plan", Reader(_stored(PLAN), _report_with(PLAN))
    yield "stored-spec", Reader(_stored("spec.json"), _report_with("spec.json"))
    # Its classes and its batch size are put together with what these hold.
    beside = ("timing.jsonl", "predictions.npz", "embedding.npz")
    yield "stored-result", Reader(_stored("result.json"), _report_with("result.json", beside=beside, seal=True))
    yield "history", Reader(_stored("history.jsonl"), _drawn_with("history.jsonl"))
    yield "timing", Reader(_stored("timing.jsonl"), _timed)
    yield "stored-predictions", Reader(_stored("predictions.npz"), _drawn_with("predictions.npz"), essence=str)
    yield "embedding", Reader(_stored("embedding.npz"), _drawn_with("embedding.npz"), essence=str)
    yield "failure", Reader(lambda: [json.dumps({"error": "no", "when": "now"}).encode()], _report_with_failure)


def _shipped(kind: str) -> list[bytes]:
    folder = resources.files("esupcon.experiments").joinpath(kind)
    return [entry.read_bytes() for entry in folder.iterdir() if entry.name.endswith(".toml")]


def _read_table(folder: Path, content: bytes) -> object:
    (folder / "t.toml").write_bytes(content)
    return make_plan(str(folder / "t.toml"), read_profile("smoke"))


def _read_own_profile(folder: Path, content: bytes) -> object:
    (folder / "p.toml").write_bytes(content)
    return make_plan("demo", read_profile(str(folder / "p.toml")))


@cache
def _example() -> Path:
    """A store with one run, made once a process."""
    home = Path(tempfile.mkdtemp(prefix="esupcon-fuzz-"))
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    x = rng.integers(0, 255, (60, 4, 4, 1)).astype(np.uint8)
    np.savez(home / "few.npz", x_train=x[:36], y_train=y[:36], x_test=x[36:], y_test=y[36:])
    train = TrainSpec(method="esupcon", encoder="mlp-8x1", epochs=2, batch_size=18, precision="32")
    row = Row("small", "own", "few", "full", "esupcon", 0, RunSpec(dataset=str(home / "few.npz"), train=train))
    store = Store(home / "store")
    store.create()
    execute(
        row.spec,
        store.work_folder(row.key),
        data_dir=None,
        keep_model=False,
        command="fuzz",
        should_stop=lambda: False,
        log=lambda line: None,
    )
    store.finish(row.key, store.work_folder(row.key))
    about = {"paper": "", "measure": "accuracy", "baseline": "ce", "command": "fuzz"}
    store.note_plan([row], title="Small", notes=[], extra=about)
    return store.root


@cache
def _place(store: Path, name: str) -> Path:
    """A file of the store's one run, or its one plan."""
    return next(store.glob("plans/*.json" if name == PLAN else f"runs/*/{name}"))


def _stored(name: str) -> Any:
    return lambda: [_place(_example(), name).read_bytes()]


def _copy_of_example(folder: Path, names: Sequence[str]) -> Path:
    """A store with these files of the example: no time goes into drawing others."""
    store = folder / "store"
    run = _place(_example(), "spec.json").parent.name
    for kind in (f"runs/{run}", "failed", "plans"):
        (store / kind).mkdir(parents=True)
    for name in names:
        original = _place(_example(), name)
        copy = store / original.relative_to(_example())
        try:
            os.link(original, copy)
        except OSError:  # the two lie on different disks
            shutil.copyfile(original, copy)
    return store


def _report_with(name: str, *, beside: Sequence[str] = (), seal: bool = False) -> Read:
    """Status and report of a store in which one file is the given one; sealed, it is believed to be whole."""
    others = [one for one in (PLAN, "spec.json", "result.json", *beside) if one != name]

    def read(folder: Path, content: bytes) -> object:
        store = _copy_of_example(folder, others)
        path = store / _place(_example(), name).relative_to(_example())
        path.write_bytes(content)
        if seal and not _sealed(path, content):
            raise ValueError(f"{path} holds no object")
        return _status_and_report(store, content)

    return read


def _drawn_with(name: str) -> Read:
    """Read the figures of a run of which this file is the given one; what is damaged must be named as a problem."""

    def read(folder: Path, content: bytes) -> str:
        store = _copy_of_example(folder, (PLAN, "spec.json", "result.json"))
        path = store / _place(_example(), name).relative_to(_example())
        path.write_bytes(content)
        found = read_content(store, (), "fuzz")
        drawn = {one.key: [vars(card) for option in one.options for card in option.cards] for one in sections(found)}
        text = json_block(drawn)
        for problem in found.problems:
            raise ValueError(problem)
        return text

    return read


def _timed(folder: Path, content: bytes) -> object:
    drawn = _drawn_with("timing.jsonl")(folder, content)
    seconds = training_seconds(next(folder.glob("store/runs/*")))
    if not 0 <= seconds < math.inf:
        raise AssertionError(f"a training of {seconds} seconds")
    return drawn, seconds


def _sealed(path: Path, content: bytes) -> bool:
    """A forger seals what they write: what it says is then all that stands between it and the code."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    value.pop("sha256_of_the_rest", None)
    write_sealed_json(path, value)
    return True


def _report_with_failure(folder: Path, content: bytes) -> object:
    """The one run is not there; the last try of it has failed."""
    store = _copy_of_example(folder, [PLAN])
    run = next((store / "runs").iterdir())
    run.rmdir()
    (store / "failed" / f"{run.name}.json").write_bytes(content)
    return _status_and_report(store, content)


def _status_and_report(store: Path, content: bytes) -> str:
    """The report in one of its formats, which the content decides: each gets its share of the cases."""
    status_of(Store(store))
    found = read_content(store, (), "fuzz")
    # The library of plots is five megabytes of every page, and no part of what is read here.
    with mock.patch("plotly.offline.get_plotlyjs", return_value=""):
        return render(found, FORMATS[zlib.crc32(content) % len(FORMATS)])
