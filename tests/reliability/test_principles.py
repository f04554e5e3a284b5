"""The principles of safe handling, each tried on cases of every kind: one table of cases per principle.

The sixth, that derivatives are right or refused, is in tests/test_functional_derivatives.py.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checks import MEGABYTE, TRAIN, assert_one_clear_line, contents, small_grid
from warm import Warm

from esupcon._io import file_digest, read_sealed_json, write_sealed_json
from esupcon.data import source_digest
from esupcon.experiments.store import Store, export_study
from esupcon.spec import TrainSpec
from esupcon.training import TrainData, fit
from tiny_images import write_folder

pytestmark = pytest.mark.reliability


def cases(table: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", table.values(), ids=table.keys())


# --- 1. No code from files (folders: test_hostile_folder.py) ---------------------------------------------------------


class Payload:
    """Create a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.proof,)


def seal_again(model: Path) -> None:
    """Write the digest of changed weights into the config, as a forger would."""
    values = read_sealed_json(model / "config.json")
    values["files"]["model.safetensors"] = file_digest(model / "model.safetensors")
    write_sealed_json(model / "config.json", values)


# The file that is a pickle, and the command that reads it.
PICKLES = {
    "weights": ("run/model/model.safetensors", ("predict", "{root}/run", "x.png")),
    "config": ("run/model/config.json", ("predict", "{root}/run", "x.png")),
    "csv": ("x.csv", ("train", "{root}/x.csv", "--out", "{root}/o")),
    "npz": ("x.npz", ("train", "{root}/x.npz", "--out", "{root}/o")),
    "parquet": ("x.parquet", ("train", "{root}/x.parquet", "--out", "{root}/o")),
    "table": ("x.toml", ("reproduce", "{root}/x.toml", "--profile", "smoke", "--store", "{root}/o")),
    "result": ("run/result.json", ("train", "digits", "--out", "{root}/run")),
}


@cases(PICKLES)
def test_no_code_of_a_file_is_executed(warm: Warm, run: Path, tmp_path: Path, case: Any) -> None:
    name, words = case
    payload = Payload(tmp_path / "executed")
    (tmp_path / name).write_bytes(pickle.dumps(payload))
    if name.endswith("safetensors"):
        seal_again(run / "model")
    for module in ("modeling.py", "__init__.py", "sitecustomize.py"):
        (run / "model" / module).write_text(f"open({str(payload.proof)!r}, 'w')")
    assert_one_clear_line(warm.esupcon(*(word.format(root=tmp_path) for word in words)))
    assert not payload.proof.exists()
    pickle.loads(pickle.dumps(payload))
    assert payload.proof.exists(), "the payload works"


def test_hostile_checkpoint_is_skipped(warm: Warm, corners: Path, tmp_path: Path) -> None:
    """The name has the checksum of the file; still only tensors are read from it."""
    words = ("train", corners, "--out", tmp_path / "run", *TRAIN[:-1], "60", "--checkpoint-seconds", "0")
    stopped = warm.esupcon(*words, kill_after=0, send=signal.SIGINT, once=tmp_path / "run" / "history.jsonl")
    assert stopped.code == 130, stopped.err
    for path in (tmp_path / "run").glob("checkpoint-*.pt"):
        torch.save({"network": Payload(tmp_path / "executed")}, path)
        path.rename(path.with_name(f"{path.stem[:-16]}{file_digest(path)[:16]}.pt"))
    ended = warm.esupcon(*words)
    assert ended.code == 0, ended.err
    assert "cannot be read" in ended.err
    assert not (tmp_path / "executed").exists()


# What a forger writes into a checkpoint whose name has the right checksum.
CHECKPOINTS = {
    "an empty optimiser": "state['optimizer'] = {}",
    "momentum of another shape": "state['optimizer']['state'] = {0: {'momentum_buffer': torch.zeros(1)}}",
    "momentum of no parameter": "state['optimizer']['state'] = {99: {'momentum_buffer': torch.zeros(1)}}",
    "a position in words": "state['position']['stage'] = 'x'",
    "a negative position": "state['position']['epoch'] = -3",
    "weights of another network": "state['best_state'] = {'a': torch.zeros(1)}",
    "no monitor": "state['monitor'] = None",
}
FORGE = """
import hashlib, io, sys, torch
from pathlib import Path
from esupcon.cli import main
files = sorted(Path({folder!r}).glob("checkpoint-*.pt"))
state = torch.load(files[-1], weights_only=True)
{change}
content = io.BytesIO()
torch.save(state, content)
for file in files:
    file.unlink()
digest = hashlib.sha256(content.getvalue()).hexdigest()[:16]
Path(f"{{str(files[-1])[:-19]}}{{digest}}.pt").write_bytes(content.getvalue())
sys.exit(main({words!r}))
"""


def test_forged_checkpoint_gives_one_line(warm: Warm, corners: Path, tmp_path: Path) -> None:
    words = ["train", str(corners), "--out", str(tmp_path / "run"), *TRAIN[:-1], "60", "--checkpoint-seconds", "0"]
    stopped = warm.esupcon(*words, kill_after=0, send=signal.SIGINT, once=tmp_path / "run" / "history.jsonl")
    assert stopped.code == 130, stopped.err
    for name, change in CHECKPOINTS.items():
        folder = str(shutil.copytree(tmp_path / "run", tmp_path / name))
        words[3] = folder
        ended = warm.script(FORGE.format(folder=folder, change=change, words=words))
        assert_one_clear_line(ended, folder, "cannot be continued by this version")


# --- 2. Only our own files are replaced or removed -------------------------------------------------------------------


def foreign(*names: str) -> Callable[[Path], None]:
    """Write files of somebody else."""

    def write(out: Path) -> None:
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text("mine")

    return write


def linked(name: str) -> Callable[[Path], None]:
    """Put a link to a file of somebody else where ours would be."""

    def link(out: Path) -> None:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).unlink(missing_ok=True)
        (out / name).symlink_to(out.parent / "mine.txt")

    return link


TRAINED = ("train", "{corners}", "--out", "{out}", *TRAIN)
GRID = (
    *("reproduce", "full", "--profile", "smoke", "--method", "ce", "--seeds", "1"),
    *("--store", "{out}", "--workers", "1"),
)
# What is there, the command, and its exit code.
OTHERS = {
    "notes under --overwrite": (
        foreign("notes.txt", ".hidden.deadbeef", "checkpoints", ".model.rc", "model.bak/config.json"),
        (*TRAINED, "--overwrite"),
        0,
    ),
    "run.json under --overwrite": (foreign("run.json"), (*TRAINED, "--overwrite"), 2),
    "a model of another library": (foreign("model/config.json"), TRAINED, 2),
    "a file named like the folder of the model": (foreign("model"), TRAINED, 2),
    "files with names of ours": (foreign("predictions.npz", "history.jsonl", "checkpoint-1.pt"), TRAINED, 2),
    "a link as history": (linked("history.jsonl"), TRAINED, 2),
    "a link as manifest": (linked(".esupcon.json"), TRAINED, 2),
    "a file beside the weights": (foreign("model/notes.txt"), ("calibrate", "{out}", "{corners}", "--on", "all"), 2),
    "a folder of runs": (foreign("runs/notes.txt"), GRID, 2),
    "a report beside the runs of a demo": (foreign("report.html"), ("demo", "--out", "{out}"), 2),
    "a link as exported graph": (linked("m.pt2"), ("export", "{run}", "--out", "{out}/m.pt2", "--format", "torch"), 0),
}


@cases(OTHERS)
def test_only_files_of_ours_are_replaced(warm: Warm, run: Path, corners: Path, tmp_path: Path, case: Any) -> None:
    prepare, words, code = case
    out = run if words[0] == "calibrate" else tmp_path / "out"
    (tmp_path / "mine.txt").write_text("mine")
    out.mkdir(exist_ok=True)
    prepare(out)
    names = [path for path in out.rglob("*") if path.is_file() and path.read_bytes() == b"mine"]
    ended = warm.esupcon(*(word.format(out=out, run=run, corners=corners) for word in words))
    assert ended.code == code, ended.err
    if code:
        assert_one_clear_line(ended, out, names[0].relative_to(out).parts[0])
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert all(path.read_bytes() == b"mine" for path in names if path.name != "m.pt2")


def stored_key(store: Path) -> str:
    return next(path.name for path in (store / "runs").iterdir())


def begin_again(store: Path) -> Path:
    """Remove the result of the one run of a store, and return the folder where it is computed."""
    key = stored_key(store)
    shutil.rmtree(store / "runs" / key)
    return store / "work" / key


def link_model(root: Path) -> None:
    shutil.rmtree(root / "run" / "model")
    (root / "run" / "model").symlink_to(root / "theirs" / "model")


def link_work(root: Path) -> None:
    begin_again(root / "store").symlink_to(root / "theirs")


def link_log(root: Path) -> None:
    work = begin_again(root / "store")
    work.mkdir()
    (work / "log.txt").symlink_to(root / "theirs" / "result.json")


# What leads to the folder `theirs`, a finished run, and the command that would write there.
LINKED = {
    "train": (link_model, ("train", "{corners}", "--out", "{root}/run", *TRAIN, "--overwrite", "--seed", "1"), "model"),
    "calibrate": (link_model, ("calibrate", "{root}/run", "{corners}", "--on", "all"), "model"),
    "reproduce": (link_work, "grid", "work"),
    "the log of a worker": (link_log, "grid", "log.txt"),
}


@cases(LINKED)
def test_no_link_is_followed_for_writing(warm: Warm, run: Path, corners: Path, tmp_path: Path, case: Any) -> None:
    link, words, named = case
    shutil.copytree(run, tmp_path / "theirs")
    if words == "grid":
        words, _ = small_grid(tmp_path, corners, seeds=1, epochs=1)
        words = [*words, str(tmp_path / "store"), "--workers", "1", "--method", "ce"]
        assert warm.esupcon(*words).code == 0
    link(tmp_path)
    before = contents(tmp_path / "theirs")
    ended = warm.esupcon(*(word.format(corners=corners, root=tmp_path) for word in words))
    assert ended.code == 2, ended.err
    assert "Traceback" not in ended.err and named in ended.err and "link" in ended.err
    assert contents(tmp_path / "theirs") == before


def test_overwriting_a_run_keeps_the_runs_of_a_store(
    warm: Warm, corners: Path, digits_store: Path, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(digits_store, tmp_path / "store"))
    before = contents(store / "runs")
    ended = warm.esupcon("train", corners, "--out", store, *TRAIN, "--overwrite")
    assert ended.code == 0, ended.err
    assert contents(store / "runs") == before


@pytest.mark.parametrize("name", ["notes.jsonl", "notes.md", "study.jsonl"])
def test_a_study_replaces_nothing_that_it_did_not_read(
    warm: Warm, digits_store: Path, tmp_path: Path, name: str
) -> None:
    """Neither a file of somebody else, nor a study of which a line is damaged; and nothing is trained before."""
    store, study = Path(shutil.copytree(digits_store, tmp_path / "store")), tmp_path / name
    study.write_text('{"my": "notes"}\n')
    if name == "study.jsonl":
        export_study(Store(store), study)
        study.write_text(study.read_text()[:-20] + "\n")
    before = study.read_text()
    shutil.rmtree(store / "runs" / stored_key(store))
    words = ("reproduce", "full", "--profile", "smoke", "--method", "ce,supcon_tt,esupcon", "--seeds", "1")
    assert_one_clear_line(warm.esupcon(*words, "--store", store, "--study", study), name)
    assert study.read_text() == before
    assert not list((store / "work").iterdir())


# --- 3. A key covers everything that decides the result --------------------------------------------------------------


def rename(before: str, after: str) -> Callable[[Path], object]:
    return lambda photos: (photos / before).rename(photos / after)


def swap(photos: Path) -> None:
    one, other = photos / "ne" / "0.png", photos / "nw" / "0.png"
    contents = one.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    one.write_bytes(contents[1])


# What happens to a folder of images, and whether these are other data.
CHANGES = {
    "files are touched": (lambda photos: [os.utime(path, (1, 1)) for path in photos.rglob("*.png")], False),
    "the folder is moved": (lambda photos: shutil.move(photos, photos.with_name("elsewhere")), False),
    "a hidden file is added": (lambda photos: (photos / "ne" / ".DS_Store").write_bytes(b"x"), False),
    "notes are added": (lambda photos: (photos / "ne" / "notes.txt").write_bytes(b"x"), False),
    "an image is added": (lambda photos: shutil.copy(photos / "ne" / "0.png", photos / "ne" / "9.png"), True),
    "two images change places": (swap, True),
    "a class has another name": (rename("se", "south-east"), True),
    "an image has another class": (rename("ne/0.png", "nw/8.png"), True),
    "an image is damaged": (lambda photos: (photos / "ne" / "0.png").write_bytes(b"x"), True),
}


@cases(CHANGES)
def test_the_digest_follows_the_content(tmp_path: Path, case: Any) -> None:
    change, differs = case
    photos = write_folder(tmp_path / "photos")
    before = source_digest(photos)
    change(photos)
    found = source_digest(photos if photos.exists() else tmp_path / "elsewhere")
    assert (found != before) == differs


# --- 4. What a file claims is bounded by what it holds ---------------------------------------------------------------


def png(width: int, height: int, *more: bytes) -> bytes:
    """Return an image of any size in a few bytes."""

    def chunk(kind_and_data: bytes) -> bytes:
        return struct.pack(">I", len(kind_and_data) - 4) + kind_and_data + struct.pack(">I", zlib.crc32(kind_and_data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR" + header, *more, b"IDAT" + zlib.compress(bytes(1000)), b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(chunk, chunks))


def npz_of_zeroes(claimed: int, real: int, kind: str = "|u1") -> bytes:
    """Return an array that claims `claimed` bytes and holds `real`, compressed a thousandfold."""
    shape = (claimed // 64, 8, 8)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x_train.npy", "w", force_zip64=True) as stream:
            np.lib.format.write_array_header_1_0(stream, {"descr": kind, "fortran_order": False, "shape": shape})
            for _ in range(real // MEGABYTE):
                stream.write(bytes(MEGABYTE))
        with archive.open("y_train.npy", "w") as stream:
            np.save(stream, np.zeros(2))
    return buffer.getvalue()


def rows_without_images() -> bytes:
    """Return a Parquet file of three million rows: a repeated value takes no space."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    n, buffer = 3_000_000, io.BytesIO()
    columns = {"image": pa.nulls(n, pa.binary()), "label": pa.DictionaryArray.from_arrays(np.zeros(n, np.int8), ["a"])}
    pyarrow.parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def safetensors(header: dict[str, Any] | None, size: int = 0) -> bytes:
    text = b"" if header is None else json.dumps(header).encode()
    return struct.pack("<Q", size or len(text)) + text + bytes(12)


TERABYTE = {"head.weight": {"dtype": "F32", "shape": [3, 1 << 38], "data_offsets": [0, 12 << 38]}}
SHORT = {"head.weight": {**TERABYTE["head.weight"], "data_offsets": [0, 12]}}
DEEP, PREDICT = b'{"a":' * 100_000, ("predict", "{root}/run", "x.png")
PREDICT_PHOTOS = ("predict", "{root}/run", "{root}/photos")
TRAIN_IN = ("train", "{file}", "--out", "{root}/o", *TRAIN)
IN_RUN = ("train", "{corners}", "--out", "{root}/run", *TRAIN)
# The file, its content, and the command that reads it. The first three are skipped and the rest is predicted.
CLAIMS: dict[str, Any] = {
    "3.6 gigapixels": ("photos/x.png", lambda: png(60_000, 60_000), PREDICT_PHOTOS),
    "a row of 2 gigapixels": ("photos/x.png", lambda: png(2**31 - 1, 1), PREDICT_PHOTOS),
    "a comment that swells": (
        "photos/x.png",
        lambda: png(8, 8, b"zTXtComment\0\0" + zlib.compress(bytes(64 * MEGABYTE))),
        PREDICT_PHOTOS,
    ),
    "an array of a petabyte": ("x.npz", lambda: npz_of_zeroes(1 << 50, MEGABYTE), TRAIN_IN),
    "an array that swells": ("x.npz", lambda: npz_of_zeroes(600 * MEGABYTE, 600 * MEGABYTE), TRAIN_IN),
    "text of a gigabyte each": ("x.npz", lambda: npz_of_zeroes(64, MEGABYTE, f"<U{1 << 28}"), TRAIN_IN),
    "a long label beside many short ones": (
        "x.csv",
        lambda: b"path,label\n" + b"x,a\n" * 20_000 + b"y," + b"b" * 100_000 + b"\n",
        TRAIN_IN,
    ),
    "rows without images": ("x.parquet", rows_without_images, TRAIN_IN),
    "weights of a terabyte": ("run/model/model.safetensors", lambda: safetensors(TERABYTE), PREDICT),
    "weights that overlap": ("run/model/model.safetensors", lambda: safetensors(SHORT), PREDICT),
    "a header of an exabyte": ("run/model/model.safetensors", lambda: safetensors(None, 1 << 60), PREDICT),
    "a nested config": ("run/model/config.json", lambda: DEEP, PREDICT),
    "a nested result": ("run/result.json", lambda: DEEP, IN_RUN),
    "a nested manifest": ("run/.esupcon.json", lambda: DEEP, IN_RUN),
    "a table of a billion runs": (
        "t.toml",
        lambda: (
            b'title = "x"\nmethods = ["ce"]\n[[columns]]\ndataset = "digits"\n[grid]\n'
            + b"".join(b"%s = [%s]\n" % (name, b", ".join(b"%d" % i for i in range(1, 1001))) for name in GRID_NAMES)
        ),
        ("reproduce", "{file}", "--profile", "smoke", "--dry-run"),
    ),
}
GRID_NAMES = (b"batch_size", b"epochs", b"projection_dim")


@cases(CLAIMS)
def test_claims_are_bounded_by_what_the_file_holds(
    warm: Warm, run: Path, corners: Path, tmp_path: Path, case: Any
) -> None:
    name, content, words = case
    if name.startswith("photos"):
        write_folder(tmp_path / "photos", n_each=1)
    (tmp_path / name).write_bytes(content())
    if name.endswith("safetensors"):
        seal_again(run / "model")
    filled = (word.format(file=tmp_path / name, root=tmp_path, corners=corners) for word in words)
    ended = warm.esupcon(*filled, more_memory=400 * MEGABYTE)
    if name.startswith("photos"):
        assert ended.code == 1, ended.err
        assert (ended.err.count("skipped: "), len(ended.out.splitlines())) == (1, 1 + 3)
    else:
        assert_one_clear_line(ended, (tmp_path / name).stem if name == "t.toml" else tmp_path)


# Files of ours, and the command that reads them.
READ = {
    "config": ("run/model/config.json", PREDICT, 2),
    "settings": ("run/run.json", IN_RUN, 2),
    "result": ("run/result.json", IN_RUN, 2),
    "checkpoint": ("run/checkpoint-1-{key}-0.pt", IN_RUN, 0),
    "plan": ("store/plans/{plan}", ("report", "{root}/store", "--format", "csv"), 1),
    "history": ("store/runs/{key}/history.jsonl", ("report", "{root}/store", "--format", "csv"), 0),
}


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/dev/zero"), os.mkfifo], ids=["endless", "pipe"])
@cases(READ)
def test_what_is_no_file_is_never_read(
    warm: Warm, run: Path, corners: Path, digits_store: Path, tmp_path: Path, make: Callable[[Path], None], case: Any
) -> None:
    name, words, code = case
    store = Path(shutil.copytree(digits_store, tmp_path / "store"))
    key = stored_key(store) if "store" in name else read_sealed_json(run / "run.json")["key"]
    path = tmp_path / name.format(key=key, plan=next((store / "plans").iterdir()).name)
    (run / "result.json").unlink()  # otherwise nothing else is read
    path.unlink(missing_ok=True)
    make(path)
    filled = (word.format(root=tmp_path, corners=corners) for word in words)
    ended = warm.esupcon(*filled, more_memory=400 * MEGABYTE, kill_after=120)
    is_refused_link = words is IN_RUN and path.is_symlink()
    assert ended.code == (2 if is_refused_link else code), ended.err
    assert "Traceback" not in ended.err
    if ended.code == 2:
        assert_one_clear_line(ended, path.name)


# --- 5. A model decides nothing but its predictions ------------------------------------------------------------------


def setting(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set one field of a config: `about.encoder`."""

    def change(values: dict[str, Any]) -> None:
        *parents, name = place.split(".")
        for parent in parents:
            values = values[parent]
        values[name] = value

    return change


FORGED = {
    "a path as encoder": setting("about.encoder", "../../../etc/passwd"),
    "code as encoder": setting("about.encoder", "__import__('os')"),
    "a network of terabytes": setting("about.encoder", "mlp-1000000x9"),
    "another network": setting("about.encoder", "mlp-17x1"),
    "images of a terabyte": setting("preprocessing.input_shape", [3, 10**6, 10**6]),
    "a deviation of zero": setting("preprocessing.std", [0.0]),
    "a folder of the cache": setting("preprocessing.cache_dir", "/tmp"),
    "a further file": setting("files", {"../../x": "0" * 64, "model.safetensors": "0" * 64}),
    "a temperature of zero": setting("calibration.temperature", 0),
    "a name of a megabyte": setting("classes", ["a" * 2**20, "b", "c"]),
    "a class of numbers twice": setting("classes", [1, 1.0, True]),
    "a projection without end": setting("projection_dim", 2**40),
    "a source of data": setting("about.data.source", "/etc"),
    "settings 900 levels deep": setting("about.settings.x", json.loads("[" * 900 + "]" * 900)),
    "a later version": setting("schema_version", 99),
}


@cases(FORGED)
def test_a_forged_model_gives_one_line(warm: Warm, run: Path, tmp_path: Path, case: Any) -> None:
    values = read_sealed_json(run / "model" / "config.json")
    case(values)
    write_sealed_json(run / "model" / "config.json", values)
    before = contents(tmp_path)
    ended = warm.esupcon("predict", run, "x.png", more_memory=400 * MEGABYTE)
    assert_one_clear_line(ended, run)
    assert len(ended.err.splitlines()) == 1 and len(ended.err) < 1000
    assert contents(tmp_path) == before


# --- 7. Signals and processes ----------------------------------------------------------------------------------------

WHEN_READ = """
import os, sys
from esupcon.cli import main
def hook(event, arguments):
    if event == "open" and str(arguments[0]).endswith({name!r}) and not sent:
        sent.append(os.kill(os.getpid(), {number}))
sent = []
sys.addaudithook(hook)
sys.exit(main({words!r}))
"""
# The file during whose reading the signal comes, and the command that reads it.
INTERRUPTED = {
    "train": ("corners.npz", ("train", "{corners}", "--out", "{root}/o", *TRAIN)),
    "evaluate": ("corners.npz", ("evaluate", "{root}/run", "{corners}")),
    "predict": ("0.png", PREDICT_PHOTOS),
    "calibrate": ("corners.npz", ("calibrate", "{root}/run", "{corners}", "--on", "all")),
    "export": ("config.json", ("export", "{root}/run", "--out", "{root}/m.pt2", "--format", "torch")),
    "reproduce": ("t.toml", ("reproduce", "{root}/t.toml", "--profile", "smoke", "--dry-run")),
    "report": (".json", ("report", "{store}", "--out", "{root}/r.md")),
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@cases(INTERRUPTED)
def test_a_signal_ends_every_command(
    warm: Warm, run: Path, corners: Path, digits_store: Path, tmp_path: Path, number: signal.Signals, case: Any
) -> None:
    name, words = case
    write_folder(tmp_path / "photos", n_each=1)
    (tmp_path / "t.toml").write_text('title = "x"\nmethods = ["ce"]\n[[columns]]\ndataset = "digits"\n')
    filled = [word.format(root=tmp_path, corners=corners, store=digits_store) for word in words]
    before = contents(tmp_path)
    ended = warm.script(WHEN_READ.format(name=name, number=int(number), words=filled))
    assert_one_clear_line(ended, code=128 + number)
    assert contents(tmp_path) == before


def test_a_signal_waits_neither_for_a_backward_pass_nor_for_the_end_of_the_interpreter() -> None:
    """A pass is one call of torch, which handles signals only if it calls Python after each layer."""
    encoder, seen = torch.nn.Linear(4, 4), []

    def should_stop() -> bool:
        seen.append([len(one._post_accumulate_grad_hooks or ()) for one in encoder.parameters()])
        return False

    data = TrainData(np.eye(4, dtype=np.float32), np.arange(4) % 2, 2)
    fit(TrainSpec(epochs=1, batch_size=4), data, encoder=encoder, should_stop=should_stop, log=lambda line: None)
    assert seen == [[1, 1]]
    assert not any(one._post_accumulate_grad_hooks for one in encoder.parameters())
    script = "import atexit, sys, time, esupcon.cli\nfrom esupcon.__main__ import main\n"
    script += "esupcon.cli.main = lambda: 130\natexit.register(time.sleep, 60)\nsys.exit(main())"
    assert subprocess.run([sys.executable, "-P", "-c", script], timeout=50, check=False).returncode == 130


MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
RANKS = {
    "a rank alone": {"RANK": "2"},
    "a rank that is no number": {"LOCAL_RANK": "one", "RANK": "one"},
    "a negative rank": {"RANK": "-1"},
    "a rank and the number of processes": {"RANK": "1", "WORLD_SIZE": "2"},
    "the first of two without an address": {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
    "a number of processes that is no number": {"WORLD_SIZE": "two", "LOCAL_WORLD_SIZE": "1"},
    "no processes": {**MEETING, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "0", "LOCAL_WORLD_SIZE": "0"},
    "a rank beyond the last": {**MEETING, "RANK": "5", "LOCAL_RANK": "5", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
    "all but the port": {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
}


@cases(RANKS)
def test_a_process_without_its_group_is_an_error(warm: Warm, corners: Path, tmp_path: Path, case: Any) -> None:
    ended = warm.esupcon("train", corners, "--out", tmp_path / "o", *TRAIN, environment=case, kill_after=120)
    assert_one_clear_line(ended, "torchrun")
    assert not (tmp_path / "o" / "model").exists()


# --- 8. Ambiguity is an error or a message ---------------------------------------------------------------------------

AMBIGUOUS = {
    "an option of another source": ("train", "{corners}", "--out", "{root}/o", "--n-per-class", "5"),
    "a test part beside that of the data": ("train", "{corners}", "--out", "{root}/o", "--test-fraction", "0.3"),
    "another seed of the test part": ("evaluate", "{root}/run", "{corners}", "--split-seed", "3"),
    "a column of a file without columns": ("train", "{corners}", "--out", "{root}/o", "--label-column", "x"),
    "a format that the name contradicts": ("export", "{root}/run", "--out", "{root}/m.onnx", "--format", "torch"),
    "a setting that the plan decides": ("reproduce", "full", "--profile", "smoke", "--set", "seed=5"),
    "a setting that nothing reads": ("reproduce", "full", "--profile", "smoke", "--set", "epoch=5"),
    "a report of no format": ("report", "{root}/run", "--out", "{root}/r.doc"),
    "no classes to rank": ("predict", "{root}/run", "{root}/x.png", "--top-k", "0"),
    "a part that is none": ("calibrate", "{root}/run", "{corners}", "--on", "validation"),
    "a name that two files could have": ("train", "{root}/no-such", "--out", "{root}/o"),
}


@cases(AMBIGUOUS)
def test_an_option_that_would_be_ignored_is_an_error(
    warm: Warm, run: Path, corners: Path, tmp_path: Path, case: Any
) -> None:
    before = contents(tmp_path)
    ended = warm.esupcon(*(word.format(root=tmp_path, corners=corners) for word in case))
    assert_one_clear_line(ended)
    assert contents(tmp_path) == before


def test_odd_names_of_files_cost_no_training(warm: Warm, tmp_path: Path) -> None:
    """What is stored with a model and a result is checked when they are written, after the training."""
    photos, out = write_folder(tmp_path / ("back\\slash" + 210 * "x")), tmp_path / "\udcff"
    ended = warm.esupcon("train", photos, "--out", out, *TRAIN)
    assert ended.code == 0, ended.err
    assert warm.esupcon("evaluate", out, photos).code == 0
    assert "already finished" in warm.esupcon("train", photos, "--out", out, *TRAIN).err


HOSTILE_NAMES = ("=HYPERLINK(1)", "+1+cmd", "-2", "@SUM(A1)", "<script>alert(1)</script>", "[bold]b[/bold]", "\x1b]0;x")


def test_names_are_text_in_every_medium(warm: Warm, tmp_path: Path) -> None:
    """Not formulas in CSV, not markup on the model card, not terminal codes on a terminal or in messages."""
    y = np.arange(70) % len(HOSTILE_NAMES)
    x = np.random.default_rng(0).integers(0, 256, (70, 8, 8, 1)).astype(np.uint8)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=np.array(HOSTILE_NAMES))
    assert warm.esupcon("train", tmp_path / "d.npz", "--out", tmp_path / "run", *TRAIN).code == 0
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "<script" not in card and "\x1b" not in card and "alert" in card
    shown = warm.esupcon("evaluate", tmp_path / "run", tmp_path / "d.npz")
    assert shown.code == 0, shown.err
    assert "[bold]b[/bold]" in shown.out and "\x1b" not in shown.out
    photos = write_folder(tmp_path / "photos", n_each=1)
    (photos / "\x1b[2J.png").write_bytes(b"no image")
    ended = warm.esupcon("predict", tmp_path / "run", photos, "--top-k", len(HOSTILE_NAMES))
    assert ended.code == 1
    assert "\x1b" not in ended.err
    cells = [cell for line in ended.out.splitlines() for cell in line.split(",")]
    assert len(cells) > 40 and not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)
    exact = warm.esupcon("predict", tmp_path / "run", photos / "ne" / "0.png", "--top-k", "7", "--format", "jsonl")
    assert {one["label"] for one in json.loads(exact.out)["top"]} == set(HOSTILE_NAMES)
