"""The named sets: small copies in the official form, the real files if there are any, downloads and archives."""

import hashlib
import io
import os
import shutil
import stat
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

from esupcon.data import NAMES, load, named, source_digest
from esupcon.data.named import download, extract


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


def test_digits_are_scikit_learns_scaled():
    data = load("digits", log=lambda line: None)
    assert data.image_shape == (1, 8, 8)
    assert data.classes == tuple("0123456789")
    assert (len(data.x_train), len(data.x_test)) == (1438, 359)
    assert said(data, "no test part", "359 of 1,797")
    bunch = load_digits()
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    expected = np.c_[np.rint(bunch.images * 255 / 16).reshape(-1, 64), bunch.target]
    assert sorted(np.c_[x.reshape(-1, 64), y].tolist()) == sorted(expected.tolist())
    assert load("digits", log=lambda line: None, image_size=32, channels=3).image_shape == (3, 32, 32)


@pytest.mark.parametrize("home", ["", "cifar10", "CIFAR-10"])
def test_cifar10_in_the_official_files(tmp_path, official, home):
    folder = tmp_path / home / "cifar-10-batches-py"
    x, y = cifar10(tmp_path / home)
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


def archived(name, tmp_path, root, official):
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
    unpacked = quietly(name, tmp_path, data_dir=made, **FEW.get(name, {}))
    shutil.rmtree(made)
    return unpacked


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_archive_gives_what_is_in_it(tmp_path, official, name):
    expected = archived(name, tmp_path, tmp_path / "root" / name, official)
    data = quietly(name, tmp_path, data_dir=tmp_path / "root", **FEW.get(name, {}))
    assert data.fingerprint == expected.fingerprint
    if name == "cifar100":
        assert data.classes == tuple(f"fine{k}" for k in range(100))
        assert data.y_train.tolist() == [*range(100), *range(100)]


def test_missing_set_is_downloaded(tmp_path, official, monkeypatch):
    expected = archived("cifar10", tmp_path, tmp_path / "server", official)
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


def test_real_cifar10(real, tmp_path):
    data = quietly("cifar10", tmp_path, data_dir=real)
    assert data.notes == ()
    assert np.bincount(data.y_train).tolist() == [5000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    mean = data.x_train.mean((0, 2, 3)) / 255
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=1e-4)  # as is known of it


@pytest.mark.parametrize(
    ("name", "options", "n_classes", "per_class"),
    [("tiny_imagenet", {"image_size": 64}, 200, (5, 2)), ("caltech256", {"n_per_class": 6}, 10, (6, 2))],
)
def test_real_image_files(real, tmp_path, name, options, n_classes, per_class):
    data = quietly(name, tmp_path, data_dir=real, **options)
    assert (data.n_classes, data.skipped) == (n_classes, ())
    assert ({*np.bincount(data.y_train)}, {*np.bincount(data.y_test)}) == ({per_class[0]}, {per_class[1]})


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

FILES = {"top/a.txt": b"one", "top/deep/b.bin": bytes(5000), "top/empty": b""}


def packed(path, members, mode="w:gz"):
    """An archive of {name: bytes}, or of pairs and TarInfo objects."""
    if mode == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, content in members.items():
                bundle.writestr(name, content)
        return path
    with tarfile.open(path, mode) as bundle:
        for member in members.items() if isinstance(members, dict) else members:
            if isinstance(member, tarfile.TarInfo):
                bundle.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size, info.mode = len(member[1]), 0o4777
            bundle.addfile(info, io.BytesIO(member[1]))
    return path


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def unpacked(archive, root):
    return extract(archive, root, "top", lambda line: None)


@pytest.mark.parametrize("kind", ["w:gz", "w:xz", "zip"])
def test_archive_is_unpacked(root, kind):
    folder = unpacked(packed(root / "archive", FILES, kind), root)
    content = {str(path.relative_to(root)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert content == FILES
    assert left_in(root) == ["archive", "top"]
    assert not stat.S_IMODE((folder / "a.txt").stat().st_mode) & (stat.S_ISUID | stat.S_IXUSR)
    (root / "top" / "a.txt").unlink()
    assert not (unpacked(root / "archive", root) / "a.txt").exists()  # a folder that is there is not unpacked again


def link(kind):
    if kind == "zip":
        info = zipfile.ZipInfo("top/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        return {**FILES, info: b"/etc"}
    info = tarfile.TarInfo("top/link")
    info.type, info.linkname = kind, "/etc"
    return [*FILES.items(), info, ("top/link/passwd", b"x")]


OUTSIDE = ("../out", "top/../../out", "{root}/out", "..", "C:\\out", "\\\\host\\out")
LINKS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, "zip")


@pytest.mark.parametrize(
    ("members", "kind", "message"),
    [
        *(({**FILES, name: b"x"}, kind, "leads out of the folder") for name in OUTSIDE for kind in ("w:gz", "zip")),
        *((link(kind), "zip" if kind == "zip" else "w:gz", "a link or device: refused") for kind in LINKS),
        *(({"other/x": b"1"}, kind, "no folder 'top'") for kind in ("w:gz", "zip")),
        *(({"top/large": bytes(20_000)}, kind, "unpacks to more than") for kind in ("w:gz", "zip")),
    ],
)
def test_archive_that_no_data_set_has_is_refused_and_writes_nothing(root, monkeypatch, members, kind, message):
    if isinstance(members, dict):
        members = {n.replace("{root}", str(root)) if isinstance(n, str) else n: one for n, one in members.items()}
    monkeypatch.setattr(named, "_MOST_UNPACKED", 22_000)
    with pytest.raises(ValueError, match=message):
        unpacked(packed(root / "archive", members, kind), root)
    assert (left_in(root), left_in(root.parent)) == (["archive"], ["root"])


@pytest.mark.parametrize("kind", ["w:gz", "w:xz", "zip"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_truncated_archive_is_named(root, kind, share):
    archive = packed(root / "archive", {"top/noise": os.urandom(30_000), **FILES}, kind)
    archive.write_bytes(archive.read_bytes()[: int(share * 30_000)])
    with pytest.raises(ValueError, match=r"damaged or incomplete.*fetch it again") as caught:
        unpacked(archive, root)
    assert "\n" not in str(caught.value)
    assert left_in(root) == ["archive"]
