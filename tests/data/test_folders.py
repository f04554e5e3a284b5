"""Folders of images, tidy and messy."""

import os
import unicodedata

import numpy as np
import pytest
from pictures import class_folder, picture, quietly, said, saved
from PIL import Image

from esupcon._io import OwnedFolder
from esupcon.data import load


def test_class_folders_are_split_by_class_with_a_message(tmp_path, capsys):
    root = class_folder(tmp_path / "pets", {"cat": 10, "dog": 20})
    data = load(root, cache_dir=tmp_path / "cache")
    assert data.classes == ("cat", "dog")
    assert np.bincount(data.y_train).tolist() == [8, 16]
    assert np.bincount(data.y_test).tolist() == [2, 4]
    assert data.x_train.shape == (24, 3, 24, 24)
    assert data.x_train.dtype == np.uint8
    assert data.y_train.dtype == np.int64
    assert said(data, "no test part", "6 of 30", "split_seed=0")
    spoken = capsys.readouterr()
    assert spoken.out == ""
    assert [line.removeprefix("esupcon: ") for line in spoken.err.splitlines()] == list(data.notes)


def test_every_image_arrives_with_its_class(tmp_path):
    root = tmp_path / "set"
    for k, name in enumerate(["red", "blue"]):
        for i in range(6):
            colour = (200 + i, 0, 0) if k == 0 else (0, 0, 200 + i)
            saved(root / name / f"{i}.png", Image.new("RGB", (8, 8), colour))
    data = quietly(root, tmp_path)
    assert data.classes == ("blue", "red")
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        for image, label in zip(x, y, strict=True):
            assert image[2 if label == 0 else 0, 0, 0] >= 200
    seen = sorted(int(image.max()) for image in np.concatenate([data.x_train, data.x_test]))
    assert seen == sorted(2 * list(range(200, 206)))


def counts(data):
    return np.bincount(np.concatenate([data.y_train, data.y_test])).tolist()


def test_split_depends_on_the_seed(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 20, "b": 20})
    assert quietly(root, tmp_path, split_seed=1).fingerprint == quietly(root, tmp_path, split_seed=1).fingerprint
    assert quietly(root, tmp_path, split_seed=1).fingerprint != quietly(root, tmp_path, split_seed=2).fingerprint
    half = quietly(root, tmp_path, test_fraction=0.5)
    assert (len(half.x_train), len(half.x_test)) == (20, 20)


@pytest.mark.parametrize(
    ("files", "classes", "expected", "words"),
    [
        ({"train/a": 5, "train/b": 5}, ("a", "b"), [5, 5], ["no test part"]),
        (
            {"train/a": 3, "train/b": 3, "val/a": 3, "val/b": 3, "test/a": 3, "test/b": 5},
            ("a", "b"),
            [6, 8],
            ["val: train"],
        ),
        ({"train/a": 5, "train/b": 5, "test": 1}, ("a", "b"), [5, 5], ["no class folders"]),
        ({"train/a": 3, "train/b": 3, "test/a": 2, "test/b": 0}, ("a", "b"), [5, 3], ["without a test image", "'b'"]),
        ({"bus": 4, "train": 4}, ("bus", "train"), [4, 4], []),
        ({"bus": 4, "train/steam": 2, "train/electric": 2}, ("bus", "train"), [4, 4], []),
        ({"train": 3, "train/steam": 2, "test": 4}, ("test", "train"), [4, 5], []),
        ({"a/images/2020": 3, "a/images/2021": 2, "b": 3}, ("a", "b"), [5, 3], []),
        ({"10": 2, "9": 2, "1": 2}, ("1", "9", "10"), [2, 2, 2], []),
        ({"Käfer grün": 3, "emoji 🐕": 3, "猫": 2}, ("Käfer grün", "emoji 🐕", "猫"), [3, 3, 2], []),
        ({"a": 3, "hollow": 0, "b": 3}, ("a", "b"), [3, 3], ["hollow (empty)"]),
        ({"a": 3, "b": 3, "rare": 1}, ("a", "b", "rare"), [3, 3, 1], ["every class with two or more"]),
    ],
)
def test_layouts_of_folders(tmp_path, files, classes, expected, words):
    data = quietly(class_folder(tmp_path / "set", files), tmp_path)
    assert data.classes == classes
    assert counts(data) == expected
    assert not words or said(data, *words)


@pytest.mark.parametrize(
    ("train", "test"),
    [("train", "test"), ("Train", "val"), ("training", "validation"), ("TRAIN", "Eval"), ("train", "VALID")],
)
def test_train_and_test_folders(tmp_path, train, test):
    root = tmp_path / "set"
    class_folder(root / train, {"a": 4, "b": 3})
    class_folder(root / test, {"a": 2, "b": 1})
    data = quietly(root, tmp_path)
    assert data.y_train.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert data.y_test.tolist() == [0, 0, 1]
    assert isinstance(data.x_train, np.memmap)
    assert not said(data, "no test part")
    np.testing.assert_array_equal(data.x_test[0], data.x_train[0])  # both were made as the first picture


def test_images_deeper_than_the_recursion_limit(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 3, "b": 3})
    folders = [str(root / "a")]
    try:
        for _ in range(1200):
            folders.append(folders[-1] + "/d")
            os.mkdir(folders[-1])  # noqa: PTH102 - a Path of so many parts is slow
        with open(folders[-1] + "/x.png", "wb") as file:  # noqa: PTH123
            file.write((root / "a" / "000.png").read_bytes())
        data = quietly(root, tmp_path)
        os.remove(folders[-1] + "/x.png")  # noqa: PTH107
    finally:
        for folder in reversed(folders[1:]):
            os.rmdir(folder)  # noqa: PTH106
    assert len(data.y_train) + len(data.y_test) == 7


@pytest.mark.parametrize("name", [b"caf\xe9.png", b"a\tb\nc 'd' \"e\".png"])
def test_odd_file_names(tmp_path, name):
    root = class_folder(tmp_path / "set", {"a": 3, "b": 3})
    try:
        (root / "a" / os.fsdecode(name)).write_bytes((root / "a" / "000.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    assert counts(quietly(root, tmp_path)) == [4, 3]


def test_class_names_equal_after_unicode_normalisation_are_merged(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "Käfer") for form in ("NFC", "NFD"))
    root = class_folder(tmp_path / "set", {composed: 2, decomposed: 3, "b": 2})
    if len(list(root.iterdir())) == 2:
        pytest.skip("this file system holds the two spellings for one name")
    data = quietly(root, tmp_path)
    assert data.classes == (composed, "b")
    assert counts(data) == [5, 2]


def test_hidden_and_system_files_are_ignored(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 3, "b": 3})
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store", "._000.png", ".hidden.jpg", "notes.txt"):
        (root / "a" / name).write_bytes(b"x")
    (root / ".git").mkdir()
    saved(root / ".git" / "x.png")
    class_folder(root / "__MACOSX", {"a": 2})
    class_folder(root / "a" / "__MACOSX", {"deep": 2})
    data = quietly(root, tmp_path)
    assert data.classes == ("a", "b")
    assert len(data.y_train) + len(data.y_test) == 6
    assert said(data, "7 entries", "not images")
    assert data.skipped == ()


@pytest.mark.parametrize("place", ["run", "a/run", "train/a/run"])
def test_output_folder_of_ours_is_never_read_as_a_class(tmp_path, place):
    """`esupcon train . --out run` a second time finds the first run among the data."""
    root = tmp_path / "set"
    class_folder(root / "train" if place.startswith("train") else root, {"a": 4, "b": 4})
    if place.startswith("train"):
        class_folder(root / "test", {"a": 1, "b": 1})
    before = quietly(root, tmp_path)
    OwnedFolder(root / place, ["report.png"]).claim()
    saved(root / place / "report.png")
    class_folder(root / place, {"thumbnails": 3})
    after = quietly(root, tmp_path)
    assert after.classes == ("a", "b")
    assert after.fingerprint == before.fingerprint


def test_class_of_unreadable_files_is_refused_by_name(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 3, "b": 3})
    for i in range(2):
        (root / "ruin").mkdir(exist_ok=True)
        (root / "ruin" / f"{i}.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"'ruin' has no readable image.*0\.jpg.*0 bytes") as caught:
        quietly(root, tmp_path)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_skipped_and_listed(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 6, "b": 6})
    whole = (root / "a" / "000.png").read_bytes()
    (root / "a" / "empty.jpg").touch()
    (root / "a" / "text.jpg").write_text("not an image")
    (root / "b" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    saved(root / "b" / "bomb.png", picture(40, 40))
    data = quietly(root, tmp_path, max_pixels=1000)
    reasons = {os.path.basename(path): reason for path, reason in data.skipped}  # noqa: PTH119 - paths are text
    assert set(reasons) == {"empty.jpg", "text.jpg", "cut.png", "gone.png", "bomb.png"}
    assert "0 bytes" in reasons["empty.jpg"]
    assert "not an image" in reasons["text.jpg"]
    assert "broken link" in reasons["gone.png"]
    assert "pixels" in reasons["bomb.png"]
    assert len(data.y_train) + len(data.y_test) == 12
    assert all(said(data, "skipped", name) for name in reasons)
    assert said(data, "5 of 17 files were skipped")
    clean = class_folder(tmp_path / "clean", {"a": 6, "b": 6})
    assert quietly(clean, tmp_path).fingerprint == data.fingerprint  # the rest are the right ones, in order
    with pytest.raises(ValueError, match="5 of 17 files cannot be used") as caught:
        quietly(root, tmp_path, max_pixels=1000, strict=True)
    assert "\n" not in str(caught.value)


def test_class_without_training_images_is_refused(tmp_path):
    class_folder(tmp_path / "set" / "train", {"a": 3, "b": 3})
    class_folder(tmp_path / "set" / "test", {"a": 2, "stranger": 1})
    with pytest.raises(ValueError, match="'stranger'"):
        quietly(tmp_path / "set", tmp_path)


def test_links_are_followed_and_loops_end(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 3, "b": 3})
    elsewhere = class_folder(tmp_path / "elsewhere", {"c": 2})
    (root / "linked").symlink_to(elsewhere / "c")
    (root / "a" / "up").symlink_to(root / "a")
    (root / "a" / "sub").mkdir()
    (root / "a" / "sub" / "again").symlink_to(root / "a" / "sub")
    (root / "b" / "self").symlink_to(root / "b" / "self")
    (root / "b" / "link.png").symlink_to(elsewhere / "c" / "000.png")
    data = quietly(root, tmp_path)
    assert data.classes == ("a", "b", "linked")
    assert counts(data) == [3, 4, 2]
    assert said(data, "a link back")


def test_entries_that_are_no_images_of_a_class(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 3, "b": 3})
    os.mkfifo(root / "a" / "pipe.jpg")
    saved(root / "stray.png")
    frames = [picture(seed=i) for i in range(3)]
    frames[0].save(root / "a" / "moving.gif", save_all=True, append_images=frames[1:])
    saved(root / "a" / "grey.png", picture().convert("L"))
    data = quietly(root, tmp_path)
    assert data.skipped == (
        (str(root / "a" / "pipe.jpg"), "not a regular file"),
        (str(root / "stray.png"), "in no class folder"),
    )
    assert said(data, "1 animated image")
    assert data.image_shape == (3, 24, 24)
    assert quietly(root, tmp_path, channels=1, image_size=(10, 20)).image_shape == (1, 10, 20)


@pytest.mark.parametrize(
    ("sizes", "side"),
    [
        ([(28, 28)], 28),
        ([(224, 224)], 224),
        ([(300, 300)], 224),
        ([(40, 30), (50, 70), (90, 60)], 32),
        ([(64, 100), (80, 70), (500, 400)], 64),
        ([(20, 10), (12, 14)], 32),
        ([(640, 480), (480, 640)], 224),
    ],
)
def test_image_size_is_chosen_with_a_message(tmp_path, sizes, side):
    root = tmp_path / "set"
    for name in "ab":
        for i in range(3):
            saved(root / name / f"{i}.jpg", picture(*sizes[i % len(sizes)]))
    data = quietly(root, tmp_path)
    assert data.image_shape == (3, side, side)
    assert said(data, f"image_size is {side}")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"only": 3}, "at least two classes; it has 3 of 'only'"),
        ({}, "it holds 0 images and no such folder"),
        ({"": 1}, "it holds 1 image and no such folder"),
        ({"a": 0, "b": 0}, "it holds 0 images and no such folder"),
        ({"pets/cat": 3, "pets/dog": 3}, "Pass .*set/pets"),
        ({"a": 1, "b": 1}, "no image is left to test on"),
    ],
)
def test_folders_without_classes_are_refused(tmp_path, files, message):
    (tmp_path / "set").mkdir()
    with pytest.raises(ValueError, match=message) as caught:
        quietly(class_folder(tmp_path / "set", files), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, "image_size"),
        ({"image_size": (3, 4, 5)}, "image_size"),
        ({"channels": 2}, "channels"),
        ({"test_fraction": 1.0}, "test_fraction"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"workers": 0}, "workers"),
        ({"split_seed": -1}, "split_seed: Input should be greater than or equal to 0; got -1"),
        ({"seed": 1}, "no option 'seed'; choose from image_size, channels, split_seed"),
        ({"options": 32}, "options must be a DataOptions; got 32"),
        ({"n_per_class": 3}, "n_per_class applies to caltech256, not to"),
        ({"layout": "NHWC"}, "layout applies to npz"),
    ],
)
def test_mistaken_options_give_one_line(tmp_path, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        quietly(class_folder(tmp_path / "set", {"a": 1, "b": 1}), tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_archive_is_no_source(tmp_path):
    (tmp_path / "thing.zip").touch()
    with pytest.raises(ValueError, match="Unpack"):
        quietly(tmp_path / "thing.zip", tmp_path)


def test_folder_in_the_data_folder_is_found_by_name(tmp_path):
    class_folder(tmp_path / "data" / "pets", {"a": 3, "b": 3})
    assert quietly("pets", tmp_path, data_dir=tmp_path / "data").classes == ("a", "b")
