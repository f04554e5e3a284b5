"""Fixtures of many tests. Models, runs and stores are made once per session, shared by all workers of pytest-xdist.

Tests must not change them; `copy_of` gives a test its own copy.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from filelock import FileLock

from esupcon.data.dataset import _REGISTERED
from esupcon.experiments.store import Store
from esupcon.methods import METHODS
from esupcon.training.objective import LOSSES
from in_this_process import InThisProcess
from tiny_images import write_npz

#: Options of `corners_run`.
CORNERS_OPTIONS = (
    *("--encoder", "mlp-16x1", "--batch-size", "27", "--precision", "32", "--epochs", "12", "--noise-rate", "0.1"),
    *("--validation-fraction", "0.1"),
)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder `name` of this session; the first process that asks for it fills it with `make(folder)`."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    root = shared / "assets"
    root.mkdir(exist_ok=True)
    with FileLock(root / f"{name}.lock"):
        if not (root / name).exists():
            unfinished = root / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(root / name)
    return root / name


def copy_of(folder: Path, target: Path) -> Path:
    """Return a copy that a test may change."""
    return Path(shutil.copytree(folder, target))


class Printed(NamedTuple):
    """What a command printed."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def esupcon(capsys: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    """Return a function that runs a command in this process; its exit code must be `code`."""
    from esupcon.cli import main

    def run(*words: object, code: int = 0) -> Printed:
        capsys.readouterr()
        found = main([str(word) for word in words])
        printed = Printed(*capsys.readouterr())
        assert found == code, printed.err
        return printed

    return run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store without runs."""
    made = Store(tmp_path / "store")
    made.create()
    return made


@pytest.fixture
def registers() -> Iterator[None]:
    """Forget afterwards what a test has registered, and the modules of tables that did so."""
    with patch.dict(METHODS), patch.dict(LOSSES), patch.dict(_REGISTERED):
        yield
    for name in [name for name in sys.modules if name.startswith("esupcon_plugin_")]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def corners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a .npz of 90 training and 45 test images in three classes (`tiny_images`)."""
    return made_once(tmp_path_factory, "corners", lambda folder: write_npz(folder / "corners.npz")) / "corners.npz"


@pytest.fixture(scope="session")
def corners_run(corners: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished `esupcon train` on `corners`."""

    def train(folder: Path) -> None:
        from esupcon.cli import main

        assert main(["train", str(corners), "--out", str(folder / "run"), *CORNERS_OPTIONS]) == 0

    return made_once(tmp_path_factory, "corners_run", train) / "run"


@pytest.fixture
def trained(corners_run: Path, tmp_path: Path) -> Path:
    """Return a copy of `corners_run`, which a test may change."""
    return copy_of(corners_run, tmp_path / "run")


@pytest.fixture(scope="session")
def digits_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of three finished runs on digits: ce, supcon_tt and esupcon, seed 0, models kept."""

    def compute(folder: Path) -> None:
        from esupcon.cli import main

        words = ["reproduce", "full", "--profile", "smoke", "--method", "ce,supcon_tt,esupcon", "--seeds", "1"]
        words += ["--set", "epochs=2", "--set", "encoder=mlp-16x1", "--keep-models"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("esupcon.cli.grids.LocalExecutor", InThisProcess)
            assert main([*words, "--store", str(folder / "store")]) == 0

    return made_once(tmp_path_factory, "digits_store", compute) / "store"


@pytest.fixture(scope="session")
def table_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a saved estimator that was fitted on a table (iris)."""

    def fit(folder: Path) -> None:
        from sklearn.datasets import load_iris

        from esupcon import ContrastiveClassifier

        X, y = load_iris(return_X_y=True)
        ContrastiveClassifier(epochs=20, random_state=0).fit(X, y).save(folder / "model")

    return made_once(tmp_path_factory, "table_model", fit) / "model"


@pytest.fixture(scope="session")
def digits_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a saved estimator that was fitted on 300 digits."""

    def fit(folder: Path) -> None:
        from sklearn.datasets import load_digits

        from esupcon import ContrastiveClassifier

        X, y = load_digits(return_X_y=True)
        classifier = ContrastiveClassifier(encoder="mlp-32x1", epochs=10, random_state=0)
        classifier.fit(X[:300].reshape(-1, 8, 8), y[:300]).save(folder / "model")

    return made_once(tmp_path_factory, "digits_model", fit) / "model"
