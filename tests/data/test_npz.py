"""Arrays in a .npz file."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import quietly, said

from esupcon.data.npz import read_npz

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
    """x_train before any split."""
    return read_npz(stored(tmp_path, **arrays), lambda line: None)


def test_channels_first_last_or_none(tmp_path):
    first = whole(tmp_path, x_train=IMAGES, y_train=LABELS)
    last = whole(tmp_path, x_train=IMAGES.transpose(0, 2, 3, 1), y_train=LABELS)
    np.testing.assert_array_equal(first.x_train, IMAGES)
    np.testing.assert_array_equal(last.x_train, IMAGES)
    assert last.x_train.flags.c_contiguous
    np.testing.assert_array_equal(whole(tmp_path, x_train=IMAGES[:, 0], y_train=LABELS).x_train, IMAGES[:, :1])


def test_a_shape_that_may_be_either_asks(tmp_path):
    square = IMAGES[:, :, :3, :3]
    refused(tmp_path, "Pass layout", x_train=square, y_train=LABELS)
    file = tmp_path / "set.npz"
    as_first = quietly(file, tmp_path, layout="NCHW")
    as_last = quietly(file, tmp_path, layout="NHWC")
    np.testing.assert_array_equal(as_first.x_train.transpose(0, 3, 1, 2), as_last.x_train)
    with pytest.raises(ValueError, match="'NHWC' or 'NCHW'"):
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


def test_without_a_test_part_one_is_drawn_and_said(tmp_path):
    data = quietly(stored(tmp_path, x_train=IMAGES, y_train=LABELS), tmp_path)
    assert (len(data.x_train), len(data.x_test)) == (24, 6)
    assert said(data, "no test part")
    together = np.concatenate([data.x_train, data.x_test])
    assert {image.tobytes() for image in together} == {image.tobytes() for image in IMAGES}


def test_the_names_other_libraries_use(tmp_path):
    data = quietly(
        stored(tmp_path, train_images=IMAGES[:20], train_labels=LABELS[:20, None], test_images=IMAGES[20:],
               test_labels=LABELS[20:, None], val_images=IMAGES[:1], val_labels=LABELS[:1]),
        tmp_path,
    )  # fmt: skip
    np.testing.assert_array_equal(data.y_test, LABELS[20:])
    assert len(quietly(stored(tmp_path, X=IMAGES, y=LABELS), tmp_path).x_train) == 24


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_from_0_to_1_are_scaled_and_it_is_said(tmp_path, dtype):
    unit = (IMAGES / 255).astype(dtype)
    file = stored(tmp_path, x_train=unit[:20], y_train=LABELS[:20], x_test=unit[20:], y_test=LABELS[20:])
    data = quietly(file, tmp_path)
    np.testing.assert_allclose(data.x_train, IMAGES[:20], atol=0 if dtype != np.float16 else 1)
    assert said(data, "read as 0 to 1")


def test_floats_from_0_to_255_are_rounded_and_it_is_said(tmp_path):
    file = stored(tmp_path, x_train=IMAGES + 0.3 * (IMAGES < 255), y_train=LABELS)
    data = quietly(file, tmp_path)
    assert said(data, "read as 0 to 255")
    assert {image.tobytes() for image in data.x_test} <= {image.tobytes() for image in IMAGES}


def test_one_scale_for_train_and_test(tmp_path):
    """A dark test part must not be stretched because it alone stays below 1."""
    arrays = whole(
        tmp_path, x_train=IMAGES.astype(np.float32), y_train=LABELS, x_test=np.ones((3, 3, 6, 5), np.float32),
        y_test=LABELS[:3],
    )  # fmt: skip
    assert arrays.x_test.max() == 1


def test_other_whole_numbers_and_truth_values(tmp_path):
    np.testing.assert_array_equal(whole(tmp_path, x_train=IMAGES.astype(np.int64), y_train=LABELS).x_train, IMAGES)
    np.testing.assert_array_equal(
        whole(tmp_path, x_train=IMAGES > 99, y_train=LABELS).x_train, np.where(IMAGES > 99, 255, 0)
    )


@pytest.mark.parametrize(
    "bad", [IMAGES / 255 - 0.5, IMAGES * 2.0, IMAGES.astype(np.int16) * 200, IMAGES * np.nan, IMAGES + np.inf]
)
def test_other_ranges_are_refused(tmp_path, bad):
    refused(tmp_path, "expected 0 to 1 or 0 to 255", x_train=bad, y_train=LABELS)


def test_labels_of_all_kinds(tmp_path):
    names = np.array(["oak", "elm", "ash"])
    for labels in (names[LABELS], names[LABELS].astype("S"), names[LABELS][:, None]):
        arrays = whole(tmp_path, x_train=IMAGES, y_train=labels)
        assert arrays.classes == ("ash", "elm", "oak")
        np.testing.assert_array_equal(arrays.y_train, 2 - LABELS)
    arrays = whole(tmp_path, x_train=IMAGES, y_train=names[LABELS], classes=names)
    assert arrays.classes == ("oak", "elm", "ash")
    np.testing.assert_array_equal(arrays.y_train, LABELS)
    sparse = whole(tmp_path, x_train=IMAGES, y_train=np.array([100.0, -7.0, 9.0])[LABELS])
    assert sparse.classes == ("-7", "100", "9")
    assert [sparse.classes[k] for k in sparse.y_train[:3]] == ["100", "-7", "9"]
    assert whole(tmp_path, x_train=IMAGES, y_train=np.array([2, 10, 9])[LABELS]).classes == ("2", "9", "10")


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6), min_size=30, max_size=30
    )
)
def test_any_names_come_back(tmp_path_factory, names):
    arrays = whole(tmp_path_factory.mktemp("n"), x_train=IMAGES, y_train=np.array(names))
    assert [arrays.classes[k] for k in arrays.y_train] == names


def test_mistakes(tmp_path):
    ok = {"x_train": IMAGES, "y_train": LABELS}
    refused(tmp_path, "no x_train; it holds foo", foo=IMAGES)
    refused(tmp_path, "no y_train", x_train=IMAGES)
    refused(tmp_path, "one of x_test and y_test", **ok, x_test=IMAGES)
    refused(tmp_path, "30 images and y_train 29 labels", x_train=IMAGES, y_train=LABELS[1:])
    refused(tmp_path, "argmax", x_train=IMAGES, y_train=np.eye(3)[LABELS])
    refused(tmp_path, "labels run from 0 to 1", **ok, classes=np.array(["a", "b"]))
    refused(tmp_path, "'a' twice", **ok, classes=np.array(["a", "b", "a"]))
    refused(tmp_path, "'fir' is not among", x_train=IMAGES, y_train=np.array(["fir", "b", "a"])[LABELS],
            classes=np.array(["a", "b"]))  # fmt: skip
    refused(tmp_path, "'5' is on test images alone", **ok, x_test=IMAGES[:2], y_test=np.array([0, 5]))
    refused(tmp_path, "0.5 is neither", x_train=IMAGES, y_train=LABELS + 0.5)
    refused(tmp_path, "dtype complex", x_train=IMAGES, y_train=LABELS * 1j)
    refused(tmp_path, "must be numbers", x_train=IMAGES.astype("U3"), y_train=LABELS)
    refused(tmp_path, "1 or 3 channels", x_train=np.zeros((30, 4, 6, 5), np.uint8), y_train=LABELS)
    refused(tmp_path, r"got shape \(30, 90\)", x_train=IMAGES.reshape(30, 90), y_train=LABELS)
    refused(tmp_path, "differ in size", **ok, x_test=IMAGES[:3, :, 1:], y_test=LABELS[:3])
    refused(tmp_path, "two classes", x_train=IMAGES, y_train=LABELS * 0)


def test_objects_are_not_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.savez(tmp_path / "set.npz", x_train=IMAGES, y_train=np.array([Trap()] * 30, object))
    with pytest.raises(ValueError, match="Python objects, which are not read"):
        quietly(tmp_path / "set.npz", tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "array", "pickle"])
def test_files_that_are_no_npz(tmp_path, damage):
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


def test_arrays_are_resized_and_recoloured_on_request(tmp_path):
    file = stored(tmp_path, x_train=IMAGES, y_train=LABELS)
    assert quietly(file, tmp_path, image_size=(9, 7), channels=1).image_shape == (1, 9, 7)
