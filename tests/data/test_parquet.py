"""Parquet files as Hugging Face `datasets` writes them, and as a stranger might."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from pictures import picture, quietly, said

from esupcon.data import source_digest

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402 - after the check that it is there

NAMES = ["cat", "dog", "owl"]
FEATURES = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}


def png(seed):
    buffer = io.BytesIO()
    picture(seed=seed).save(buffer, "PNG")
    return buffer.getvalue()


def pixels(seed):
    return np.asarray(picture(seed=seed)).transpose(2, 0, 1)


def table(n, first=0, *, features=FEATURES, labels=None, images=None, image="image", label="label", **more):
    cells = images or [{"bytes": png(first + i), "path": f"{i}.png"} for i in range(n)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {image: pa.array(cells, kind), label: labels or [i % 3 for i in range(n)], **more}
    made = pa.table(columns)
    info = {"info": {"features": features}}
    return made.replace_schema_metadata({"huggingface": json.dumps(info)} if features else None)


def folder_of(root, **parts):
    root.mkdir(parents=True)
    for name, content in parts.items():
        pq.write_table(content, root / f"{name}-00000-of-00001.parquet")
    return root


def test_parts_of_a_folder(tmp_path):
    root = folder_of(tmp_path / "set" / "data", train=table(5), validation=table(3, 30), test=table(6, 20))
    second = table(4, 5, labels=[2, 0, 1, 2])
    pq.write_table(second, root / "train-00001-of-00002.parquet", row_group_size=2)
    data = quietly(tmp_path / "set", tmp_path)
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 1, 2] * 3, [0, 1, 2] * 2)
    for x, first in ((data.x_train, 0), (data.x_test, 20)):
        np.testing.assert_array_equal(x, [pixels(first + i) for i in range(len(x))])
    assert said(data, "skipped", "'validation'")
    pq.write_table(table(6, 20, labels=[-1] * 6), root / "test-00000-of-00001.parquet")
    without_labels = quietly(tmp_path / "set", tmp_path)
    assert len(without_labels.y_test) == 3
    assert said(without_labels, "skipped", "'test'")


def test_fine_labels_are_preferred_and_columns_can_be_chosen(tmp_path):
    features = {
        **FEATURES,
        "fine_label": FEATURES["label"],
        "coarse_label": {"names": ["x", "y"], "_type": "ClassLabel"},
    }
    del features["label"]
    content = table(12, features=features, label="fine_label", coarse_label=[0, 1] * 6)
    pq.write_table(content, tmp_path / "set.parquet")
    assert quietly(tmp_path / "set.parquet", tmp_path).classes == ("cat", "dog", "owl")
    coarse = quietly(tmp_path / "set.parquet", tmp_path, label_column="coarse_label", image_column="image")
    assert coarse.classes == ("x", "y")
    pq.write_table(pa.table({"img": [png(i) for i in range(12)], "label": ["b", "a"] * 6}), tmp_path / "plain.parquet")
    assert quietly(tmp_path / "plain.parquet", tmp_path).classes == ("a", "b")
    with pytest.raises(ValueError, match=r"and not 'nope': which holds the labels"):
        quietly(tmp_path / "set.parquet", tmp_path, label_column="nope")


def test_unreadable_and_missing_images_are_listed_by_row(tmp_path):
    cells = [{"bytes": png(i), "path": None} for i in range(12)]
    cells[4], cells[7], cells[8] = {"bytes": b"broken", "path": "x.png"}, None, {"bytes": None, "path": "absent.png"}
    root = folder_of(tmp_path / "set", train=table(6))
    picture(seed=9).save(root / "there.png")
    cells[9] = {"bytes": None, "path": "there.png"}
    pq.write_table(table(12, images=cells), root / "train-1.parquet")
    data = quietly(root, tmp_path)
    assert [path for path, _ in data.skipped] == [f"{root / 'train-1.parquet'}, row {i}" for i in (4, 7, 8)]
    assert len(data.x_train) + len(data.x_test) == 15
    assert (np.concatenate([data.x_train, data.x_test]) == pixels(9)).all((1, 2, 3)).any()


def test_digest_depends_on_images_and_labels_not_on_the_file(tmp_path):
    pq.write_table(table(6), tmp_path / "a.parquet")
    pq.write_table(table(6), tmp_path / "b.parquet", compression="gzip", row_group_size=2)
    pq.write_table(table(6, labels=[0, 1, 2, 0, 2, 1]), tmp_path / "c.parquet")
    pq.write_table(table(6, first=1), tmp_path / "d.parquet")
    a, b, c, d = (source_digest(tmp_path / f"{name}.parquet") for name in "abcd")
    assert a == b
    assert len({a, c, d}) == 3


def refusal(source, tmp_path, **options):
    with pytest.raises(ValueError) as caught:
        quietly(source, tmp_path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": [1, 2], "b": [3, 4]}, "which holds the images? Pass image_column"),
        ({"image": [b"x", b"y"], "b": [3, 4]}, "which holds the labels? Pass label_column"),
        ({"image": [b"x", b"y"], "label": [1, None]}, "without a label"),
        ({"image": [b"x", b"y"], "label": [[1], [2]]}, "labels are whole numbers or text"),
    ],
)
def test_mistakes(tmp_path, content, message, monkeypatch):
    pq.write_table(pa.table(content), tmp_path / "other.parquet")
    assert message in refusal(tmp_path / "other.parquet", tmp_path)
    monkeypatch.setattr("esupcon._io.memory_budget", lambda: 100)
    assert "largest group of rows, needs" in refusal(tmp_path / "other.parquet", tmp_path)
    (tmp_path / "text.parquet").write_text("not parquet")
    assert "cannot be read" in refusal(tmp_path / "text.parquet", tmp_path)
    assert "no training part; it has test" in refusal(folder_of(tmp_path / "d", test=table(6)), tmp_path)


@pytest.mark.parametrize("marker", ["state.json", "dataset_dict.json"])
def test_save_to_disk_folder_is_refused_with_the_remedy(tmp_path, marker):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / marker).write_text("{}")
    assert "to_parquet" in refusal(tmp_path / "saved", tmp_path)


def test_without_pyarrow_the_remedy_is_named(tmp_path, monkeypatch):
    root = folder_of(tmp_path / "set", train=table(6))
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'esupcon\[parquet\]'"):
        quietly(root, tmp_path)


# --- What a file claims is bounded by what it holds ---


def shared(value, n):
    """n rows that share one value, stored once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * n), pa.array([value]))


HUGE = 3_000_000


def hostile_file(kind, path):
    images = pa.array([png(i) for i in range(4)] * 25)
    labels = pa.array(["a", "b"] * 50)
    options = {"store_schema": False}
    match kind:
        case "image":
            images = shared(b"x" * HUGE, 100)
        case "image in a struct":
            paths = pa.array(["p"] * 100)
            images = pa.StructArray.from_arrays([shared(b"x" * HUGE, 100), paths], ["bytes", "path"])
        case "label":
            labels = shared("y" * HUGE, 100)
        case "label of bytes":
            labels = shared(b"y" * HUGE, 100)
        case "image with a shared prefix":  # each value repeats the one before, and a byte more
            images, labels = pa.array([b"x" * HUGE + bytes([i]) for i in range(80)]), labels[:80]
            options = {"use_dictionary": False, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}}
    pq.write_table(pa.table({"image": images, "label": labels}), path, compression="zstd", **options)
    return path


MEASURED = """
import sys
import pyarrow.parquet
from esupcon.data import load, source_digest
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) >> 10
before = peak()
for file in sys.argv[1:]:
    try:
        source_digest(file)
        load(file, image_size=8, cache=False, workers=2, log=lambda line: None)
    except ValueError as error:
        print(peak() - before, "MB", error)
"""
KINDS = ("image", "image in a struct", "label", "label of bytes", "image with a shared prefix")


def test_value_shared_by_many_rows_is_refused_in_little_memory(tmp_path):
    """100 rows of one value of 3 MB are 300 MB, from a file of a few kB."""
    files = [hostile_file(kind, tmp_path / f"{kind}.parquet") for kind in KINDS]
    assert all(file.stat().st_size < 200_000 for file in files)
    command = [sys.executable, "-P", "-c", MEASURED, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for file, line in zip(files, done.stdout.splitlines(), strict=True):
        assert any(
            words in line for words in ("no readable image", "labels of more than 1,000", "values of type bytes")
        )
        assert str(file) in line
        assert int(line.split()[0]) < 150  # MB


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["1" * 5000, "2"] * 6, "labels of more than 1,000 characters"),
        ([b"\xff", b"\xfe"] * 6, "holds values of type bytes; labels are whole numbers or text"),
        ([0.5, 1.0] * 6, "whole numbers or text"),
        (pa.array([2**64 - 1, 5] * 6, pa.uint64()), "whole numbers or text; got 1.8"),
    ],
    ids=["long digits", "bytes", "fractions", "unsigned"],
)
def test_odd_labels_are_refused_with_the_name_of_the_file(tmp_path, labels, message):
    file = tmp_path / "set.parquet"
    pq.write_table(pa.table({"image": [png(i) for i in range(12)], "label": labels}), file)
    found = refusal(file, tmp_path)
    assert message in found
    assert str(file) in found


@pytest.mark.parametrize("path", [pa.array([7] * 12), pa.array([["x"]] * 12), pa.array(["a\0b", "", ".."] * 4)])
def test_odd_paths_in_a_struct_are_unreadable_images(tmp_path, path):
    images = pa.StructArray.from_arrays([pa.nulls(12, pa.binary()), path], ["bytes", "path"])
    pq.write_table(pa.table({"image": images, "label": ["a", "b"] * 6}), tmp_path / "set.parquet")
    assert "no readable image" in refusal(tmp_path / "set.parquet", tmp_path)
