"""Every reader of the package, as a function of the bytes in a file: what is not understood is refused in one line.

A reader that raises anything but ValueError or a plain OSError of its own making has crashed; so has one whose message
has more lines than one, or that needs more memory than the run allows.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from grid_readers import grid_readers
from PIL import Image

import esupcon
from esupcon.artifact.config import text_digest
from esupcon.artifact.folder import read_artifact
from esupcon.artifact.weights import write_weights
from esupcon.data.cache import entry
from esupcon.data.cifar import read_cifar10
from esupcon.data.decode import DecodeSpec, decode_rows, image_dimensions
from esupcon.data.extract import extract
from esupcon.data.huggingface import list_arrow
from esupcon.data.npz import read_npz
from esupcon.data.safe_pickle import read_pickle
from esupcon.data.tables import list_csv
from esupcon.data.tiny_imagenet import list_tiny_imagenet
from esupcon.engine import TrainSpec
from esupcon.engine.checkpoints import Checkpoints
from esupcon.engine.run import claim_folder
from esupcon.files import write_sealed_json
from esupcon.pipeline.training import read_result
from esupcon.probability import Predictions

Refusal = (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError)


@dataclass(frozen=True)
class Reader:
    """`read(folder, content)` puts the content where it belongs below an empty folder, and reads it."""

    seeds: Callable[[], list[bytes]]
    read: Callable[[Path, bytes], object]


def quiet(line: str) -> None:
    """Whoever reads says something now and then."""


def check(reader: Reader, folder: Path, content: bytes) -> bool:
    """Whether the content was taken; a refusal is as good. Anything else is raised."""
    try:
        reader.read(folder, content)
    except Refusal as refusal:
        message = str(refusal)
        if not message or "\n" in message:
            raise AssertionError(f"a refusal is one line; got {message!r}") from refusal
        return False
    return True


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    def run(folder: Path, content: bytes) -> object:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return run


# --- images and arrays


def _small_image(mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3)).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def _encoded_images() -> list[bytes]:
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("JPEG", "RGB", {}),
        ("JPEG", "CMYK", {}),
        ("JPEG", "L", {"progressive": True}),
        ("PNG", "RGBA", {}),
        ("PNG", "P", {}),
        ("PNG", "1", {}),
        ("GIF", "P", {"save_all": True, "append_images": [_small_image("P")]}),
        ("BMP", "RGB", {}),
        ("WEBP", "RGB", {}),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("TIFF", "F", {}),
        ("PPM", "RGB", {}),
        ("JPEG2000", "RGB", {}),
        ("AVIF", "RGB", {}),
    ]
    found = []
    for kind, mode, options in kinds:
        buffer = io.BytesIO()
        try:
            _small_image(mode).save(buffer, kind, **options)
        except (OSError, KeyError):  # this build of Pillow does not have it
            continue
        found.append(buffer.getvalue())
    return found


def _decode(folder: Path, content: bytes) -> object:
    rows = np.zeros((1, 3, 8, 8), np.uint8)
    image_dimensions(content, 10**6)
    unreadable, _ = decode_rows([content], rows, DecodeSpec(8, 8, 3, max_pixels=10**6))
    return unreadable


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _image_archives() -> list[bytes]:
    x, y = np.arange(6 * 4 * 4).reshape(6, 4, 4).astype(np.uint8), np.arange(6) % 2
    plain = io.BytesIO()
    np.savez(plain, x_train=x / 255, y_train=np.array(["a", "b"] * 3), x_test=x / 255, y_test=np.array(["a", "b"] * 3))
    return [_npz(x_train=x, y_train=y, classes=np.array(["one", "two"])), plain.getvalue()]


def _prediction_files() -> list[bytes]:
    return [_npz(logits=np.eye(4, dtype=np.float32), labels=np.arange(4)), _npz(logits=np.zeros((2, 3)), labels=[0, 1])]


def _cifar_batch(n: int = 4) -> dict[bytes, Any]:
    return {b"labels": list(range(n)), b"data": np.zeros((n, 3072), np.uint8), b"filenames": [b"x"] * n}


def _pickles() -> list[bytes]:
    plain = {b"a": [1, 2.5, None, "x"], b"b": (np.arange(3), np.zeros((2, 2), ">f4"))}
    return [pickle.dumps(value, protocol) for protocol in (0, 2, 4, 5) for value in (plain, _cifar_batch(1))]


def _read_cifar(folder: Path, content: bytes) -> object:
    for name in (*(f"data_batch_{i}" for i in range(2, 6)), "test_batch"):
        (folder / name).write_bytes(pickle.dumps(_cifar_batch(), 2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"a", b"b", b"c", b"d"]}, 2))
    (folder / "data_batch_1").write_bytes(content)
    return read_cifar10(folder, quiet)


# --- tables and listings


def _tables() -> list[bytes]:
    return [
        b"path,label\na.png,cat\nb.png,dog\n",
        b'\xef\xbb\xbfimage;class;split\r\n"a b.png";"c;d";train\r\nx/y.png;"c;d";test\r\n',
        b"a.png\tcat\nb.png\tdog\n",
    ]


def _parquet_files() -> list[bytes]:
    import pyarrow  # noqa: PLC0415 - an extra
    import pyarrow.parquet  # noqa: PLC0415

    images = [{"bytes": content, "path": "x"} for content in _encoded_images()[:2]] * 2
    found = []
    for labels in (["a", "b", "a", "b"], [0, 1, 0, 1]):
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": labels}), buffer)
        found.append(buffer.getvalue())
    return found


def _arrow_streams() -> list[bytes]:
    import pyarrow  # noqa: PLC0415

    images = [{"bytes": content, "path": "x"} for content in _encoded_images()[:2]] * 2
    features = {"label": {"_type": "ClassLabel", "names": ["a", "b"]}, "image": {"_type": "Image"}}
    noted = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    table = pyarrow.table({"image": images, "label": [0, 1, 0, 1]}).replace_schema_metadata(noted)
    buffer = io.BytesIO()
    with pyarrow.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    return [buffer.getvalue()]


def _read_arrow(folder: Path) -> object:
    listing = list_arrow(folder, quiet)
    return [len(listing.labels), [type(one) for one in listing.images], list(listing.images.sample(2))]


def _read_arrow_stream(folder: Path, content: bytes) -> object:
    (folder / "d.arrow").write_bytes(content)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "d.arrow"}]}')
    return _read_arrow(folder)


def _data_set_notes() -> list[bytes]:
    features = {"label": {"_type": "ClassLabel", "names": ["a", "b"]}, "image": {"_type": "Image"}}
    values = {"splits": ["train"], "_data_files": [{"filename": "d.arrow"}], "features": features}
    return [json.dumps(values).encode()]


def _read_notes(folder: Path, content: bytes) -> object:
    """One document serves as dataset_dict.json, state.json and dataset_info.json, which all are read."""
    import pyarrow  # noqa: PLC0415

    part = folder / "train"
    part.mkdir()
    table = pyarrow.table({"image": [b"x", b"y"], "label": [0, 1]})
    with pyarrow.OSFile(str(part / "d.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (folder / "dataset_dict.json").write_bytes(content)
    for name in ("state.json", "dataset_info.json"):
        (part / name).write_bytes(content)
    return _read_arrow(folder)


def _annotations() -> list[bytes]:
    return [b"val_0.JPEG\tn01\t0\t0\t62\t57\nval_1.JPEG\tn02\t3\t3\t59\t55\n", b"n01\tgoldfish, Carassius\nn02\tbird\n"]


def _read_tiny(folder: Path, content: bytes) -> object:
    for wnid in ("n01", "n02"):
        (folder / "train" / wnid).mkdir(parents=True)
        (folder / "train" / wnid / "a.JPEG").write_bytes(b"x")
    (folder / "val").mkdir()
    (folder / "val" / "val_annotations.txt").write_bytes(content)
    (folder / "words.txt").write_bytes(content)
    return list_tiny_imagenet(folder, quiet)


def _archives() -> list[bytes]:
    found = []
    for mode in ("w", "w:gz", "w:xz"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as tar:
            info = tarfile.TarInfo("top/file")
            info.size = 5
            tar.addfile(info, io.BytesIO(b"hello"))
        found.append(buffer.getvalue())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("top/file", "hello")
    return [*found, buffer.getvalue()]


def _read_archive(folder: Path, content: bytes) -> object:
    home = folder / "home"
    home.mkdir()
    (folder / "archive").write_bytes(content)
    try:
        return extract(folder / "archive", home, "top", quiet)
    finally:
        outside = {path.name for path in folder.iterdir()} - {"home", "archive"}
        if outside:
            raise AssertionError(f"files outside of the target: {outside}")


# --- models


@cache
def _estimator() -> esupcon.ContrastiveClassifier:
    rng = np.random.default_rng(0)
    classifier = esupcon.ContrastiveClassifier(epochs=1, encoder="mlp-4x1", calibrate=False, random_state=0)
    return classifier.fit(rng.normal(size=(12, 3)), np.arange(12) % 2)


@cache
def _saved_once() -> Path:
    """Saved anew it would bear another moment, and so another digest."""
    return Path(_estimator().save(Path(tempfile.mkdtemp(prefix="esupcon-fuzz-")) / "model"))


def _saved(folder: Path) -> Path:
    return Path(shutil.copytree(_saved_once(), folder / "model"))


def _model_file(name: str) -> Callable[[], list[bytes]]:
    @cache
    def seeds() -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            return [(_saved(Path(folder)) / name).read_bytes()]

    return seeds


def _read_model(name: str) -> Callable[[Path, bytes], object]:
    def read(folder: Path, content: bytes) -> object:
        model = _saved(folder)
        (model / name).write_bytes(content)
        return esupcon.load(model)

    return read


def _read_sealed_config(folder: Path, content: bytes) -> object:
    """A forger seals what they write: what the config says is then all that stands between it and the code."""
    model = _saved(folder)
    (model / "config.json").write_bytes(content)
    try:
        digest = text_digest(content.decode())
    except (ValueError, RecursionError):
        digest = ""
    write_weights(model / "model.safetensors", _estimator().network_.float(), digest)
    read_artifact(model)
    return esupcon.load(model)


# --- runs


def _checkpoints() -> list[bytes]:
    state = {
        "network": {"weight": torch.zeros(2, 2)},
        "position": {"epoch": 1},
        "history": [{"loss": 0.5}],
        "none": None,
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return [buffer.getvalue()]


def _read_sealed_checkpoint(folder: Path, content: bytes) -> object:
    (folder / "checkpoint-1.pt").write_bytes(content)
    listed = [{"file": "checkpoint-1.pt", "sha256": hashlib.sha256(content).hexdigest()}]
    (folder / "checkpoint.json").write_text(json.dumps({"key": "k", "checkpoints": listed}))
    return Checkpoints(folder, "k", quiet).load()


def _checkpoint_index() -> list[bytes]:
    return [json.dumps({"key": "k", "checkpoints": [{"file": "checkpoint-1.pt", "sha256": "0" * 64}] * 2}).encode()]


def _read_run_file(path: Path) -> object:
    return claim_folder(path.parent, "k", TrainSpec(), overwrite=False)


def _results() -> list[bytes]:
    result = {"schema": 1, "key": "k", "metrics": {"test": None}, "provenance": {"seconds": 1.0}}
    with tempfile.TemporaryDirectory() as place:
        return [write_sealed_json(Path(place) / "result.json", result).read_bytes()]


def _cache_entries() -> list[bytes]:
    record = {"unreadable": {}, "animated": 0}
    return [json.dumps({"shape": [2, 1, 2, 2], "record": record, "crc32": 1}).encode()]


def _read_cache_entry(folder: Path, content: bytes) -> object:
    def fill(file: Path, rows: np.ndarray[Any, Any]) -> tuple[list[int], dict[str, object]]:
        rows[:] = 7
        return [], {"unreadable": {}, "animated": 0}

    (folder / "key").mkdir()
    (folder / "key" / "images.u8").write_bytes(bytes(8))
    (folder / "key" / "entry.json").write_bytes(content)
    found = entry(folder, "key", (2, 1, 2, 2), fill, quiet)
    if not (found.images == 7).all():
        raise AssertionError("an entry that nobody wrote was believed")
    return found


def _all() -> Iterator[tuple[str, Reader]]:
    yield "image", Reader(_encoded_images, _decode)
    yield "npz", Reader(_image_archives, _in_file("d.npz", lambda file: read_npz(file, quiet)))
    yield "predictions", Reader(_prediction_files, _in_file("p.npz", Predictions.load))
    yield "pickle", Reader(_pickles, _in_file("p.pkl", read_pickle))
    yield "cifar", Reader(lambda: [pickle.dumps(_cifar_batch(), p) for p in (0, 2, 4)], _read_cifar)
    yield "csv", Reader(_tables, _in_file("t.csv", lambda file: list_csv(file, quiet)))
    yield "parquet", Reader(_parquet_files, _in_file("t.parquet", _read_arrow))
    yield "arrow", Reader(_arrow_streams, _read_arrow_stream)
    yield "data-set-notes", Reader(_data_set_notes, _read_notes)
    yield "tiny-imagenet", Reader(_annotations, _read_tiny)
    yield "archive", Reader(_archives, _read_archive)
    yield "config", Reader(_model_file("config.json"), _read_model("config.json"))
    yield "sealed-config", Reader(_model_file("config.json"), _read_sealed_config)
    yield "weights", Reader(_model_file("model.safetensors"), _read_model("model.safetensors"))
    yield "examples", Reader(_model_file("examples.safetensors"), _read_model("examples.safetensors"))
    yield "checkpoint", Reader(_checkpoints, _read_sealed_checkpoint)
    yield (
        "checkpoint-index",
        Reader(
            _checkpoint_index, _in_file("checkpoint.json", lambda file: Checkpoints(file.parent, "k", quiet).load())
        ),
    )
    yield "run", Reader(lambda: [b'{"key": "k", "precision": "32", "spec": {}}'], _in_file("run.json", _read_run_file))
    yield "result", Reader(_results, _in_file("result.json", lambda file: read_result(file.parent)))
    yield "cache-entry", Reader(_cache_entries, _read_cache_entry)
    for name, seeds, read in grid_readers():
        yield name, Reader(seeds, read)


READERS = dict(_all())
