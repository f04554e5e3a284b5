"""Hostile files: no code is executed, nothing outside the target is written, memory stays bounded."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import shutil
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from warm import Ended, Warm

from conftest import TRAIN
from esupcon._io import file_digest, read_sealed_json, write_sealed_json
from tiny_images import write_folder, write_npz

pytestmark = pytest.mark.reliability

MEGABYTE = 1 << 20
DEEP = b'{"a":' * 100_000


class Payload:
    """Create a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.proof,)


def refused(ended: Ended, *words: str) -> None:
    assert ended.code == 2, ended.err
    assert "Traceback" not in ended.err
    assert ended.last_line.startswith("esupcon: ")
    for word in words:
        assert word in ended.err, ended.err


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """Return the path of the file that executed code would create."""
    return tmp_path / "code has run"


def test_payload_runs_when_unpickled(proof: Path) -> None:
    pickle.loads(pickle.dumps(Payload(proof)))
    assert proof.exists()


def test_pickles_are_not_executed(warm: Warm, run: Path, tmp_path: Path, proof: Path) -> None:
    payload = pickle.dumps({"data": Payload(proof)})
    archive = tmp_path / "objects.npz"
    np.savez(archive, x_train=np.array([Payload(proof)], dtype=object), y_train=np.zeros(1))
    refused(warm.esupcon("train", archive, "--out", tmp_path / "o", *TRAIN), "holds Python objects")
    cifar = tmp_path / "cifar-10-batches-py"
    cifar.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (cifar / name).write_bytes(payload)
    refused(warm.esupcon("train", cifar, "--out", tmp_path / "o", *TRAIN), "is not the official file")
    (run / "model" / "model.safetensors").write_bytes(payload)
    refused(warm.esupcon("predict", run, tmp_path / "x.png"), "its digest differs")
    for name in ("x.csv", "x.parquet", "x.npz"):
        (tmp_path / name).write_bytes(payload)
        refused(warm.esupcon("train", tmp_path / name, "--out", tmp_path / "o", *TRAIN), str(tmp_path / name))
    assert not proof.exists()


def test_hostile_checkpoint_is_skipped(warm: Warm, corners: Path, tmp_path: Path, proof: Path) -> None:
    """The index of the folder has the checksum of the file; still only tensors are read from it."""
    import hashlib
    import signal

    from esupcon._io import read_sealed_json, write_sealed_json

    words = ("train", corners, "--out", tmp_path / "run", *TRAIN[:-1], "60", "--checkpoint-seconds", "0")
    stopped = warm.esupcon(*words, kill_after=0, send=signal.SIGINT, once=tmp_path / "run" / "history.jsonl")
    assert stopped.code == 130, stopped.err
    index = read_sealed_json(tmp_path / "run" / "checkpoint.json")
    for entry in index["checkpoints"]:
        buffer = io.BytesIO()
        import torch

        torch.save({"network": Payload(proof)}, buffer)
        (tmp_path / "run" / entry["file"]).write_bytes(buffer.getvalue())
        entry["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    write_sealed_json(tmp_path / "run" / "checkpoint.json", index)
    ended = warm.esupcon(*words)
    assert ended.code == 0, ended.err
    assert "cannot be read" in ended.err
    assert not proof.exists()


def member(archive: tarfile.TarFile, name: str, **fields: object) -> None:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(b"x" * info.size))


@pytest.mark.parametrize(
    "hostile",
    [
        {"name": "../outside", "size": 1},
        {"name": "/tmp/esupcon-outside", "size": 1},
        {"name": "cifar-10-batches-py/link", "type": tarfile.SYMTYPE, "linkname": "../../outside"},
        {"name": "cifar-10-batches-py/hard", "type": tarfile.LNKTYPE, "linkname": "/etc/passwd"},
        {"name": "cifar-10-batches-py/device", "type": tarfile.CHRTYPE},
    ],
    ids=lambda one: one["name"],
)
def test_archives_write_nothing_outside(warm: Warm, tmp_path: Path, hostile: dict[str, object]) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with tarfile.open(home / "cifar-10-python.tar.gz", "w:gz") as archive:
        member(archive, "cifar-10-batches-py/data_batch_1", size=1)
        member(archive, **hostile)  # type: ignore[arg-type]
    ended = warm.esupcon("train", "cifar10", "--data-dir", home, "--out", tmp_path / "o", *TRAIN)
    refused(ended, "refused")
    left = sorted(path.name for path in tmp_path.rglob("*") if path.suffix != ".lock")
    assert left == ["cifar-10-python.tar.gz", "home"]
    assert not Path("/tmp/esupcon-outside").exists()


def png_header(width: int, height: int) -> bytes:
    """Return an image of any size in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def test_image_bombs_are_skipped(warm: Warm, shared_run: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", n_each=1)
    (photos / "bomb.png").write_bytes(png_header(60_000, 60_000))
    (photos / "wide.png").write_bytes(png_header(2**31 - 1, 1))
    text = zlib.compress(bytes(64 * MEGABYTE))  # a comment that swells
    chunk = b"zTXt" + b"Comment\0\0" + text
    swollen = png_header(8, 8)
    swollen = (
        swollen[:33] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + swollen[33:]
    )
    (photos / "comment.png").write_bytes(swollen)
    ended = warm.esupcon("predict", shared_run, photos, more_memory=200 * MEGABYTE)
    assert ended.code == 1, ended.err
    assert ended.err.count("skipped: ") == 3
    assert len(ended.out.splitlines()) == 1 + 3


def npz_of_zeroes(path: Path, claimed: int, real: int) -> Path:
    """Write an array that claims `claimed` bytes and holds `real`, compressed a thousandfold."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (claimed // 64, 8, 8)}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x_train.npy", "w", force_zip64=True) as stream:
            stream.write(header.getvalue())
            for _ in range(real // MEGABYTE):
                stream.write(bytes(MEGABYTE))
        with archive.open("y_train.npy", "w") as stream:
            np.save(stream, np.zeros(2))
    return path


def test_npz_bombs_are_refused(warm: Warm, tmp_path: Path) -> None:
    lying = npz_of_zeroes(tmp_path / "lying.npz", claimed=1 << 50, real=MEGABYTE)
    ended = warm.esupcon("train", lying, "--out", tmp_path / "o", *TRAIN, more_memory=400 * MEGABYTE)
    refused(ended, str(lying), "is announced where there are")
    swelling = npz_of_zeroes(tmp_path / "swelling.npz", claimed=600 * MEGABYTE, real=600 * MEGABYTE)
    assert swelling.stat().st_size < 6 * MEGABYTE
    ended = warm.esupcon("train", swelling, "--out", tmp_path / "o", *TRAIN, more_memory=400 * MEGABYTE)
    refused(ended, str(swelling), "more than fits into memory")


def test_weights_larger_than_the_file_are_refused(warm: Warm, run: Path) -> None:
    """A header that claims a terabyte is compared with the file before anything is allocated."""
    file = run / "model" / "model.safetensors"
    header = {"head.weight": {"dtype": "F32", "shape": [3, 1 << 38], "data_offsets": [0, 12 << 38]}}
    for content in (header, {**header, "head.weight": {**header["head.weight"], "data_offsets": [0, 12]}}):
        text = json.dumps(content).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(12))
        seal_again(run / "model")
        ended = warm.esupcon("predict", run, "x.png", more_memory=200 * MEGABYTE)
        refused(ended, str(run))
    file.write_bytes(struct.pack("<Q", 1 << 60))
    seal_again(run / "model")
    refused(warm.esupcon("predict", run, "x.png", more_memory=200 * MEGABYTE), str(run))


def seal_again(model: Path) -> None:
    """Write the digest of changed weights into the config, as a forger would."""
    values = read_sealed_json(model / "config.json")
    values["files"]["model.safetensors"] = file_digest(model / "model.safetensors")
    write_sealed_json(model / "config.json", values)


def test_deeply_nested_json_is_refused(warm: Warm, corners: Path, run: Path, tmp_path: Path) -> None:
    for name in ("result.json", "run.json", "model/config.json"):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(DEEP)
        words = ("predict", run, "x.png") if name.startswith("model") else ("train", corners, "--out", run, *TRAIN)
        if name == "run.json":
            (run / "result.json").unlink()
        refused(warm.esupcon(*words, more_memory=200 * MEGABYTE), Path(name).name)
        (run / name).write_bytes(whole)


def test_hostile_model_folder(warm: Warm, run: Path) -> None:
    """A link to an endless file, a pipe without a writer, Python files beside the model."""
    model = run / "model"
    (model / "config.json").rename(model / "kept.json")
    (model / "config.json").symlink_to("/dev/zero")
    refused(warm.esupcon("predict", run, "x.png", more_memory=200 * MEGABYTE), "config.json")
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    refused(warm.esupcon("predict", run, "x.png"), "config.json")
    (model / "config.json").unlink()
    (model / "kept.json").rename(model / "config.json")
    for name in ("modeling.py", "__init__.py", "sitecustomize.py", "conftest.py"):
        (model / name).write_text("raise SystemExit('code has run')")
    ended = warm.esupcon("predict", run, "x.png")
    assert ended.code == 1
    assert "code has run" not in ended.err


HOSTILE_NAMES = ("=HYPERLINK(1)", "+1+cmd", "-2", "@SUM(A1)", "<script>alert(1)</script>", "[bold]b[/bold]")


@pytest.fixture(scope="module")
def hostile_run(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose class names are formulas and markup."""
    root = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    y = np.arange(60) % len(HOSTILE_NAMES)
    x = rng.integers(0, 256, (60, 8, 8, 1)).astype(np.uint8)
    np.savez(root / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=np.array(HOSTILE_NAMES))
    ended = warm.esupcon("train", root / "d.npz", "--out", root / "run", *TRAIN)
    assert ended.code == 0, ended.err
    return root


def test_names_are_not_formulas(warm: Warm, hostile_run: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", n_each=1)
    (photos / "ne" / "0.png").rename(tmp_path / "=1+1.png")
    script = f"import os, sys; os.chdir({str(tmp_path)!r})\nfrom esupcon.cli import main\n" + (
        f"sys.exit(main(['predict', {str(hostile_run / 'run')!r}, '=1+1.png', 'photos', '--top-k', '6'{{}}]))"
    )
    ended = warm.script(script.format(""))
    assert ended.code == 0, ended.err
    rows = list(csv.reader(io.StringIO(ended.out)))
    assert len(rows) == 1 + 3
    for row in rows:
        assert len(row) == 13
        for cell in row:
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), cell
    assert {cell.removeprefix("'") for cell in rows[1][1::2]} == set(HOSTILE_NAMES)
    ended = warm.script(script.format(", '--format', 'jsonl'"))
    assert {one["label"] for one in json.loads(ended.out.splitlines()[0])["top"]} == set(HOSTILE_NAMES)


def test_names_are_not_markup(warm: Warm, hostile_run: Path) -> None:
    card = (hostile_run / "run" / "model" / "README.md").read_text()
    assert "<script" not in card
    assert "alert" in card
    ended = warm.esupcon("evaluate", hostile_run / "run", hostile_run / "d.npz")
    assert ended.code == 0, ended.err
    for name in HOSTILE_NAMES:
        assert name in ended.out


def test_names_are_not_terminal_codes(warm: Warm, shared_run: Path, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", n_each=1)
    (photos / "\x1b]0;owned\x07\x1b[2J.png").write_bytes(b"no image")
    ended = warm.esupcon("predict", shared_run, photos)
    assert ended.code == 1
    assert "\x1b" not in ended.err
    assert "\x07" not in ended.err


def test_parquet_bombs_are_refused(warm: Warm, tmp_path: Path) -> None:
    """A repeated value takes no space in a Parquet file."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    n = 3_000_000
    columns = {"image": pa.nulls(n, pa.binary()), "label": pa.DictionaryArray.from_arrays(np.zeros(n, np.int8), ["a"])}
    file = tmp_path / "wide.parquet"
    pyarrow.parquet.write_table(pa.table(columns), file)
    assert file.stat().st_size < n / 10
    ended = warm.esupcon("train", file, "--out", tmp_path / "o", *TRAIN, more_memory=600 * MEGABYTE)
    refused(ended, str(file), "it holds no images")


def test_overwrite_keeps_foreign_files(warm: Warm, tmp_path: Path) -> None:
    """--overwrite keeps the other files of the folder."""
    source = write_npz(tmp_path / "corners.npz")
    folder = tmp_path / "run"
    assert warm.esupcon("train", source, "--out", folder, *TRAIN).code == 0
    kept = {"notes.txt": "mine", ".hidden.deadbeef": "mine", "checkpoints": "mine", ".model.rc": "mine"}
    for name, text in kept.items():
        (folder / name).write_text(text)
    assert warm.esupcon("train", source, "--out", folder, *TRAIN, "--overwrite").code == 0
    assert {name: (folder / name).read_text() for name in kept} == kept
    shutil.rmtree(folder)
