"""The named sets, from small copies in the official form and, where there is one, from the real thing."""

import os
import pickle
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from pictures import class_folder, picture, quietly, said, saved
from PIL import Image
from sklearn.datasets import load_digits

from esupcon.data import NAMES, load, named
from esupcon.data.places import data_root, decoded_root, platform_cache

RNG = np.random.default_rng(3)
CIFAR10_CLASSES = b"airplane automobile bird cat deer dog frog horse ship truck".split()


def pickled(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def cifar10(root, n=20):
    """The official files, with n images a batch; returns the images and labels."""
    folder = root / "cifar-10-batches-py"
    images, labels = [], []
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        x, y = RNG.integers(0, 256, (n, 3072)).astype(np.uint8), (np.arange(n) % 10).tolist()
        pickled(folder / name, {b"batch_label": b"x", b"labels": y, b"data": x, b"filenames": [b"f.png"] * n})
        images.append(x)
        labels.append(y)
    pickled(folder / "batches.meta", {b"num_vis": 3072, b"label_names": CIFAR10_CLASSES})
    return np.concatenate(images).reshape(-1, 3, 32, 32), np.concatenate(labels)


def cifar100(root, n=200):
    folder = root / "cifar-100-python"
    for name in ("train", "test"):
        x, y = RNG.integers(0, 256, (n, 3072)).astype(np.uint8), (np.arange(n) % 100).tolist()
        pickled(folder / name, {b"fine_labels": y, b"coarse_labels": [k // 5 for k in y], b"data": x})
    names = [f"fine{k}".encode() for k in range(100)]
    pickled(folder / "meta", {b"fine_label_names": names, b"coarse_label_names": [b"c"] * 20})


def tiny_imagenet(root):
    """Three classes, four training and two validation images each."""
    folder = root / "tiny-imagenet-200"
    wnids = ["n03", "n01", "n02"]
    annotations = []
    for wnid in wnids:
        colour = int(wnid[1:]) * 60
        for i in range(4):
            saved(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", Image.new("RGB", (64, 64), (colour, i, 0)))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("x")
        for _ in range(2):
            name = f"val_{len(annotations)}.JPEG"
            saved(folder / "val" / "images" / name, Image.new("RGB", (64, 64), (colour, 0, 0)))
            annotations.append(f"{name}\t{wnid}\t0\t0\t9\t9\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(annotations))
    (folder / "wnids.txt").write_text("\n".join(wnids))
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tcrane\nn03\tcrane\nn99\tother\n")
    return folder


def caltech256(root, n=12):
    folder = root / "256_ObjectCategories"
    for name in ("001.ak47", "002.american-flag", "056.dog", "257.clutter"):
        for i in range(n):
            saved(folder / name / f"{name[:3]}_{i + 1:04}.jpg", picture(30 + i, 40, seed=i))
    (folder / "056.dog" / "greg").mkdir()
    (folder / "056.dog" / "RENAME2").touch()
    return folder


def test_digits_are_scikit_learns_scaled():
    data = load("digits", log=lambda line: None)
    assert data.image_shape == (1, 8, 8)
    assert data.classes == tuple("0123456789")
    assert (len(data.x_train), len(data.x_test)) == (1438, 359)
    assert said(data, "no test part", "359 of 1,797")
    bunch = load_digits()
    expected = {np.rint(image * 255 / 16).astype(np.uint8).tobytes() + bytes([y]) for image, y in
                zip(bunch.images, bunch.target, strict=True)}  # fmt: skip
    together = zip(
        np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test]), strict=True
    )
    assert {image.tobytes() + bytes([y]) for image, y in together} == expected
    assert data.x_train.max() == 255
    assert load("digits", log=lambda line: None, image_size=32, channels=3).image_shape == (3, 32, 32)


def test_cifar10_in_the_official_files(tmp_path):
    x, y = cifar10(tmp_path)
    data = quietly("cifar10", tmp_path)
    np.testing.assert_array_equal(data.x_train, x[:100])
    np.testing.assert_array_equal(data.x_test, x[100:])
    np.testing.assert_array_equal(data.y_train, y[:100])
    assert data.classes[3] == "cat"
    assert data.name == "cifar10"
    assert said(data, "100 + 20 images", "50,000 + 10,000")


def test_cifar100_has_the_fine_labels(tmp_path):
    cifar100(tmp_path)
    data = quietly("cifar100", tmp_path)
    assert data.n_classes == 100
    assert data.classes[7] == "fine7"
    assert data.y_train.tolist() == [*range(100), *range(100)]


def test_cifar_resized(tmp_path):
    cifar10(tmp_path)
    assert quietly("cifar10", tmp_path, image_size=16).image_shape == (3, 16, 16)


@pytest.mark.parametrize("home", [".", "cifar10", "CIFAR10", "cifar-10"])
def test_the_usual_subfolders(tmp_path, home):
    cifar10(tmp_path / home)
    assert len(quietly("cifar10", tmp_path).x_train) == 100


def test_the_folder_itself_as_data_dir_or_as_source(tmp_path):
    cifar10(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    by_dir = quietly("cifar10", tmp_path, data_dir=folder)
    by_source = quietly(folder, tmp_path)
    assert by_dir.fingerprint == by_source.fingerprint
    assert by_source.name == "cifar10"


@pytest.mark.parametrize("spelling", ["CIFAR10", "cifar-10", "Cifar_10"])
def test_names_are_read_generously(tmp_path, spelling):
    cifar10(tmp_path)
    assert quietly(spelling, tmp_path).name == "cifar10"


def test_cifar_files_that_are_not_what_they_should_be(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"

    def message():
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            quietly("cifar10", tmp_path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    cifar10(tmp_path)
    (folder / "data_batch_3").unlink()
    assert "lacks data_batch_3" in message()
    pickled(folder / "data_batch_3", {b"labels": [1], b"data": np.zeros((1, 100), np.uint8)})
    assert "rows of 3072 bytes" in message()
    pickled(folder / "data_batch_3", {b"labels": [10], b"data": np.zeros((1, 3072), np.uint8)})
    assert "from 0 to 9" in message()
    pickled(folder / "data_batch_3", {b"labels": ["x"], b"data": np.zeros((1, 3072), np.uint8)})
    assert "from 0 to 9" in message()
    pickled(folder / "data_batch_3", {b"data": np.zeros((1, 3072), np.uint8)})
    assert "no entry 'labels'" in message()
    (folder / "data_batch_3").write_bytes(b"\x80\x02}(")
    assert "not a whole pickle" in message()


def test_a_hostile_cifar_file_is_refused_not_run(tmp_path):
    cifar10(tmp_path)

    class Trap:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'sprung'}",))

    pickled(tmp_path / "cifar-10-batches-py" / "data_batch_2", {b"labels": Trap()})
    with pytest.raises(ValueError, match="refused and nothing in it was run"):
        quietly("cifar10", tmp_path)
    assert not (tmp_path / "sprung").exists()


def archived(name, tmp_path, root):
    """The set `name`, packed as it is published, under `root`."""
    made = tmp_path / "made"
    {"cifar10": cifar10, "cifar100": cifar100, "tiny_imagenet": tiny_imagenet, "caltech256": caltech256}[name](made)
    one = named.PUBLISHED[name]
    root.mkdir(parents=True, exist_ok=True)
    if one.archive.endswith(".zip"):
        with zipfile.ZipFile(root / one.archive, "w") as bundle:
            for path in sorted((made / one.folder).rglob("*")):
                bundle.write(path, path.relative_to(made))
    else:
        with tarfile.open(root / one.archive, "w:gz" if one.archive.endswith("gz") else "w") as bundle:
            bundle.add(made / one.folder, one.folder)
    unpacked = quietly(name, tmp_path, data_dir=made)
    shutil.rmtree(made)
    return unpacked


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_the_archive_serves_as_well_as_what_is_in_it(tmp_path, name):
    expected = archived(name, tmp_path, tmp_path / "root" / name)
    data = quietly(name, tmp_path, data_dir=tmp_path / "root")
    assert data.fingerprint == expected.fingerprint
    assert said(data, "not the official archive", named.PUBLISHED[name].md5)
    again = quietly(name, tmp_path, data_dir=tmp_path / "root")
    assert not said(again, "unpacking")
    assert again.fingerprint == expected.fingerprint


def test_an_archive_that_is_not_the_official_one_is_refused_when_strict(tmp_path):
    archived("cifar10", tmp_path, tmp_path / "root")
    with pytest.raises(ValueError, match="not the official archive"):
        quietly("cifar10", tmp_path, data_dir=tmp_path / "root", strict=True)


def test_a_read_only_collection_is_unpacked_in_the_cache_folder(tmp_path, monkeypatch):
    archived("cifar10", tmp_path, tmp_path / "root")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setattr(named.os, "access", lambda path, mode: False)
    assert len(quietly("cifar10", tmp_path, data_dir=tmp_path / "root").x_train) == 100
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["cifar-10-python.tar.gz"]


def test_a_missing_set_is_downloaded(tmp_path, monkeypatch):
    expected = archived("cifar10", tmp_path, tmp_path / "server")
    one = named.PUBLISHED["cifar10"]

    def fake(url, target, md5, note):
        assert (url, md5) == (one.url, one.md5)
        target.parent.mkdir(parents=True)
        shutil.copy(tmp_path / "server" / one.archive, target)

    monkeypatch.setattr(named, "download", fake)
    assert quietly("cifar10", tmp_path, data_dir=tmp_path / "new").fingerprint == expected.fingerprint


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_offline_is_one_clear_message(tmp_path, monkeypatch, name):
    def fail(*arguments):
        raise named.DownloadFailed("this machine may be offline")

    monkeypatch.setattr(named, "download", fail)
    one = named.PUBLISHED[name]
    for options, reason in (({}, "may be offline"), ({"download": False}, "not allowed")):
        with pytest.raises(FileNotFoundError) as caught:
            quietly(name, tmp_path, data_dir=tmp_path / "empty", **options)
        message = str(caught.value)
        assert "\n" not in message
        for part in (one.url, one.md5, str(tmp_path / "empty" / one.archive), reason):
            assert part in message


def test_tiny_imagenet(tmp_path):
    tiny_imagenet(tmp_path)
    data = quietly("tiny_imagenet", tmp_path)
    assert data.image_shape == (3, 32, 32)
    assert data.classes == ("goldfish", "crane (n02)", "crane (n03)")
    assert data.y_train.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.y_test.tolist() == [2, 2, 0, 0, 1, 1]
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        np.testing.assert_allclose(x[:, 0].mean((1, 2)), (y + 1) * 60, atol=2)
    assert quietly("tiny_imagenet", tmp_path, image_size=64).image_shape == (3, 64, 64)
    assert said(data, "12 + 6 images")
    assert data.skipped == ()


def test_tiny_imagenet_sorted_by_class_and_incomplete(tmp_path):
    folder = tiny_imagenet(tmp_path)
    expected = quietly("tiny_imagenet", tmp_path)
    lines = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    (folder / "val" / "images" / "val_0.JPEG").unlink()
    missing = quietly("tiny_imagenet", tmp_path)
    assert [reason for _, reason in missing.skipped] == ["no such file, or a broken link"]
    for line in lines[1:]:
        name, wnid = line.split("\t")[:2]
        (folder / "val" / wnid).mkdir(exist_ok=True)
        (folder / "val" / "images" / name).rename(folder / "val" / wnid / name)
    (folder / "val" / "val_annotations.txt").unlink()
    resorted = quietly("tiny_imagenet", tmp_path)
    assert sorted(resorted.y_test.tolist()) == sorted(expected.y_test.tolist()[1:])
    shutil.rmtree(folder / "val")
    (folder / "val").mkdir()
    with pytest.raises(FileNotFoundError, match=r"val_annotations\.txt is missing"):
        quietly("tiny_imagenet", tmp_path)


def test_caltech256(tmp_path):
    caltech256(tmp_path)
    data = quietly("caltech256", tmp_path, n_per_class=5, seed=3)
    assert data.classes == ("ak47", "american-flag", "dog")
    assert data.image_shape == (3, 64, 64)
    assert np.bincount(data.y_train).tolist() == [5, 5, 5]
    assert np.bincount(data.y_test).tolist() == [7, 7, 7]
    assert said(data, "clutter class (12 images) is left out")
    assert said(data, "2 entries")
    assert said(data, "48 images", "30,607")
    same = quietly("caltech256", tmp_path, n_per_class=5, seed=3)
    other = quietly("caltech256", tmp_path, n_per_class=5, seed=4)
    assert data.fingerprint == same.fingerprint != other.fingerprint
    cluttered = quietly("caltech256", tmp_path, n_per_class=5, include_clutter=True)
    assert cluttered.classes[-1] == "clutter"


def test_caltech256_with_too_few_images(tmp_path):
    caltech256(tmp_path)
    data = quietly("caltech256", tmp_path)
    assert np.bincount(data.y_test).tolist() == [2, 2, 2]
    assert said(data, "60 images or fewer", "test_fraction=0.2")
    with pytest.raises(ValueError, match=r"n_per_class=12 leaves nothing to test on: class 'ak47' has 12"):
        quietly("caltech256", tmp_path, n_per_class=12)
    with pytest.raises(ValueError, match="at least 1"):
        quietly("caltech256", tmp_path, n_per_class=0)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("cifer10", "cifar10"), ("CIFAR", "cifar10"), ("tinyimgnet", "tiny_imagenet"), ("digit", "digits")],
)
def test_a_typing_error_gets_a_suggestion(tmp_path, typo, meant):
    with pytest.raises(ValueError, match=f"Did you mean '{meant}'") as caught:
        quietly(typo, tmp_path)
    assert "\n" not in str(caught.value)


def test_something_else_gets_the_list(tmp_path):
    with pytest.raises(ValueError, match="digits, cifar10, cifar100, tiny_imagenet, caltech256"):
        quietly("zebra", tmp_path)
    with pytest.raises(ValueError, match="a name or a path"):
        quietly("", tmp_path)
    with pytest.raises(NotADirectoryError, match="is a file"):
        (tmp_path / "file").touch()
        quietly("cifar10", tmp_path, data_dir=tmp_path / "file")


def test_a_name_beats_a_folder_of_that_name_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    class_folder(tmp_path / "digits", {"a": 3, "b": 3})
    assert said(quietly("digits", tmp_path), "./digits")
    assert quietly("./digits", tmp_path).classes == ("a", "b")
    assert quietly(Path("digits"), tmp_path).classes == ("a", "b")


def test_where_things_lie(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("ESUPCON_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root(None) == platform_cache() == tmp_path / "esupcon"
    assert decoded_root(None) == tmp_path / "esupcon" / "decoded"
    monkeypatch.setenv("ESUPCON_DATA", str(tmp_path / "data"))
    assert data_root(None) == tmp_path / "data"
    assert decoded_root(None) == tmp_path / "data" / "decoded"
    assert data_root(tmp_path / "mine") == tmp_path / "mine"
    assert decoded_root(tmp_path / "mine") == tmp_path / "mine"
    monkeypatch.delenv("ESUPCON_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert platform_cache() == tmp_path / ".cache" / "esupcon"
    monkeypatch.setattr("sys.platform", "darwin")
    assert platform_cache() == tmp_path / "Library" / "Caches" / "esupcon"


def test_esupcon_data_is_where_named_sets_are_looked_for(tmp_path, monkeypatch):
    cifar10(tmp_path / "data")
    monkeypatch.setenv("ESUPCON_DATA", str(tmp_path / "data"))
    assert len(load("cifar10", log=lambda line: None).x_train) == 100


@pytest.fixture
def real():
    folder = os.environ.get("ESUPCON_TEST_DATA")
    if not folder:
        pytest.skip("set ESUPCON_TEST_DATA to a folder with the real sets")
    return Path(folder)


def test_the_real_cifar10(real, tmp_path):
    data = quietly("cifar10", tmp_path, data_dir=real)
    assert data.notes == ()
    assert np.bincount(data.y_train).tolist() == [5000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    with (real / "cifar-10-batches-py" / "data_batch_4").open("rb") as file:
        theirs = pickle.load(file, encoding="bytes")
    np.testing.assert_array_equal(data.x_train[30_000:40_000].reshape(-1, 3072), theirs[b"data"])
    assert data.y_train[30_000:40_000].tolist() == theirs[b"labels"]
    mean = data.x_train.mean((0, 2, 3)) / 255
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=1e-4)  # as is known of it


def test_the_real_tiny_imagenet(real, tmp_path):
    data = quietly("tiny_imagenet", tmp_path, data_dir=real, image_size=64)
    assert data.n_classes == 200
    assert set(np.bincount(data.y_train)) == {5}
    assert set(np.bincount(data.y_test)) == {2}
    assert data.skipped == ()
    path = sorted((real / "tiny-imagenet-200" / "train").iterdir())[3] / "images"
    first = Image.open(sorted(path.iterdir())[0]).convert("RGB")
    np.testing.assert_array_equal(data.x_train[15], np.asarray(first).transpose(2, 0, 1))


def test_the_real_caltech256(real, tmp_path):
    data = quietly("caltech256", tmp_path, data_dir=real, n_per_class=6)
    assert data.n_classes == 10
    assert len(data.x_test) == 20
    assert data.skipped == ()


def test_the_real_cifar100_as_npz(real, tmp_path):
    data = quietly(real / "cifar100-20k.npz", tmp_path)
    assert data.n_classes == 100
    assert data.image_shape == (3, 32, 32)
    with np.load(real / "cifar100-20k.npz") as raw:
        np.testing.assert_array_equal(data.x_test[17], raw["x_test"][17].transpose(2, 0, 1))
