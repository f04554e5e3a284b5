"""Folders of images, tidy and messy, and mistaken options."""

import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from pictures import class_folder, picture, quietly, said, saved
from PIL import Image

from esupcon._io import OwnedFolder
from esupcon.data import load


def counts(data):
    return np.bincount(np.concatenate([data.y_train, data.y_test])).tolist()


def test_class_folders_are_split_by_class_with_a_message(tmp_path, capsys):
    root = tmp_path / "pets"
    for i in range(20):
        saved(root / "dog" / f"{i}.png", Image.new("RGB", (24, 24), (200 + i, 0, 0)))
        saved(root / "cat" / f"{i}.png", Image.new("RGB", (24, 24), (0, 0, 200 + i)))
    data = load(root, cache_dir=tmp_path / "cache")
    assert (data.classes, data.x_train.shape) == (("cat", "dog"), (32, 3, 24, 24))
    assert (np.bincount(data.y_train).tolist(), np.bincount(data.y_test).tolist()) == ([16, 16], [4, 4])
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    np.testing.assert_array_equal(x[:, 0].any((1, 2)), y == 1)  # every image arrives with its class
    assert sorted(x.max((1, 2, 3)).tolist()) == sorted([*range(200, 220)] * 2)
    spoken = capsys.readouterr()
    assert spoken.out == ""
    size, parts = spoken.err.splitlines()
    assert size.startswith("esupcon: image_size is 24")
    assert all(words in parts for words in ("esupcon: there is no test part", "8 of 40", "split_seed=0"))
    half, same, other = (quietly(root, tmp_path, split_seed=seed, test_fraction=0.5) for seed in (1, 1, 2))
    assert (len(half.x_train), len(half.x_test)) == (20, 20)
    assert half.fingerprint == same.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("files", "classes", "expected", "words"),
    [
        ({"train/a": 5, "train/b": 5}, ("a", "b"), [5, 5], ["no test part"]),
        ({"Train/a": 5, "Train/b": 5, "test": 1}, ("a", "b"), [5, 5], ["no class folders"]),
        ({"train/a": 3, "train/b": 3, "test/a": 2}, ("a", "b"), [5, 3], ["1 class cannot be tested", "'b'"]),
        ({"bus": 4, "train": 4}, ("bus", "train"), [4, 4], []),
        ({"bus": 4, "train/steam": 2, "train/electric": 2}, ("bus", "train"), [4, 4], []),
        ({"train": 3, "train/steam": 2, "test": 4}, ("test", "train"), [4, 5], []),
        ({"a/images/2020": 3, "a/images/2021": 2, "b": 3}, ("a", "b"), [5, 3], []),
        ({"10": 2, "9": 2, "1": 2}, ("1", "9", "10"), [2, 2, 2], []),
        ({"Käfer grün": 3, "emoji 🐕": 3, "猫": 2}, ("Käfer grün", "emoji 🐕", "猫"), [3, 3, 2], []),
        ({"a": 3, "hollow": 0, "b": 3}, ("a", "b"), [3, 3], ["skipped 1 class folder without images", "'hollow'"]),
        ({"a": 3, "b": 3, "rare": 1}, ("a", "b", "rare"), [3, 3, 1], ["1 class cannot be tested", "'rare'"]),
    ],
)
def test_layouts_of_folders(tmp_path, files, classes, expected, words):
    data = quietly(class_folder(tmp_path / "set", files), tmp_path)
    assert (data.classes, counts(data)) == (classes, expected)
    assert not words or said(data, *words)
    assert set(data.y_train) == set(range(len(classes)))  # a class with one image is trained


@pytest.mark.parametrize(
    ("train", "test"),
    [("train", "test"), ("Train", "val"), ("training", "validation"), ("TRAIN", "Eval"), ("train", "VALID")],
)
def test_train_and_test_folders_in_any_capitalisation(tmp_path, train, test):
    files = {f"{train}/a": 4, f"{train}/b": 3, f"{test}/a": 2, f"{test}/b": 1}
    data = quietly(class_folder(tmp_path / "set", files), tmp_path)
    assert data.y_train.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert data.y_test.tolist() == [0, 0, 1]
    assert isinstance(data.x_train, np.memmap)
    assert (data.test_drawn, len(data.notes)) == (False, 1)  # the size that was chosen


def test_val_beside_test_is_neither_trained_nor_tested_on_with_a_message(tmp_path):
    files = {"train/a": 4, "train/b": 3, "Val/a": 5, "Val/b": 5, "Test/a": 2, "Test/b": 1}
    data = quietly(class_folder(tmp_path / "set", files), tmp_path)
    assert (len(data.y_train), len(data.y_test)) == (7, 3)
    assert said(data, "skipped", "Val: train is trained on, Test is tested on")


def test_odd_names_and_depths(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "Käfer") for form in ("NFC", "NFD"))
    root = class_folder(tmp_path / "set", {composed: 2, decomposed: 3, "b": 2})
    content = (root / "b" / "000.png").read_bytes()
    for name in (b"caf\xe9.png", b"a\tb\nc 'd' \"e\".png"):
        (root / "b" / os.fsdecode(name)).write_bytes(content)
    deep = root / "b" / "/".join("d" * 30)
    deep.mkdir(parents=True)
    (deep / "x.png").write_bytes(content)
    data = quietly(root, tmp_path)
    assert (data.classes, counts(data)) == ((composed, "b"), [5, 5])


def test_hidden_and_system_files_are_ignored(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 3, "b": 3, ".git": 1, "__MACOSX/a": 2, "a/__MACOSX/deep": 2})
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store", "._000.png", ".hidden.jpg", "notes.txt"):
        (root / "a" / name).write_bytes(b"x")
    data = quietly(root, tmp_path)
    assert (data.classes, counts(data), data.skipped) == (("a", "b"), [3, 3], ())
    assert said(data, "no image", "7 in all")


@pytest.mark.parametrize("place", ["run", "a/run", "train/a/run"])
def test_output_folder_of_ours_is_never_read_as_a_class(tmp_path, place):
    """`esupcon train . --out run` a second time finds the first run among the data."""
    root, divided = tmp_path / "set", place.startswith("train")
    class_folder(root, {"train/a": 4, "train/b": 4, "test/a": 1, "test/b": 1} if divided else {"a": 4, "b": 4})
    before = quietly(root, tmp_path)
    OwnedFolder(root / place, ["report.png"]).claim()
    saved(root / place / "report.png")
    class_folder(root / place, {"thumbnails": 3})
    after = quietly(root, tmp_path)
    assert (after.classes, after.fingerprint) == (("a", "b"), before.fingerprint)


def test_unreadable_files_are_skipped_and_listed(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 6, "b": 6})
    whole = (root / "a" / "000.png").read_bytes()
    (root / "a" / "empty.jpg").touch()
    (root / "a" / "text.jpg").write_text("not an image")
    os.mkfifo(root / "a" / "pipe.jpg")
    (root / "b" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    saved(root / "b" / "bomb.png", picture(40, 40))
    saved(root / "stray.png")
    data = quietly(root, tmp_path, max_pixels=1000)
    reasons = {os.path.basename(path): reason for path, reason in data.skipped}  # noqa: PTH119 - paths are text
    expected = {"empty.jpg": "0 bytes", "text.jpg": "not an image", "pipe.jpg": "not a regular file", "cut.png": ""}
    expected |= {"gone.png": "broken link", "bomb.png": "pixels", "stray.png": "in no class folder"}
    assert all(words in reasons.pop(name) for name, words in expected.items())
    assert not reasons
    assert all(said(data, "skipped", name) for name in expected)
    assert said(data, "7 of 19 files were skipped")
    clean = class_folder(tmp_path / "clean", {"a": 6, "b": 6})
    assert quietly(clean, tmp_path).fingerprint == data.fingerprint  # the rest are the right ones, in order
    with pytest.raises(ValueError, match="7 of 19 files cannot be used"):
        quietly(root, tmp_path, max_pixels=1000, strict=True)
    (root / "ruin").mkdir()
    (root / "ruin" / "0.jpg").touch()
    with pytest.raises(ValueError, match=r"'ruin' has no readable image.*0\.jpg.*0 bytes"):
        quietly(root, tmp_path)


def test_links_are_followed_and_loops_end(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 3, "b": 3})
    elsewhere = class_folder(tmp_path / "elsewhere", {"c": 2})
    (root / "linked").symlink_to(elsewhere / "c")
    (root / "a" / "up").symlink_to(root / "a")
    (root / "b" / "self").symlink_to(root / "b" / "self")
    (root / "b" / "link.png").symlink_to(elsewhere / "c" / "000.png")
    frames = [picture(seed=i) for i in range(3)]
    frames[0].save(root / "a" / "moving.gif", save_all=True, append_images=frames[1:])
    data = quietly(root, tmp_path)
    assert (data.classes, counts(data)) == (("a", "b", "linked"), [4, 4, 2])
    assert said(data, "a link back")


def test_class_whose_name_is_not_text_is_refused(tmp_path):
    """Otherwise the trained model could not be saved."""
    root = class_folder(tmp_path / "set", {"a": 2, "b": 2})
    try:
        (root / "b").rename(os.fsdecode(os.fsencode(root) + b"/\xff"))
    except OSError:
        pytest.skip("this file system takes text only")
    with pytest.raises(ValueError, match=r"set: the class '.' has a name that is not UTF-8 text"):
        quietly(root, tmp_path)


def test_folders_may_be_nested_deeper_than_functions(tmp_path, monkeypatch):
    """os.walk calls itself for every folder below Python 3.12; a path of so many is too long to be used at once."""
    root = class_folder(tmp_path / "set", {"a": 2, "b": 2})
    monkeypatch.chdir(root / "a")
    for _ in range(sys.getrecursionlimit() + 100):
        Path("d").mkdir()
        os.chdir("d")
    picture().save("deep.jpg")
    os.chdir(root)
    data = quietly(root, tmp_path)
    assert len(data.x_train) + len(data.x_test) == 5
    subprocess.run(["rm", "-r", root / "a"], check=True)  # pytest would fail to


@pytest.mark.parametrize(
    ("sizes", "side"),
    [
        ([(28, 28)], 28),
        ([(300, 300)], 224),
        ([(40, 30), (50, 70), (90, 60)], 32),
        ([(64, 100), (80, 70), (500, 400)], 64),
        ([(20, 10), (12, 14)], 32),
    ],
)
def test_image_size_is_chosen_with_a_message(tmp_path, sizes, side):
    for name in "ab":
        for i in range(3):
            saved(tmp_path / "set" / name / f"{i}.jpg", picture(*sizes[i % len(sizes)]))
    data = quietly(tmp_path / "set", tmp_path)
    assert data.image_shape == (3, side, side)
    assert said(data, f"image_size is {side}")
    assert quietly(tmp_path / "set", tmp_path, channels=1, image_size=(10, 20)).image_shape == (1, 10, 20)


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"only": 3}, {}, "at least two classes; it has 3 of 'only'"),
        ({}, {}, "it holds 0 images and no such folder"),
        ({"": 1}, {}, "it holds 1 image and no such folder"),
        ({"pets/cat": 3, "pets/dog": 3}, {}, "Pass .*set/pets"),
        ({"a": 1, "b": 1}, {}, "no image is left to test on"),
        ({"train/a": 3, "train/b": 3, "test/a": 2, "test/c": 1}, {}, "'c' is only on test images; add training images"),
        ({"a": 2}, {"seed": 1}, "seed: Extra inputs are not permitted"),
        ({"a": 2}, {"layout": "NHWC"}, "layout=NHWC does not apply to .*: it is for npz. Omit it."),
    ],
)
def test_mistakes_give_one_line(tmp_path, files, options, message):
    (tmp_path / "set").mkdir()
    with pytest.raises(ValueError, match=message) as caught:
        quietly(class_folder(tmp_path / "set", files), tmp_path, **options)
    assert "\n" not in str(caught.value)
