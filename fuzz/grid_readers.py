"""The readers of grids: tables, profiles, and what a report reads of a store."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from esupcon.engine import TrainSpec
from esupcon.experiments.execution import execute
from esupcon.experiments.plan import make_plan
from esupcon.experiments.profile import read_profile
from esupcon.experiments.spec import Row, RunSpec
from esupcon.experiments.status import status_of
from esupcon.experiments.store import Store
from esupcon.files import write_sealed_json
from esupcon.report.build import render
from esupcon.report.content import read_content

Seeds = Callable[[], list[bytes]]
Read = Callable[[Path, bytes], object]


def grid_readers() -> Iterator[tuple[str, Seeds, Read]]:
    yield "table", lambda: _shipped("tables"), _read_table
    yield "profile", lambda: _shipped("profiles"), _read_own_profile
    yield "plan", lambda: [_stored("plans")], _report_with("plans")
    yield "stored-spec", lambda: [_stored("spec.json")], _report_with("spec.json")
    yield "stored-result", lambda: [_stored("result.json")], _report_with("result.json", seal=True)
    yield "history", lambda: [_stored("history.jsonl")], _report_with("history.jsonl")
    yield "embedding", lambda: [_stored("embedding.npz")], _report_with("embedding.npz")


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


def _place(store: Path, name: str) -> Path:
    """A file of the store's one run, or its one plan."""
    pattern = "plans/*.json" if name == "plans" else f"runs/*/{name}"
    return next(store.glob(pattern))


def _stored(name: str) -> bytes:
    return _place(_example(), name).read_bytes()


def _report_with(name: str, *, seal: bool = False) -> Read:
    """Status and report of a store in which one file is the given one; sealed, it is believed to be whole."""

    def read(folder: Path, content: bytes) -> object:
        shutil.copytree(_example(), folder / "store", copy_function=os.link)
        path = _place(folder / "store", name)
        path.unlink()  # a link: the example keeps its own
        path.write_bytes(content)
        if seal:
            value = json.loads(content)
            if not isinstance(value, dict):
                raise ValueError("no object")
            value.pop("sha256_of_the_rest", None)
            write_sealed_json(path, value)
        status_of(Store(folder / "store"))
        found = read_content(folder / "store", (), "fuzz")
        return [render(found, form) for form in ("markdown", "csv", "latex", "html")]

    return read
