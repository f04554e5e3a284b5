"""Arrow folders and Parquet files as Hugging Face `datasets` writes them."""

import builtins
import io
import json

import numpy as np
import pytest
from pictures import picture, quietly, said

from esupcon.data.huggingface import list_arrow

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


def save_to_disk(folder, content, files=1, indices=False, metadata=True):
    """What Dataset.save_to_disk leaves behind."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{files:05}.arrow" for i in range(files)]
    bounds = np.linspace(0, len(content), files + 1).astype(int)
    for name, start, stop in zip(names, bounds, bounds[1:], strict=False):
        part = content.slice(start, stop - start)
        if not metadata:
            part = part.replace_schema_metadata(None)
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, part.schema) as stream:
            stream.write_table(part, max_chunksize=5)
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES, "citation": ""}))
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    if indices:
        state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def dataset_dict(root, **parts):
    for name, content in parts.items():
        save_to_disk(root / name, content)
    (root / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))
    return root


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("metadata", [True, False])
def test_a_saved_folder(tmp_path, files, metadata):
    root = save_to_disk(tmp_path / "set", table(15), files, metadata=metadata)
    data = quietly(root, tmp_path)
    assert data.classes == ("cat", "dog", "owl")
    assert (len(data.x_train), len(data.x_test)) == (12, 3)
    assert said(data, "no test part")
    listing = list_arrow(root, lambda line: None)
    assert listing.labels.tolist() == [i % 3 for i in range(15)]
    assert len(list(listing.images)) == len(listing.images) == 15


def test_a_saved_dictionary_of_parts(tmp_path):
    root = dataset_dict(tmp_path / "set", train=table(9), validation=table(3, 30), test=table(6, 20))
    data = quietly(root, tmp_path)
    assert data.y_train.tolist() == [0, 1, 2] * 3
    assert data.y_test.tolist() == [0, 1, 2] * 2
    for i in range(9):
        np.testing.assert_array_equal(data.x_train[i], pixels(i))
    for i in range(6):
        np.testing.assert_array_equal(data.x_test[i], pixels(20 + i))
    assert said(data, "'validation'", "not read")


def test_a_test_part_without_labels_gives_way_to_validation(tmp_path):
    root = dataset_dict(tmp_path / "set", train=table(9), validation=table(3, 30), test=table(6, 20, labels=[-1] * 6))
    data = quietly(root, tmp_path)
    assert len(data.y_test) == 3
    assert said(data, "'test'", "no labels")


def test_parquet_files_named_by_their_part(tmp_path):
    folder = tmp_path / "set" / "data"
    folder.mkdir(parents=True)
    pq.write_table(table(5), folder / "train-00000-of-00002.parquet", row_group_size=2)
    pq.write_table(table(4, 5, labels=[2, 0, 1, 2]), folder / "train-00001-of-00002.parquet")
    pq.write_table(table(3, 20), folder / "test-00000-of-00001.parquet")
    data = quietly(tmp_path / "set", tmp_path)
    assert data.y_train.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    np.testing.assert_array_equal(data.x_train[7], pixels(7))
    np.testing.assert_array_equal(data.x_test[2], pixels(22))
    assert data.notes == (f"image_size is {24}, as the images have it",)


def test_one_parquet_file_with_bytes_and_names(tmp_path):
    labels = ["b", "a"] * 6
    content = pa.table({"img": [png(i) for i in range(12)], "label": labels, "id": list(range(12))})
    pq.write_table(content, tmp_path / "set.parquet")
    data = quietly(tmp_path / "set.parquet", tmp_path)
    assert data.classes == ("a", "b")
    listing = list_arrow(tmp_path / "set.parquet", lambda line: None)
    assert listing.labels.tolist() == [1, 0] * 6


def test_the_fine_labels_are_preferred_and_columns_can_be_chosen(tmp_path):
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
    with pytest.raises(ValueError, match="no column 'nope'; it has 'image'"):
        quietly(tmp_path / "set.parquet", tmp_path, label_column="nope")


def test_unreadable_and_missing_images_are_listed_by_row(tmp_path):
    cells = [{"bytes": png(i), "path": None} for i in range(12)]
    cells[4] = {"bytes": b"broken", "path": "x.png"}
    cells[7] = None
    cells[8] = {"bytes": None, "path": "absent.png"}
    picture(seed=9).save(tmp_path / "there.png")
    cells[9] = {"bytes": None, "path": "there.png"}
    pq.write_table(table(12, images=cells), tmp_path / "set.parquet")
    data = quietly(tmp_path / "set.parquet", tmp_path)
    assert [path for path, _ in data.skipped] == [f"{tmp_path / 'set.parquet'}, row {i}" for i in (4, 7, 8)]
    assert len(data.x_train) + len(data.x_test) == 9
    assert any((image == pixels(9)).all() for image in np.concatenate([data.x_train, data.x_test]))


def test_rows_are_named_within_their_file(tmp_path):
    cells = [{"bytes": png(i), "path": None} for i in range(12)]
    cells[10] = {"bytes": b"broken", "path": None}
    root = save_to_disk(tmp_path / "set", table(12, images=cells), files=3)
    data = quietly(root, tmp_path)
    assert [path for path, _ in data.skipped] == [f"{root / 'data-00002-of-00003.arrow'}, row 2"]


def test_a_second_start_reads_the_cache(tmp_path, monkeypatch):
    root = save_to_disk(tmp_path / "set", table(15))
    first = quietly(root, tmp_path)
    monkeypatch.setattr("esupcon.data.assemble.DecodePool", None)
    assert quietly(root, tmp_path).fingerprint == first.fingerprint


def test_mistakes(tmp_path):
    def message(source, kind=ValueError):
        with pytest.raises(kind) as caught:
            quietly(source, tmp_path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "flatten_indices" in message(save_to_disk(tmp_path / "a", table(6), indices=True))
    broken = save_to_disk(tmp_path / "b", table(6), files=2)
    (broken / "data-00001-of-00002.arrow").unlink()
    assert "lacks data-00001" in message(broken, FileNotFoundError)
    (broken / "state.json").write_text("{nonsense")
    assert "not what `datasets` writes" in message(broken)
    (tmp_path / "text.parquet").write_text("not parquet")
    assert "cannot be read" in message(tmp_path / "text.parquet")
    cut = save_to_disk(tmp_path / "c", table(6))
    content = (cut / "data-00000-of-00001.arrow").read_bytes()
    (cut / "data-00000-of-00001.arrow").write_bytes(content[: len(content) // 2])
    assert "cannot be read" in message(cut)
    pq.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), tmp_path / "other.parquet")
    assert "which holds the images? Pass image_column" in message(tmp_path / "other.parquet")
    pq.write_table(pa.table({"image": [b"x", b"y"], "b": [3, 4]}), tmp_path / "other.parquet")
    assert "which holds the labels? Pass label_column" in message(tmp_path / "other.parquet")
    pq.write_table(pa.table({"image": [b"x", b"y"], "label": [1, None]}), tmp_path / "other.parquet")
    assert "without a label" in message(tmp_path / "other.parquet")
    assert "no training part; it has test" in message(dataset_dict(tmp_path / "d", test=table(6)))


def test_without_pyarrow_the_remedy_is_named(tmp_path, monkeypatch):
    root = save_to_disk(tmp_path / "set", table(6))
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'esupcon\[parquet\]'"):
        quietly(root, tmp_path)
