"""The readers of data: images, arrays, tables, listings and archives."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import Reader, in_file, of_arrays, quiet
from PIL import Image

from esupcon.data import DataOptions
from esupcon.data.cache import cached
from esupcon.data.decode import DecodeSpec, decode_images, image_dimensions
from esupcon.data.named import extract, read_tiny_imagenet
from esupcon.data.parquet import read_parquet
from esupcon.data.sources import Source, read_csv, read_npz
from esupcon.probability import Predictions

OPTIONS = DataOptions()


def data_readers() -> Iterator[tuple[str, Reader]]:
    yield "image", Reader(_encoded_images, _decode)
    yield "npz", Reader(_image_archives, in_file("d.npz", lambda file: read_npz(file, OPTIONS, quiet)), _essence)
    yield (
        "predictions",
        Reader(
            _prediction_files,
            in_file("p.npz", Predictions.load),
            lambda found: of_arrays(found.logits, found.labels),
        ),
    )
    yield "csv", Reader(_tables, in_file("t.csv", lambda file: read_csv(file, OPTIONS, quiet)))
    yield "parquet", Reader(_parquet_files, in_file("t.parquet", _read_parquet))
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
    return decode_images([content], rows, DecodeSpec(8, 8, 3, max_pixels=10**6))[0]


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _image_archives() -> list[bytes]:
    x, y = np.arange(6 * 4 * 4).reshape(6, 4, 4).astype(np.uint8), np.arange(6) % 2
    plain = io.BytesIO()
    np.savez(plain, x_train=x / 255, y_train=np.array(["a", "b"] * 3), x_test=x / 255, y_test=np.array(["a", "b"] * 3))
    return [_npz(x_train=x, y_train=y, classes=np.array(["one", "two"])), plain.getvalue()]


def _essence(found: Source) -> Any:
    assert isinstance(found.images, np.ndarray)
    return of_arrays(found.images, found.labels), found.classes, found.n_train


def _prediction_files() -> list[bytes]:
    return [_npz(logits=np.eye(4, dtype=np.float32), labels=np.arange(4)), _npz(logits=np.zeros((2, 3)), labels=[0, 1])]


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


def _read_parquet(file: Path) -> object:
    found = read_parquet(file, OPTIONS, quiet)
    return [found.digest(), list(found.images.sample(2))]  # type: ignore[union-attr]  # images of a file are no array


def _annotations() -> list[bytes]:
    return [b"val_0.JPEG\tn01\t0\t0\t62\t57\nval_1.JPEG\tn02\t3\t3\t59\t55\n", b"n01\tgoldfish, Carassius\nn02\tbird\n"]


def _read_tiny(folder: Path, content: bytes) -> object:
    for wnid in ("n01", "n02"):
        (folder / "train" / wnid).mkdir(parents=True)
        (folder / "train" / wnid / "a.JPEG").write_bytes(b"x")
    (folder / "val").mkdir()
    (folder / "val" / "val_annotations.txt").write_bytes(content)
    (folder / "words.txt").write_bytes(content)
    return read_tiny_imagenet(folder, OPTIONS, quiet)


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
    def fill(rows: np.ndarray[Any, Any]) -> dict[str, Any]:
        rows[:] = 7
        return {"unreadable": {}, "animated": 0}

    (folder / "key.u8").write_bytes(bytes(8))
    (folder / "key.json").write_bytes(content)
    images, record = cached(folder, "key", (2, 1, 2, 2), fill, quiet)
    if not (images == 7).all():
        raise AssertionError("an entry that nobody wrote was believed")
    return record
