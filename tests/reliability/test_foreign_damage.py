"""Damage to files of formats that others made, most of which carry no checksum.

What can be noticed is refused or left out, and named. A change that the format cannot show gives other data, whose
fingerprint is another: no stored run is ever taken for theirs.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from damage import damaged
from PIL import Image

from esupcon.data import cifar, load
from esupcon.data.datasets import Dataset
from tiny_images import pictures, write_folder

pytestmark = pytest.mark.reliability


def quietly(source: Path, cache: Path) -> Dataset:
    return load(source, cache_dir=cache, image_size=8, channels=1, log=lambda line: None, workers=1)


def jpeg_folder(root: Path) -> Path:
    for k in range(2):
        (root / f"c{k}").mkdir(parents=True)
        for i, image in enumerate(pictures(np.full(4, k), k)):
            Image.fromarray(image[0]).resize((24, 24)).save(root / f"c{k}" / f"{i}.jpg")
    return root


def table(root: Path) -> Path:
    write_folder(root / "photos", n_each=4)
    lines = [f"photos/{path.parent.name}/{path.name},{path.parent.name}" for path in sorted(root.rglob("*.png"))]
    (root / "table.csv").write_text("path,label\n" + "\n".join(lines) + "\n")
    return root / "table.csv"


def parquet(root: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    root.mkdir(parents=True)
    images = []
    for image in pictures(np.arange(12) % 3, 0):
        buffer = io.BytesIO()
        Image.fromarray(image[0]).save(buffer, "PNG")
        images.append({"bytes": buffer.getvalue(), "path": None})
    columns = {"image": images, "label": [f"class {i % 3}" for i in range(12)]}
    pyarrow.parquet.write_table(pa.table(columns), root / "t.parquet")
    return root / "t.parquet"


def cifar10(root: Path, n: int = 10) -> Path:
    rng = np.random.default_rng(0)
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        batch = {b"labels": list(range(n)), b"data": rng.integers(0, 256, (n, 3072)).astype(np.uint8)}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {b"label_names": [f"class {k}".encode() for k in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return folder


@pytest.mark.parametrize(
    ("make", "name", "n_images"),
    [
        (jpeg_folder, "c0/1.jpg", 8),
        (lambda root: write_folder(root, n_each=4), "nw/1.png", 12),
        (table, "table.csv", 12),
        (parquet, "t.parquet", 12),
        (cifar10, "cifar-10-batches-py/data_batch_3", 60),
        (cifar10, "cifar-10-batches-py/batches.meta", 60),
    ],
    ids=["jpeg", "png", "csv", "parquet", "cifar batch", "cifar classes"],
)
def test_damage_is_named_left_out_or_other_data(tmp_path: Path, make, name: str, n_images: int) -> None:
    source = make(tmp_path / "data")
    file = tmp_path / "data" / name
    content = file.read_bytes()
    before = quietly(source, tmp_path / "cache")
    for what, changed in damaged(content, 40):
        file.write_bytes(changed)
        try:
            found = quietly(source, tmp_path / "cache")
        except (ValueError, FileNotFoundError) as error:
            # A damaged table names what it cannot understand; most often itself, else a class or a picture of it.
            assert str(tmp_path / "data") in str(error) or "class" in str(error), (what, error)
            assert "\n" not in str(error), (what, error)
            continue
        n_found = len(found.x_train) + len(found.x_test) + len(found.skipped)
        assert n_found == n_images or name == "table.csv", (what, n_found)  # a line of it may be gone
        if found.skipped:
            assert any("left out" in note for note in found.notes), what
    file.write_bytes(content)
    assert quietly(source, tmp_path / "cache").fingerprint == before.fingerprint


def test_an_official_file_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official CIFAR files have known checksums: a wrong pixel in one is said, though it cannot be seen."""
    folder = cifar10(tmp_path)
    monkeypatch.setattr(cifar, "_N_OFFICIAL", (50, 10))
    official = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(cifar, "_OFFICIAL", official)
    assert not any("official files" in note for note in quietly(folder, tmp_path / "cache").notes)
    changed = bytearray((folder / "data_batch_2").read_bytes())
    changed[len(changed) // 2] ^= 1
    (folder / "data_batch_2").write_bytes(changed)
    notes = quietly(folder, tmp_path / "cache").notes
    assert any(note.startswith("data_batch_2 in ") and "differ(s) from the official files" in note for note in notes)


def test_the_checksums_are_those_of_the_real_files() -> None:
    import os

    if "ESUPCON_TEST_DATA" not in os.environ:
        pytest.skip("set ESUPCON_TEST_DATA to a folder with the real sets")
    folder = Path(os.environ["ESUPCON_TEST_DATA"]) / "cifar-10-batches-py"
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        assert cifar.md5_of(folder / name) == cifar._OFFICIAL[name]
