"""Arrays in .npz files, tables of path,label in .csv files, and the digest of a source."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import class_folder, quietly, said, saved

from esupcon.data import DataOptions, source_digest
from esupcon.data.sources import in_class_order, read_npz

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 3, 6, 5)).astype(np.uint8)
LABELS = np.arange(30) % 3


def stored(tmp_path, **arrays):
    np.savez(tmp_path / "set.npz", **arrays)
    return tmp_path / "set.npz"


def refused(tmp_path, match, layout=None, **arrays):
    with pytest.raises(ValueError, match=match) as caught:
        quietly(stored(tmp_path, **arrays), tmp_path, layout=layout)
    assert "\n" not in str(caught.value)


def whole(tmp_path, **arrays):
    """The source before any split."""
    return read_npz(stored(tmp_path, **arrays), DataOptions(), lambda line: None)


def test_channels_first_last_or_none(tmp_path):
    first = whole(tmp_path, x_train=IMAGES, y_train=LABELS)
    last = whole(tmp_path, x_train=IMAGES.transpose(0, 2, 3, 1), y_train=LABELS)
    np.testing.assert_array_equal(first.images, IMAGES)
    np.testing.assert_array_equal(last.images, IMAGES)
    assert last.images.flags.c_contiguous
    np.testing.assert_array_equal(whole(tmp_path, x_train=IMAGES[:, 0], y_train=LABELS).images, IMAGES[:, :1])


def test_ambiguous_shape_needs_a_layout(tmp_path):
    square = IMAGES[:, :, :3, :3]
    refused(tmp_path, "Pass layout", x_train=square, y_train=LABELS)
    file = tmp_path / "set.npz"
    as_first = quietly(file, tmp_path, layout="NCHW")
    as_last = quietly(file, tmp_path, layout="NHWC")
    np.testing.assert_array_equal(as_first.x_train.transpose(0, 3, 1, 2), as_last.x_train)
    with pytest.raises(ValueError, match="layout: Input should be 'NHWC' or 'NCHW'"):
        quietly(file, tmp_path, layout="CHW")


def test_both_parts_and_classes(tmp_path):
    file = stored(
        tmp_path, x_train=IMAGES[:20], y_train=LABELS[:20], x_test=IMAGES[20:], y_test=LABELS[20:],
        classes=np.array(["x", "y", "z"]),
    )  # fmt: skip
    data = quietly(file, tmp_path)
    assert data.classes == ("x", "y", "z")
    np.testing.assert_array_equal(data.x_test, IMAGES[20:])
    np.testing.assert_array_equal(data.y_test, LABELS[20:])
    assert data.notes == ()


def test_missing_test_part_is_drawn_with_a_message(tmp_path):
    data = quietly(stored(tmp_path, x_train=IMAGES, y_train=LABELS), tmp_path)
    assert (len(data.x_train), len(data.x_test)) == (24, 6)
    assert said(data, "no test part")
    together = np.concatenate([data.x_train, data.x_test])
    assert {image.tobytes() for image in together} == {image.tobytes() for image in IMAGES}


def test_names_that_other_libraries_use(tmp_path):
    data = quietly(
        stored(tmp_path, train_images=IMAGES[:20], train_labels=LABELS[:20, None], test_images=IMAGES[20:],
               test_labels=LABELS[20:, None], val_images=IMAGES[:1], val_labels=LABELS[:1]),
        tmp_path,
    )  # fmt: skip
    np.testing.assert_array_equal(data.y_test, LABELS[20:])
    assert len(quietly(stored(tmp_path, X=IMAGES, y=LABELS), tmp_path).x_train) == 24


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_from_0_to_1_are_scaled_with_a_message(tmp_path, dtype):
    unit = (IMAGES / 255).astype(dtype)
    file = stored(tmp_path, x_train=unit[:20], y_train=LABELS[:20], x_test=unit[20:], y_test=LABELS[20:])
    data = quietly(file, tmp_path)
    np.testing.assert_allclose(data.x_train, IMAGES[:20], atol=0 if dtype != np.float16 else 1)
    assert said(data, "read as 0 to 1")


def test_floats_from_0_to_255_are_rounded_with_a_message(tmp_path):
    file = stored(tmp_path, x_train=IMAGES + 0.3 * (IMAGES < 255), y_train=LABELS)
    data = quietly(file, tmp_path)
    assert said(data, "read as 0 to 255")
    assert {image.tobytes() for image in data.x_test} <= {image.tobytes() for image in IMAGES}


def test_train_and_test_have_one_scale(tmp_path):
    """A dark test part must not be stretched because it alone stays below 1."""
    arrays = whole(
        tmp_path, x_train=IMAGES.astype(np.float32), y_train=LABELS, x_test=np.ones((3, 3, 6, 5), np.float32),
        y_test=LABELS[:3],
    )  # fmt: skip
    assert arrays.images[arrays.n_train :].max() == 1


def test_integers_and_booleans(tmp_path):
    np.testing.assert_array_equal(whole(tmp_path, x_train=IMAGES.astype(np.int64), y_train=LABELS).images, IMAGES)
    np.testing.assert_array_equal(
        whole(tmp_path, x_train=IMAGES > 99, y_train=LABELS).images, np.where(IMAGES > 99, 255, 0)
    )


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


OK = {"x_train": IMAGES, "y_train": LABELS}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"foo": IMAGES}, "must hold x_train and y_train, .* it holds foo"),
        ({"x_train": IMAGES}, "must hold x_train and y_train"),
        ({**OK, "x_test": IMAGES}, "x_test and y_test or neither"),
        ({**OK, "y_train": LABELS[1:]}, "30 images and y_train 29 labels"),
        ({**OK, "y_train": np.eye(3)[LABELS]}, "argmax"),
        ({**OK, "classes": np.array(["a", "b"])}, "the label '2' is none of its 2 classes"),
        ({**OK, "classes": np.array(["a", "b", "a"])}, "names a class twice: 'a', 'b', 'a'"),
        ({**OK, "y_train": NAMES[LABELS], "classes": NAMES[1:]}, "'oak' is none of its 2 classes"),
        ({**OK, "x_test": IMAGES[:2], "y_test": np.array([0, 5])}, "'5' is only on test images"),
        ({**OK, "y_train": LABELS + 0.5}, "whole numbers or text; got 0.5"),
        ({**OK, "y_train": LABELS * np.nan}, "whole numbers or text; got nan"),
        ({**OK, "y_train": LABELS * 1j}, "dtype complex"),
        ({**OK, "y_train": np.array([b"\xff", b"\xfe", b"c"])[LABELS]}, r"set\.npz: labels must be .* got dtype \|S1"),
        ({**OK, "y_train": np.array([2**64 - 1, 0, 1], np.uint64)[LABELS]}, "got 18446744073709551615"),
        ({**OK, "y_train": np.array(["1" * 5000, "2", "3"])[LABELS]}, "more than 1,000 characters"),
        ({**OK, "x_train": IMAGES.astype("U3")}, "must be numbers"),
        ({**OK, "x_train": np.zeros((30, 4, 6, 5), np.uint8)}, "1 or 3 channels"),
        ({**OK, "x_train": IMAGES.reshape(30, 90)}, r"got shape \(30, 90\)"),
        ({**OK, "x_test": IMAGES[:3, :, 1:], "y_test": LABELS[:3]}, "differ in size"),
        ({**OK, "y_train": LABELS * 0}, "two classes"),
        ({"x_train": IMAGES[:0], "y_train": LABELS[:0]}, "two classes"),
        *(({**OK, "x_train": bad}, "expected 0 to 1 or 0 to 255") for bad in (
            IMAGES / 255 - 0.5, IMAGES * 2.0, IMAGES.astype(np.int16) * 200, IMAGES * np.nan, IMAGES + np.inf)),
    ],
)  # fmt: skip
def test_npz_mistakes(tmp_path, arrays, message):
    refused(tmp_path, message, **arrays)


def test_objects_in_npz_are_not_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.savez(tmp_path / "set.npz", x_train=IMAGES, y_train=np.array([Trap()] * 30, object))
    with pytest.raises(ValueError, match="Python objects, which are not read"):
        quietly(tmp_path / "set.npz", tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "array", "pickle"])
def test_damaged_npz_is_refused(tmp_path, damage):
    file = stored(tmp_path, x_train=IMAGES, y_train=LABELS)
    match damage:
        case "cut":
            file.write_bytes(file.read_bytes()[:900])
        case "text":
            file.write_text("not an archive")
        case "empty":
            file.write_bytes(b"")
        case "array":
            with file.open("wb") as handle:
                np.save(handle, IMAGES)
        case "pickle":
            file.write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match=r"cannot be read as \.npz") as caught:
        quietly(file, tmp_path)
    assert "\n" not in str(caught.value)


def test_arrays_are_resized_and_converted(tmp_path):
    file = stored(tmp_path, x_train=IMAGES, y_train=LABELS)
    assert quietly(file, tmp_path, image_size=(9, 7), channels=1).image_shape == (1, 9, 7)


# --- .csv ---


@pytest.fixture
def images(tmp_path):
    return class_folder(tmp_path / "images", {"a": 6, "b": 6})


def lines(count=6, form="images/{name}/{i:03}.png,{name}"):
    return [form.format(name=name, i=i) for name in "ab" for i in range(count)]


def written(tmp_path, rows, name="table.csv", encoding="utf-8"):
    (tmp_path / name).write_text("\n".join(rows) + "\n", encoding=encoding)
    return tmp_path / name


@pytest.mark.parametrize(
    ("head", "form", "name"),
    [
        ("path,label", "images/{name}/{i:03}.png,{name}", "t.csv"),
        ("filename;class", "images/{name}/{i:03}.png;{name}", "t.csv"),
        ("Label\tImage", "{name}\timages/{name}/{i:03}.png", "t.tsv"),
        ("id,path,weight,label", "7,images/{name}/{i:03}.png,0.5,{name}", "t.csv"),
        ("path,label", "./images/../images/{name}/{i:03}.png,{name}", "t.csv"),
    ],
)
def test_forms_of_csv(tmp_path, images, head, form, name):
    data = quietly(written(tmp_path, [head, *lines(form=form)], name), tmp_path)
    assert data.fingerprint == quietly(images, tmp_path).fingerprint


def test_csv_with_absolute_paths_byte_order_mark_and_windows_line_ends(tmp_path, images):
    rows = ["path,label\r", *(f"{images}/{name}/{i:03}.png,{name}\r" for name in "ab" for i in range(6))]
    data = quietly(written(tmp_path, rows, encoding="utf-8-sig"), tmp_path)
    assert data.fingerprint == quietly(images, tmp_path).fingerprint


def test_csv_with_commas_and_line_breaks_in_quoted_names(tmp_path):
    names = ["one, two.png", "a\nb.png", "c.png", "d.png"]
    for name in names:
        saved(tmp_path / name)
    rows = ["path,label", *(f'"{name}",{"xy"[i % 2]}' for i, name in enumerate(names)), "absent.png,x"]
    data = quietly(written(tmp_path, rows), tmp_path)
    assert len(data.y_train) + len(data.y_test) == 4
    assert data.skipped == ((str(tmp_path / "absent.png"), "no such file, or a broken link"),)


def test_csv_columns_by_name(tmp_path, images):
    rows = ["where,what,label", *lines(form="images/{name}/{i:03}.png,{name},9")]
    data = quietly(written(tmp_path, rows), tmp_path, image_column="where", label_column="what")
    assert data.classes == ("a", "b")
    for options in ({}, {"image_column": "nope"}):
        with pytest.raises(ValueError, match="which are path and label"):
            quietly(tmp_path / "table.csv", tmp_path, **options)


def test_csv_with_a_split_column(tmp_path, images):
    parts = ["train", "train", "Training", "test", "val", "valid"]
    rows = ["path,label,split"]
    rows += [f"images/{name}/{i:03}.png,{name},{parts[i]}" for name in "ab" for i in range(6)]
    data = quietly(written(tmp_path, rows), tmp_path)
    assert data.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.y_test.tolist() == [0, 1]
    assert said(data, "4 validation images")
    no_test = quietly(written(tmp_path, [row for row in rows if not row.endswith("test")]), tmp_path)
    assert no_test.y_test.tolist() == [0, 0, 1, 1]


def test_csv_lines_without_label_or_path_are_skipped(tmp_path, images):
    data = quietly(written(tmp_path, ["path,label", "images/a/000.png,", ",a", "", *lines()[1:]]), tmp_path)
    table = tmp_path / "table.csv"
    assert data.skipped == ((f"{table}, line 2", "no label"), (f"{table}, line 3", "no path"))


def test_csv_repeated_lines_count_once_and_contradictions_are_refused(tmp_path, images):
    data = quietly(written(tmp_path, ["path,label", *lines(), *lines()[:3]]), tmp_path)
    assert len(data.y_train) + len(data.y_test) == 12
    with pytest.raises(
        ValueError, match=r"line 14: images/a/000.png is 'b' \(train\), and 'a' \(train\) in an earlier"
    ):
        quietly(written(tmp_path, ["path,label", *lines(), "images/a/000.png,b"]), tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "fewer than two columns"),
        (["just one column"], "fewer than two columns"),
        (["path,label"], "names no training images"),
        (["path,label,split", "images/a/000.png,a,tomorrow"], "'tomorrow'; expected train, test or val"),
        (["path,label,split", "images/a/000.png,a,train", "images/b/000.png,b,test"], "'b' is only on test images"),
        (["path,label", '"images/a/000.png,a'], "must be a table"),
        (["path,label", f"images/c.png,{'9' * 5000}"], r"table\.csv: a label has more than 1,000 characters"),
    ],
)
def test_csv_mistakes(tmp_path, images, rows, message):
    with pytest.raises(ValueError, match=message) as caught:
        quietly(written(tmp_path, rows), tmp_path)
    assert "\n" not in str(caught.value)


def test_csv_that_does_not_fit_into_memory_is_refused(tmp_path, images, monkeypatch):
    table = written(tmp_path, ["path,label", *lines()])
    monkeypatch.setattr("esupcon._io.memory_budget", lambda: 1000)
    with pytest.raises(ValueError, match=r"table\.csv needs .* of memory"):
        quietly(table, tmp_path)


def test_csv_that_is_not_utf8(tmp_path, images):
    with pytest.raises(ValueError, match="UTF-8"):
        quietly(written(tmp_path, ["path,label", "Käfer.png,a"], encoding="cp1252"), tmp_path)


@given(st.sets(st.integers(0, 10**30).map(str), min_size=1))
def test_numeric_class_names_are_sorted_by_value(names):
    assert list(map(int, in_class_order(names))) == sorted(map(int, names))


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


def test_digest_does_not_depend_on_the_path(tmp_path, images):
    copy = class_folder(tmp_path / "elsewhere" / "copy", {"a": 6, "b": 6})
    assert source_digest(copy) == source_digest(images) == source_digest(written(tmp_path, ["path,label", *lines()]))


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
