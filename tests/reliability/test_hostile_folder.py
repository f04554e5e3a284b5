"""No code from the current folder, the data folder or the output folder is executed (SECURITY.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from warm import COMMAND

from tiny_images import write_folder

pytestmark = pytest.mark.reliability

#: Modules that Python, torch, Pillow or a worker might import.
NAMES = ("numpy", "torch", "esupcon", "sitecustomize", "usercustomize", "conftest", "typing", "json", "encodings")
NAMES += ("_bootlocale", "PIL", "pyarrow", "timm", "filelock", "matplotlib", "torchvision")
QUICK = ("--encoder", "mlp-8x1", "--epochs", "1", "--batch-size", "8", "--image-size", "8")


def poison(folder: Path, marker: Path, *, packages: bool = True) -> None:
    """Write modules that leave a marker when they are imported, in every form that Python takes."""
    folder.mkdir(parents=True, exist_ok=True)
    code = f"open({str(marker)!r}, 'a').write(__file__ + chr(10))\nraise SystemExit('executed')\n"
    for name in NAMES:
        (folder / f"{name}.py").write_text(code)
    for name in ("torch", "numpy") if packages else ():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "__init__.py").write_text(code)
    (folder / "esupcon.pth").write_text(f"import os; open({str(marker)!r}, 'a').write('pth')\n")
    (folder / "matplotlibrc").write_text("text.usetex: True\nbackend: module://numpy\n")
    (folder / "pyvenv.cfg").write_text("home = .\n")
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '-p conftest'\n")


Run = Callable[..., None]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """Return a poisoned folder, and a function that runs the installed command in it with a cold cache."""
    if not COMMAND.exists():
        pytest.skip("the command is not installed beside this Python: make setup")
    root = tmp_path_factory.mktemp("hostile")
    marker = root / "executed"
    photos = write_folder(root / "here" / "photos", n_each=6)
    poison(root / "here", marker)
    poison(root / "here" / "out", marker)
    poison(photos, marker, packages=False)  # a folder would be a class without images
    poison(photos / "ne", marker)

    (root / "bin").mkdir()
    (root / "bin" / "latex").write_text(f"#!/bin/sh\necho latex >> '{marker}'\n")  # a matplotlibrc can ask for it
    (root / "bin" / "latex").chmod(0o755)

    def run(*words: object) -> None:
        cache = root / f"cache-{len(list(root.iterdir()))}"
        environment = {k: v for k, v in os.environ.items() if k not in ("ESUPCON_DATA", "PYTHONSAFEPATH")}
        environment |= {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", "HOME": str(root / "home")}
        environment["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [COMMAND, *map(str, words)], capture_output=True, text=True, check=False, cwd=root / "here", env=environment
        )
        assert not marker.exists(), f"{words}: executed {marker.read_text()}"
        assert done.returncode == 0, done.stderr

    return root / "here", run


def test_the_poison_works(tmp_path: Path) -> None:
    """`python -m` imports from the current folder before any code of ours runs; SECURITY.md warns about it."""
    poison(tmp_path, tmp_path / "executed")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    words = [sys.executable, "-m", "esupcon"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False, env=environment)
    assert done.returncode != 0
    assert (tmp_path / "executed").exists()


def test_no_code_of_a_folder_is_executed(hostile: tuple[Path, Run]) -> None:
    """Takes over 10 s: eight commands start in processes of their own, and some of them start workers."""
    here, run = hostile
    run("train", "photos", "--out", "out/run", *QUICK)
    poison(here / "out" / "run", here.parent / "executed")
    run("calibrate", "out/run", "photos", "--on", "train")
    poison(here / "out" / "run" / "model", here.parent / "executed")
    run("predict", "out/run", "photos")
    run("evaluate", "out/run", "photos", "--plot", "out/plot.png")
    run("export", "out/run", "--out", "out/m.pt2", "--format", "torch")
    grid = ("reproduce", "full", "--profile", "smoke", "--method", "ce", "--seeds", "1", "--store", "out/store")
    grid = (*grid, "--set", "epochs=1", "--set", "encoder=mlp-8x1")
    run(*grid)
    poison(here / "out" / "store", here.parent / "executed")
    run("status", "out/store")
    run("report", "out/store", "--out", "out/report.html")
    shutil.rmtree(here / "out" / "store")


def test_no_code_is_executed_by_probes_and_further_processes(hostile: tuple[Path, Run]) -> None:
    here, run = hostile
    (here / "inside").mkdir()
    run("train", "./photos", "--out", "inside/run", *QUICK, "--precision", "auto")
    run("train", "./photos", "--out", "inside/two", *QUICK, "--devices", "2", "--accelerator", "cpu")


def test_no_code_is_executed_by_the_demo(hostile: tuple[Path, Run]) -> None:
    """Takes over 10 s: the demo trains nine small models."""
    hostile[1]("demo", "--out", "out/demo")
