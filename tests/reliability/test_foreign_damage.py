"""Damage to files of formats that others made, most of which carry no checksum.

Damage that can be detected is refused or skipped, by name. Otherwise it gives other data with another fingerprint, so
no stored run is taken for theirs.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from damage import damaged
from PIL import Image

from esupcon.data import Dataset, load
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


@pytest.mark.parametrize(
    ("make", "name", "n_images"),
    [
        (jpeg_folder, "c0/1.jpg", 8),
        (lambda root: write_folder(root, n_each=4), "nw/1.png", 12),
        (table, "table.csv", 12),
        (parquet, "t.parquet", 12),
    ],
    ids=["jpeg", "png", "csv", "parquet"],
)
def test_damaged_file_is_named_skipped_or_other_data(tmp_path: Path, make, name: str, n_images: int) -> None:
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
            assert any("skipped" in note for note in found.notes), what
    file.write_bytes(content)
    assert quietly(source, tmp_path / "cache").fingerprint == before.fingerprint
