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

from esupcon._io import sealed, write_sealed_json
from esupcon.experiments.executors import Task
from esupcon.experiments.grid import resolve, status
from esupcon.experiments.plan import Plan, Row, make_plan
from esupcon.experiments.store import Store, export_study
from esupcon.experiments.worker import compute
from esupcon.report.content import read as read_content
from esupcon.report.figures import sections
from esupcon.report.write import FORMATS, json_block, render
from esupcon.spec import RunSpec, TrainSpec
from esupcon.training.result import training_seconds

PLAN = "plan.json"


def grid_readers() -> Iterator[tuple[str, Reader]]:
    yield "table", Reader(lambda: _shipped("tables"), _read_table, kind="table")
    yield "profile", Reader(lambda: _shipped("profiles"), _read_own_profile, kind="profile")
    yield "plan", Reader(_stored(PLAN), _report_with(PLAN))
    # Its classes and its batch size are put together with what these hold.
    beside = ("timing.jsonl", "predictions.npz", "embedding.npz")
    yield "stored-result", Reader(_stored("result.json"), _report_with("result.json", beside=beside, seal=True))
    yield "history", Reader(_stored("history.jsonl"), _drawn_with("history.jsonl"))
    yield "timing", Reader(_stored("timing.jsonl"), _timed)
    yield "stored-predictions", Reader(_stored("predictions.npz"), _drawn_with("predictions.npz"), essence=str)
    yield "embedding", Reader(_stored("embedding.npz"), _drawn_with("embedding.npz"), essence=str)
    yield "study", Reader(_study_line, _read_study)
    yield "failure", Reader(lambda: [json.dumps({"error": "no", "when": "now"}).encode()], _report_with_failure)


def _shipped(kind: str) -> list[bytes]:
    folder = resources.files("esupcon.experiments").joinpath(kind)
    return [entry.read_bytes() for entry in folder.iterdir() if entry.name.endswith(".toml")]


def _read_table(folder: Path, content: bytes) -> object:
    (folder / "t.toml").write_bytes(content)
    return make_plan(str(folder / "t.toml"), "smoke")


def _read_own_profile(folder: Path, content: bytes) -> object:
    (folder / "p.toml").write_bytes(content)
    return make_plan("demo", str(folder / "p.toml"))


@cache
def _example() -> Path:
    """A store with one run, made once a process."""
    home = Path(tempfile.mkdtemp(prefix="esupcon-fuzz-"))
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    x = rng.integers(0, 255, (60, 4, 4, 1)).astype(np.uint8)
    np.savez(home / "few.npz", x_train=x[:36], y_train=y[:36], x_test=x[36:], y_test=y[36:])
    train = TrainSpec(method="esupcon", encoder="mlp-8x1", epochs=2, batch_size=18, precision="32", threads=1)
    spec = RunSpec(source=str(home / "few.npz"), train=train)
    row = Row(table="small", profile="own", dataset="few", setting="full", method="esupcon", seed=0, spec=spec)
    ((plan,), _) = resolve([Plan(table="small", profile="own", title="Small", rows=(row,))])
    store = Store(home / "store")
    store.create()
    task = Task(spec=plan.rows[0].spec, store=str(store.root))
    assert compute(task, lambda: False, lambda event: None).kind == "finished"
    store.write_plan(plan)
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
    run = _place(_example(), "result.json").parent.name
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
    others = [one for one in (PLAN, "result.json", *beside) if one != name]

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
        store = _copy_of_example(folder, (PLAN, "result.json"))
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


@cache
def _study() -> tuple[bytes, bytes]:
    """Return the lines of the plan and of the run of the example."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.jsonl"
        export_study(Store(_example()), path)
        plan, run = path.read_bytes().splitlines()
        return plan, run


def _study_line() -> list[bytes]:
    return [_study()[1]]


def _read_study(folder: Path, content: bytes) -> object:
    """Read a study with one changed line, which its forger has sealed."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        value.pop("sha256_of_the_rest", None)
        content = json.dumps(sealed(value)).encode()
    path = folder / "study.jsonl"
    path.write_bytes(_study()[0] + b"\n" + content)
    found = read_content(path, (), "fuzz")
    for problem in found.problems:
        raise ValueError(problem)
    with mock.patch("plotly.offline.get_plotlyjs", return_value=""):
        return render(found, FORMATS[zlib.crc32(content) % len(FORMATS)])


def _report_with_failure(folder: Path, content: bytes) -> object:
    """The one run is not there; the last try of it has failed."""
    store = _copy_of_example(folder, [PLAN])
    run = next((store / "runs").iterdir())
    run.rmdir()
    (store / "failed" / f"{run.name}.json").write_bytes(content)
    return _status_and_report(store, content)


def _status_and_report(store: Path, content: bytes) -> str:
    """The report in one of its formats, which the content decides: each gets its share of the cases."""
    _, problems = status(Store(store))
    for problem in problems:
        raise ValueError(problem)
    found = read_content(store, (), "fuzz")
    # The library of plots is five megabytes of every page, and no part of what is read here.
    with mock.patch("plotly.offline.get_plotlyjs", return_value=""):
        return render(found, FORMATS[zlib.crc32(content) % len(FORMATS)])
