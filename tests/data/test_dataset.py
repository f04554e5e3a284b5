"""Dataset, its options, rows without copies, registered sets, and the cost of imports."""

import numpy as np
import pytest
from pictures import class_folder, quietly

import esupcon.data
from esupcon.data import DataOptions, Dataset, dataset, register_dataset, source_digest
from esupcon.data.dataset import Rows, take_rows


def made(**changes):
    fields = {
        "x_train": np.zeros((4, 3, 2, 2), np.uint8),
        "y_train": np.array([0, 1, 0, 1]),
        "x_test": np.ones((2, 3, 2, 2), np.uint8),
        "y_test": np.array([0, 1]),
        "classes": ("a", "b"),
    }
    return Dataset(**{**fields, **changes})


def test_fingerprint_depends_on_the_content():
    assert repr(made(name="toy")) == "Dataset('toy', 4 train and 2 test images of 3x2x2, 2 classes)"
    assert made().fingerprint == made(name="other").fingerprint
    changed = np.zeros((4, 3, 2, 2), np.uint8)
    changed[3, 2, 1, 1] = 1
    others = [
        made(x_train=changed),
        made(y_train=np.array([0, 1, 1, 1])),
        made(x_test=np.zeros((2, 3, 2, 2), np.uint8)),
        made(y_test=np.array([1, 1])),
        made(classes=("a", "c")),
        made(x_train=np.zeros((4, 3, 1, 4), np.uint8), x_test=np.ones((2, 3, 1, 4), np.uint8)),
    ]
    assert len({made().fingerprint, *(other.fingerprint for other in others)}) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": np.zeros((2, 2, 2), np.uint8)}, "x_test must be uint8"),
        ({"y_train": np.zeros(3, np.int64)}, r"int64 \(4,\)"),
        ({"y_test": np.array([0, 2])}, r"0\.\.1; it has 0 to 2"),
        ({"y_test": np.array([-1, 0])}, "it has -1 to 0"),
        ({"x_test": np.ones((2, 1, 2, 2), np.uint8)}, "one shape"),
    ],
)
def test_invalid_fields_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        made(**changes)


def test_every_option_has_a_help_text_and_those_without_effect_are_in_no_key():
    assert all(field.description for field in DataOptions.model_fields.values())
    given = {"data_dir": "x", "cache_dir": "y", "cache": False, "workers": 3, "strict": True, "download": False}
    assert DataOptions(**given).model_dump() == DataOptions().model_dump()
    assert not set(given) & set(DataOptions().model_dump())
    assert DataOptions(image_size=[3, 4]).model_dump()["image_size"] == (3, 4)


def with_test_part(kind, tmp_path):
    """Return a source that has a test part, or whose test part is decided otherwise."""
    match kind:
        case "npz":
            x, y = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])
            np.savez(tmp_path / "set.npz", x_train=x, y_train=y, x_test=x, y_test=y)
            return tmp_path / "set.npz"
        case "caltech256":  # more than 60 images of each class: 60 of them train
            root = tmp_path / "256_ObjectCategories"
            for folder, number in (("001.ak47", 1), ("002.flag", 2)):
                (root / folder).mkdir(parents=True)
                for i in range(61):
                    (root / folder / f"{number:03}_{i:04}.jpg").write_bytes(b"never decoded")
            return root
    register_dataset("toy", made)
    return "toy"


@pytest.mark.parametrize("kind", ["npz", "caltech256", "registered"])
@pytest.mark.parametrize("option", [{"test_fraction": 0.4}, {"split_seed": 3}])
def test_option_of_a_drawn_test_part_is_refused_if_there_is_one(tmp_path, monkeypatch, kind, option):
    monkeypatch.setattr(dataset, "_REGISTERED", {})
    source = with_test_part(kind, tmp_path)
    if kind == "caltech256" and "split_seed" in option:
        assert source_digest(source, **option)  # it draws the 60
        return
    words = rf"{next(iter(option))}={next(iter(option.values()))} does not apply to .*(toy|set|Cat)\S*: .*\. Omit it\."
    for read in (source_digest, lambda *given, **more: quietly(*given, tmp_path, **more)):
        with pytest.raises(ValueError, match=words):
            read(source, **option)
    if kind != "caltech256":
        assert len(esupcon.data.load(source, log=print, cache=False, lenient=[*option], **option).x_test)


def test_rows_are_read_without_a_copy_of_the_array(tmp_path, monkeypatch):
    root = class_folder(tmp_path / "set", {"a": 6, "b": 6})
    (root / "a" / "bad.png").write_bytes(b"bad")
    small = quietly(root, tmp_path)
    array = np.arange(240, dtype=np.uint8).reshape(10, 1, 4, 6)
    indices = np.array([7, 2, 2, 9])
    monkeypatch.setattr(dataset, "_COPIED_BYTES", 0)
    rows = take_rows(array, indices)
    assert isinstance(rows, Rows)
    assert (len(rows), rows.shape, rows.dtype, rows.ndim) == (4, (4, 1, 4, 6), np.uint8, 4)
    for key in (1, -1, slice(1, 3), slice(None), np.array([3, 0]), indices > 5, [0, 2]):
        np.testing.assert_array_equal(rows[key], array[indices][key])
    np.testing.assert_array_equal(np.asarray(rows), array[indices])
    np.testing.assert_array_equal(take_rows(rows, np.array([3, 0]))[:], array[[9, 7]])
    view = take_rows(array, np.arange(3, 8))
    assert view.base is not None
    np.testing.assert_array_equal(view, array[3:8])
    large = quietly(root, tmp_path)
    assert isinstance(large.x_train, Rows)
    assert isinstance(large.x_train.array, np.memmap)
    assert large.x_train.array.base is large.x_test.array.base
    assert large.fingerprint == small.fingerprint


def test_registered_set_is_loaded_and_hashed_by_content(monkeypatch):
    monkeypatch.setattr(dataset, "_REGISTERED", {})
    register_dataset("toy", made)
    assert esupcon.data.load("toy").name == "toy"
    before = source_digest("toy")
    assert before == made().fingerprint
    register_dataset("toy", lambda: made(y_train=np.array([1, 0, 0, 1])))
    assert source_digest("toy") != before
    assert esupcon.data.load("toy", image_size=2, channels=3).image_shape == (3, 2, 2)
    for option in ({"image_size": 3}, {"channels": 1}, {"layout": "NCHW"}):
        with pytest.raises(ValueError, match=rf"{next(iter(option))}=\w+ (does not apply|applies)"):
            esupcon.data.load("toy", **option)
    for name in ("digits", "a b", ""):
        with pytest.raises(ValueError, match="must be an identifier"):
            register_dataset(name, made)
