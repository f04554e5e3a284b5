"""Arrays in .npz files, tables of path,label in .csv files, and the digest of a source."""

import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import class_folder, quietly, said, saved

from esupcon.data import DataOptions, source_digest
from esupcon.data.sources import read_npz

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 3, 6, 5)).astype(np.uint8)
LABELS = np.arange(30) % 3


def stored(tmp_path, **arrays):
    np.savez(tmp_path / "set.npz", **arrays)
    return tmp_path / "set.npz"


def whole(tmp_path, **arrays):
    """The source before any split, and what was said about it."""
    lines = []
    source = read_npz(stored(tmp_path, **arrays), DataOptions(), lines.append)
    source.said = " ".join(lines)
    return source


def refused(source, tmp_path, match, **options):
    with pytest.raises(ValueError, match=match) as caught:
        quietly(source, tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_channels_first_last_or_none(tmp_path):
    for images in (IMAGES, IMAGES.transpose(0, 2, 3, 1)):
        found = whole(tmp_path, x_train=images, y_train=LABELS).images
        np.testing.assert_array_equal(found, IMAGES)
        assert found.flags.c_contiguous
    np.testing.assert_array_equal(whole(tmp_path, x_train=IMAGES[:, 0], y_train=LABELS).images, IMAGES[:, :1])
    file = stored(tmp_path, x_train=IMAGES[:, :, :3, :3], y_train=LABELS)
    refused(file, tmp_path, "Pass layout")
    refused(file, tmp_path, "layout: Input should be 'NHWC' or 'NCHW'", layout="CHW")
    first, last = (quietly(file, tmp_path, layout=layout).x_train for layout in ("NCHW", "NHWC"))
    np.testing.assert_array_equal(first.transpose(0, 3, 1, 2), last)


def test_parts_and_classes_under_the_names_of_any_library(tmp_path):
    parts = (IMAGES[:20], LABELS[:20, None], IMAGES[20:], LABELS[20:, None])
    for names in (
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ):
        arrays = dict(zip(names, parts, strict=True))
        data = quietly(stored(tmp_path, **arrays, classes=np.array(["x", "y", "z"]), val_images=IMAGES[:1]), tmp_path)
        assert (data.classes, data.notes) == (("x", "y", "z"), ())
        np.testing.assert_array_equal(data.x_test, IMAGES[20:])
        np.testing.assert_array_equal(data.y_test, LABELS[20:])
    data = quietly(stored(tmp_path, X=IMAGES, y=LABELS), tmp_path)
    assert (len(data.x_train), len(data.x_test)) == (24, 6)
    assert said(data, "no test part")
    assert sorted(np.concatenate([data.x_train, data.x_test]).tolist()) == sorted(IMAGES.tolist())
    assert quietly(tmp_path / "set.npz", tmp_path, image_size=(9, 7), channels=1).image_shape == (1, 9, 7)


@pytest.mark.parametrize(
    ("images", "expected", "words"),
    [
        ((IMAGES / 255).astype(np.float32), IMAGES, "read as 0 to 1"),
        (IMAGES / 255, IMAGES, "read as 0 to 1"),
        (IMAGES + 0.3 * (IMAGES < 255), IMAGES, "read as 0 to 255"),
        (IMAGES.astype(np.int64), IMAGES, ""),
        (IMAGES > 99, np.where(IMAGES > 99, 255, 0), ""),
    ],
)
def test_pixels_of_every_type_are_scaled_with_a_message(tmp_path, images, expected, words):
    source = whole(tmp_path, x_train=images[:20], y_train=LABELS[:20], x_test=images[20:], y_test=LABELS[20:])
    np.testing.assert_array_equal(source.images, expected)
    assert words in source.said
    # A dark test part is not stretched because it alone stays below 1.
    dark = {"x_test": np.ones((3, 3, 6, 5), np.float32), "y_test": LABELS[:3]}
    source = whole(tmp_path, x_train=IMAGES.astype(np.float32), y_train=LABELS, **dark)
    assert source.images[source.n_train :].max() == 1


NAMES = np.array(["oak", "elm", "ash"])


@pytest.mark.parametrize(
    ("labels", "more", "classes"),
    [
        (NAMES[LABELS], {}, ("ash", "elm", "oak")),
        (NAMES[LABELS][:, None], {}, ("ash", "elm", "oak")),
        (NAMES[LABELS], {"classes": NAMES}, ("oak", "elm", "ash")),
        (np.array([100.0, -7.0, 9.0])[LABELS], {}, ("-7", "100", "9")),
        (np.array([2, 10, 9])[LABELS], {}, ("2", "9", "10")),
    ],
)
def test_labels_of_every_type(tmp_path, labels, more, classes):
    arrays = whole(tmp_path, x_train=IMAGES, y_train=labels, **more)
    assert arrays.classes == classes
    assert [classes[k] for k in arrays.labels] == [str(value.astype(int) if value.dtype.kind == "f" else value)
                                                   for value in labels.flatten()]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6), min_size=30, max_size=30
    )
)
def test_any_class_names_are_kept(tmp_path_factory, names):
    arrays = whole(tmp_path_factory.mktemp("n"), x_train=IMAGES, y_train=np.array(names))
    assert [arrays.classes[k] for k in arrays.labels] == names


def test_images_are_scaled_in_little_memory(tmp_path):
    x = np.random.default_rng(0).random((4000, 8, 8))
    np.savez(tmp_path / "set.npz", x=x, y=np.arange(4000) % 2)
    tracemalloc.start()
    source = read_npz(tmp_path / "set.npz", DataOptions(), lambda line: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * x.nbytes
    np.testing.assert_array_equal(source.images, np.rint(x[:, None] * 255))


OK = {"x_train": IMAGES, "y_train": LABELS}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({**OK, "x_test": IMAGES}, "x_test and y_test or neither"),
        ({**OK, "y_train": LABELS[1:]}, "30 images and y_train 29 labels"),
        ({**OK, "y_train": np.eye(3)[LABELS]}, "argmax"),
        ({**OK, "classes": np.array(["a", "b", "a"])}, "names a class twice: 'a', 'b', 'a'"),
        ({**OK, "x_test": IMAGES[:2], "y_test": np.array([0, 5])}, "'5' is only on test images"),
        ({**OK, "y_train": LABELS + 0.5}, "whole numbers or text; got 0.5"),
        ({**OK, "y_train": np.array([b"\xff", b"\xfe", b"c"])[LABELS]}, r"set\.npz: labels must be .* got dtype \|S1"),
        ({**OK, "y_train": np.array([2**64 - 1, 0, 1], np.uint64)[LABELS]}, "got 18446744073709551615"),
        ({**OK, "y_train": np.array(["1" * 5000, "2", "3"])[LABELS]}, "more than 1,000 characters"),
        ({**OK, "x_train": np.zeros((30, 4, 6, 5), np.uint8)}, "1 or 3 channels"),
        ({**OK, "x_test": IMAGES[:3, :, 1:], "y_test": LABELS[:3]}, "differ in size"),
        *(({**OK, "x_train": bad}, "expected 0 to 1 or 0 to 255") for bad in (
            IMAGES / 255 - 0.5, IMAGES * 2.0, IMAGES.astype(np.int16) * 200, IMAGES * np.nan, IMAGES + np.inf)),
    ],
)  # fmt: skip
def test_npz_mistakes(tmp_path, arrays, message):
    refused(stored(tmp_path, **arrays), tmp_path, message)


# --- .csv ---


@pytest.fixture
def images(tmp_path):
    return class_folder(tmp_path / "images", {"a": 6, "b": 6})


def lines(form="images/{name}/{i:03}.png,{name}", **more):
    return [form.format(name=name, i=i, **more) for name in "ab" for i in range(6)]


def written(tmp_path, rows, name="table.csv", encoding="utf-8"):
    (tmp_path / name).write_text("\n".join(rows) + "\n", encoding=encoding)
    return tmp_path / name


@pytest.mark.parametrize(
    ("head", "form", "name"),
    [
        ("path,label", "images/{name}/{i:03}.png,{name}", "t.csv"),
        ("filename;class", "images/{name}/{i:03}.png;{name}", "t.csv"),
        ("Label\tImage", "{name}\timages/{name}/{i:03}.png", "t.tsv"),
        ("id,path,weight,label\r", "7,{here}/images/{name}/{i:03}.png,0.5,{name}\r", "t.csv"),
        ("path,label", "./images/../images/{name}/{i:03}.png,{name}", "t.csv"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_forms_of_csv(tmp_path, images, head, form, name, encoding):
    data = quietly(written(tmp_path, [head, *lines(form, here=tmp_path)], name, encoding), tmp_path)
    assert data.fingerprint == quietly(images, tmp_path).fingerprint


def test_csv_lines_that_are_quoted_or_incomplete(tmp_path):
    names = ["one, two.png", "a\nb.png", "c.png", "d.png"]
    for name in names:
        saved(tmp_path / name)
    rows = [f'"{name}",{"xy"[i % 2]}' for i, name in enumerate(names)]
    table = written(tmp_path, ["path,label", "c.png,", ",x", "", *rows, "absent.png,x"])
    data = quietly(table, tmp_path)
    assert len(data.y_train) + len(data.y_test) == 4
    absent = (str(tmp_path / "absent.png"), "no such file, or a broken link")
    assert data.skipped == ((f"{table}, line 2", "no label"), (f"{table}, line 3", "no path"), absent)


def test_csv_columns_by_name_and_a_split_column(tmp_path, images):
    table = written(tmp_path, ["where,what,label", *lines("images/{name}/{i:03}.png,{name},9")])
    assert quietly(table, tmp_path, image_column="where", label_column="what").classes == ("a", "b")
    for options in ({}, {"image_column": "nope"}):
        refused(table, tmp_path, "which are path and label", **options)
    parts = ["train", "train", "Training", "test", "val", "valid"]
    rows = ["path,label,split", *(f"{line},{parts[i % 6]}" for i, line in enumerate(lines()))]
    data = quietly(written(tmp_path, rows), tmp_path)
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1])
    assert said(data, "4 validation images")
    no_test = quietly(written(tmp_path, [row for row in rows if not row.endswith("test")]), tmp_path)
    assert no_test.y_test.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "fewer than two columns"),
        (["path,label,split", "images/a/000.png,a,tomorrow"], "'tomorrow'; expected train, test or val"),
        (["path,label,split", "images/a/000.png,a,train", "images/b/000.png,b,test"], "'b' is only on test images"),
        (["path,label", '"images/a/000.png,a'], "must be a table"),
        (["path,label", f"images/c.png,{'9' * 5000}"], r"table\.csv: a label has more than 1,000 characters"),
    ],
)
def test_csv_mistakes(tmp_path, images, rows, message):
    refused(written(tmp_path, rows), tmp_path, message)


def test_csv_that_does_not_fit_into_memory_or_is_not_utf8_is_refused(tmp_path, monkeypatch):
    refused(written(tmp_path, ["path,label", "Käfer.png,a"], encoding="cp1252"), tmp_path, "UTF-8")
    monkeypatch.setattr("esupcon._io.memory_budget", lambda: 1000)
    refused(written(tmp_path, ["path,label", *lines()]), tmp_path, r"table\.csv needs .* of memory")


# --- Digest of the content ---


def changed_csv(tmp_path, rows):
    return source_digest(written(tmp_path, ["path,label", *rows]))


def test_digest_changes_with_labels_pixels_and_order(tmp_path, images):
    """A run is computed again if its data changed, although the path did not."""
    before = changed_csv(tmp_path, lines())
    assert changed_csv(tmp_path, lines()) == before
    swapped = [lines()[0].replace(",a", ",b"), *lines()[1:]]
    assert changed_csv(tmp_path, swapped) != before
    assert changed_csv(tmp_path, lines()[::-1]) != before
    assert changed_csv(tmp_path, lines()[1:]) != before
    assert changed_csv(tmp_path, [line.replace(",b", ",c") for line in lines()]) != before
    saved(images / "a" / "000.png")
    assert changed_csv(tmp_path, lines()) != before


def test_digest_of_parts_and_arrays(tmp_path):
    class_folder(tmp_path / "one" / "train", {"a": 4, "b": 4})
    class_folder(tmp_path / "one" / "test", {"a": 1, "b": 1})
    divided = source_digest(tmp_path / "one")
    (tmp_path / "one" / "test" / "a" / "000.png").rename(tmp_path / "one" / "train" / "a" / "999.png")
    assert source_digest(tmp_path / "one") != divided
    arrays = source_digest(stored(tmp_path, x_train=IMAGES, y_train=LABELS))
    assert source_digest(stored(tmp_path, x_train=IMAGES.transpose(0, 2, 3, 1), y_train=LABELS)) == arrays
    assert source_digest(stored(tmp_path, x_train=IMAGES, y_train=LABELS[::-1])) != arrays
    assert source_digest(stored(tmp_path, x_train=IMAGES ^ 1, y_train=LABELS)) != arrays


def test_digest_decodes_nothing_and_opens_no_pipe(tmp_path, images, monkeypatch):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "text.png").write_text("not an image")
    monkeypatch.setattr("esupcon.data.decode._decode", None)
    rows = ["path,label", *lines(), "pipe.png,a", "text.png,b", "absent.png,a"]
    assert len(source_digest(written(tmp_path, rows))) == 64
