"""The readers of data: images, arrays, tables, listings and archives."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from reader import Reader, in_file, of_arrays, quiet

from esupcon.data.cache import entry
from esupcon.data.cifar import read_cifar10
from esupcon.data.decode import DecodeSpec, decode_rows, image_dimensions
from esupcon.data.extract import extract
from esupcon.data.huggingface import list_arrow
from esupcon.data.npz import read_npz
from esupcon.data.safe_pickle import read_pickle
from esupcon.data.tables import list_csv
from esupcon.data.tiny_imagenet import list_tiny_imagenet
from esupcon.probability import Predictions


def data_readers() -> Iterator[tuple[str, Reader]]:
    yield "image", Reader(_encoded_images, _decode)
    yield (
        "npz",
        Reader(_image_archives, in_file("d.npz", lambda file: read_npz(file, quiet)), _essence_of_arrays),
    )
    yield (
        "predictions",
        Reader(
            _prediction_files,
            in_file("p.npz", Predictions.load),
            lambda found: of_arrays(found.logits, found.labels),
        ),
    )
    yield "pickle", Reader(_pickles, in_file("p.pkl", read_pickle))
    yield "cifar", Reader(lambda: [pickle.dumps(_cifar_batch(), p) for p in (0, 2, 4)], _read_cifar)
    yield "csv", Reader(_tables, in_file("t.csv", lambda file: list_csv(file, quiet)))
    yield "parquet", Reader(_parquet_files, in_file("t.parquet", _read_arrow))
    yield "arrow", Reader(_arrow_streams, _read_arrow_stream)
    yield "data-set-notes", Reader(_data_set_notes, _read_notes)
    yield "tiny-imagenet", Reader(_annotations, _read_tiny)
    yield "archive", Reader(_archives, _read_archive)
    yield "cache-entry", Reader(_cache_entries, _read_cache_entry)


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


def _essence_of_arrays(found: Any) -> Any:
    return of_arrays(found.x_train, found.y_train, found.x_test, found.y_test), tuple(found.classes)


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
