"""The named sets: small copies in the official form, the real files if there are any, downloads and archives."""

import hashlib
import os
import shutil
import tarfile
import threading
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pictures import cifar10, cifar100, class_folder, pickled, picture, quietly, said, saved, take_for_official
from PIL import Image
from sklearn.datasets import load_digits

from esupcon.data import NAMES, named, source_digest
from esupcon.data.named import download


@pytest.fixture
def official(monkeypatch):
    return partial(take_for_official, monkeypatch)


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


def test_digits_are_scikit_learns_scaled(tmp_path):
    data = quietly("digits", tmp_path)
    assert data.image_shape == (1, 8, 8)
    assert data.classes == tuple("0123456789")
    assert (len(data.x_train), len(data.x_test)) == (1438, 359)
    assert said(data, "no test part", "359 of 1,797")
    bunch = load_digits()
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    expected = np.c_[np.rint(bunch.images * 255 / 16).reshape(-1, 64), bunch.target]
    assert sorted(np.c_[x.reshape(-1, 64), y].tolist()) == sorted(expected.tolist())
    assert quietly("digits", tmp_path, image_size=32, channels=3).image_shape == (3, 32, 32)


def test_cifar10_in_the_official_files(tmp_path, official):
    folder = tmp_path / "cifar-10-batches-py"
    x, y = cifar10(tmp_path)
    official("cifar10", folder)
    for source, options in (("cifar10", {}), ("CIFAR-10", {"data_dir": folder}), (folder, {}), ("Cifar_10", {})):
        data = quietly(source, tmp_path, **options)
        np.testing.assert_array_equal(data.x_train, x[:100])
        np.testing.assert_array_equal(data.x_test, x[100:])
        np.testing.assert_array_equal(data.y_train, y[:100])
        assert (data.classes[3], data.name, data.notes) == ("cat", "cifar10", ())
    assert quietly("cifar10", tmp_path, image_size=16).image_shape == (3, 16, 16)


class Trap:
    def __reduce__(self):
        return (os.system, ("touch sprung",))


def test_cifar_file_with_another_checksum_is_refused_by_name(tmp_path, official, monkeypatch):
    """Reading a pickle can run code; nothing but arrays is rebuilt even if the checksum is forged."""
    monkeypatch.chdir(tmp_path)
    cifar10(tmp_path)
    official("cifar10", tmp_path / "cifar-10-batches-py")
    file = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    pickled(file, {b"labels": Trap()})
    with pytest.raises(ValueError, match=r"data_batch_2 is not the official file.*save your own images as \.npz"):
        quietly("cifar10", tmp_path)
    official("cifar10", file.parent)
    with pytest.raises(ValueError, match=r"asks for posix\.system, which is not allowed"):
        quietly("cifar10", tmp_path)
    assert not (tmp_path / "sprung").exists()
    file.unlink()
    with pytest.raises(FileNotFoundError, match="data_batch_2 is missing"):
        quietly("cifar10", tmp_path)


FEW = {"caltech256": {"n_per_class": 5}}  # of the 12 images of a class


def archived(name, tmp_path, root, official, monkeypatch):
    """The set `name`, packed as it is published, under `root`."""
    made = tmp_path / "made"
    {"cifar10": cifar10, "cifar100": cifar100, "tiny_imagenet": tiny_imagenet, "caltech256": caltech256}[name](made)
    one = named.PUBLISHED[name]
    if name.startswith("cifar"):
        official(name, made / one.folder)
    root.mkdir(parents=True, exist_ok=True)
    if one.archive.endswith(".zip"):
        with zipfile.ZipFile(root / one.archive, "w") as bundle:
            for path in sorted((made / one.folder).rglob("*")):
                bundle.write(path, path.relative_to(made))
    else:
        with tarfile.open(root / one.archive, "w:gz" if one.archive.endswith("gz") else "w") as bundle:
            bundle.add(made / one.folder, one.folder)
    md5 = hashlib.md5((root / one.archive).read_bytes()).hexdigest()
    monkeypatch.setitem(named.PUBLISHED, name, one._replace(md5=md5))
    unpacked = quietly(name, tmp_path, data_dir=made, **FEW.get(name, {}))
    shutil.rmtree(made)
    return unpacked


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_archive_gives_what_is_in_it(tmp_path, official, monkeypatch, name):
    expected = archived(name, tmp_path, tmp_path / "root", official, monkeypatch)
    data = quietly(name, tmp_path, data_dir=tmp_path / "root", **FEW.get(name, {}))
    assert data.fingerprint == expected.fingerprint
    assert left_in(tmp_path / "root") == sorted([named.PUBLISHED[name].archive, named.PUBLISHED[name].folder])
    again = quietly(name, tmp_path, data_dir=tmp_path / "root", **FEW.get(name, {}))
    assert (again.fingerprint, again.notes) == (data.fingerprint, data.notes[1:])  # it is not unpacked again
    if name == "cifar100":
        assert data.classes == tuple(f"fine{k}" for k in range(100))
        assert data.y_train.tolist() == [*range(100), *range(100)]


def test_missing_set_is_downloaded(tmp_path, official, monkeypatch):
    expected = archived("cifar10", tmp_path, tmp_path / "server", official, monkeypatch)
    one, root = named.PUBLISHED["cifar10"], tmp_path / "new"

    def fake(url, target, md5, log):
        assert (url, md5) == (one.url, one.md5)
        shutil.copytree(tmp_path / "server", root)

    monkeypatch.setattr(named, "download", fake)
    monkeypatch.setenv("ESUPCON_DATA", str(root))  # used if there is no data_dir
    assert quietly("cifar10", tmp_path, data_dir=None).fingerprint == expected.fingerprint
    assert source_digest("cifar10", data_dir=tmp_path / "none", download=False) == source_digest("cifar10")  # no files


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_failed_download_gives_one_line_with_the_remedy(tmp_path, monkeypatch, name):
    def fail(*arguments):
        raise OSError("this machine may be offline")

    monkeypatch.setattr(named, "download", fail)
    one = named.PUBLISHED[name]
    for options, reason in (({}, "may be offline"), ({"download": False}, "downloads are switched off")):
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
    assert data.skipped == ()
    annotations = tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    annotations.write_text("val_1.JPEG\tn77\t0\n")
    with pytest.raises(ValueError, match="or a class that train lacks"):
        quietly("tiny_imagenet", tmp_path)


def test_caltech256(tmp_path):
    caltech256(tmp_path)
    data = quietly("caltech256", tmp_path, n_per_class=5, split_seed=3)
    assert data.classes == ("ak47", "american-flag", "dog")
    assert data.image_shape == (3, 64, 64)
    assert np.bincount(data.y_train).tolist() == [5, 5, 5]
    assert np.bincount(data.y_test).tolist() == [7, 7, 7]
    assert said(data, "skipped the clutter class")
    same = quietly("caltech256", tmp_path, n_per_class=5, split_seed=3)
    other = quietly("caltech256", tmp_path, n_per_class=5, split_seed=4)
    assert data.fingerprint == same.fingerprint != other.fingerprint
    cluttered = quietly("caltech256", tmp_path, n_per_class=5, include_clutter=True)
    assert cluttered.classes[-1] == "clutter"
    with pytest.raises(ValueError, match=r"n_per_class=12 leaves nothing to test on: class 'ak47' has 12"):
        quietly("caltech256", tmp_path, n_per_class=12)


def test_name_has_precedence_over_a_folder_with_a_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    class_folder(tmp_path / "digits", {"a": 3, "b": 3})
    assert said(quietly("digits", tmp_path), "./digits")
    assert quietly("./digits", tmp_path).classes == ("a", "b")
    assert quietly(Path("digits"), tmp_path).classes == ("a", "b")


@pytest.fixture
def real():
    folder = os.environ.get("ESUPCON_TEST_DATA")
    if not folder:
        pytest.skip("set ESUPCON_TEST_DATA to a folder with the real sets")
    return Path(folder)


@pytest.mark.parametrize(
    ("name", "options", "n_classes", "per_class"),
    [
        ("cifar10", {}, 10, (5000, 1000)),
        ("tiny_imagenet", {"image_size": 64}, 200, (5, 2)),
        ("caltech256", {"n_per_class": 6}, 10, (6, 2)),
    ],
)
def test_real_sets(real, tmp_path, name, options, n_classes, per_class):
    data = quietly(name, tmp_path, data_dir=real, **options)
    assert (data.n_classes, data.skipped) == (n_classes, ())
    assert ({*np.bincount(data.y_train)}, {*np.bincount(data.y_test)}) == ({per_class[0]}, {per_class[1]})
    if name == "cifar10":  # the mean that papers give
        np.testing.assert_allclose(data.x_train.mean((0, 2, 3)) / 255, [0.4914, 0.4822, 0.4465], atol=1e-4)


# --- Downloads ---

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.fixture
def served(tmp_path):
    (tmp_path / "served").write_bytes(CONTENT)
    return (tmp_path / "served").as_uri()


def test_several_downloads_at_once_fetch_the_file_once(served, tmp_path):
    target, lines = tmp_path / "root" / "file.tar.gz", []
    threads = [threading.Thread(target=download, args=(served, target, MD5, lines.append)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == CONTENT
    assert left_in(target.parent) == [target.name]
    assert len([line for line in lines if served in line]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [("absent", "No such file"), ("other content", f"not {MD5}"), ("without end", "received 262,144 bytes")],
)
def test_failed_download_leaves_nothing(served, tmp_path, monkeypatch, change, message):
    match change:
        case "absent":
            (tmp_path / "served").unlink()
        case "other content":
            (tmp_path / "served").write_text("<html>please log in</html>")
        case "without end":
            monkeypatch.setattr(named, "_MOST_DOWNLOADED", 1000)
    with pytest.raises(OSError, match=message):
        download(served, tmp_path / "root" / "file.tar.gz", MD5, lambda line: None)
    assert left_in(tmp_path / "root") == []


# --- Archives ---


@pytest.mark.parametrize("name", ["cifar10", "tiny_imagenet"])
def test_archive_with_another_checksum_is_refused_and_writes_nothing(tmp_path, name):
    """It may be incomplete, or lead out of the folder by links or names."""
    (tmp_path / "root").mkdir()
    archive = tmp_path / "root" / named.PUBLISHED[name].archive
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as bundle:
            bundle.writestr("../out", "x")
    else:
        with tarfile.open(archive, "w:gz") as bundle:
            bundle.addfile(tarfile.TarInfo("../out"))
    with pytest.raises(ValueError, match=r"is not the official archive: its md5 is .*fetch it again") as caught:
        quietly(name, tmp_path, data_dir=tmp_path / "root")
    assert "\n" not in str(caught.value)
    assert (left_in(tmp_path / "root"), left_in(tmp_path)) == ([archive.name], ["root"])
