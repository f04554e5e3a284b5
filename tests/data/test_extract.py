"""Unpacking: nothing outside, nothing but files and folders, nothing half."""

import io
import os
import stat
import tarfile
import zipfile

import pytest

from esupcon.data import extract as module
from esupcon.data.extract import extract

FILES = {"top/a.txt": b"one", "top/deep/b.bin": bytes(5000), "top/empty": b""}


def tar(path, members, mode="w:gz"):
    """members: {name: bytes} or TarInfo objects."""
    with tarfile.open(path, mode) as bundle:
        for member in members.items() if isinstance(members, dict) else members:
            if isinstance(member, tarfile.TarInfo):
                bundle.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            info.mode = 0o4777
            bundle.addfile(info, io.BytesIO(member[1]))
    return path


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in members.items():
            bundle.writestr(name, content)
    return path


def silent(line):
    pass


def contents(folder):
    return {str(path.relative_to(folder.parent)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.mark.parametrize("kind", ["w:gz", "w", "w:xz", "zip"])
def test_what_went_in_comes_out(root, kind):
    path = root / "archive"
    archive = zipped(path, FILES) if kind == "zip" else tar(path, FILES, kind)
    folder = extract(archive, root, "top", silent)
    assert folder == root / "top"
    assert contents(folder) == FILES
    assert sorted(p.name for p in root.iterdir()) == ["archive", "top"]
    assert not stat.S_IMODE((folder / "a.txt").stat().st_mode) & (stat.S_ISUID | stat.S_IXUSR)


def test_an_unpacked_folder_is_left_as_it_is(root):
    archive = tar(root / "archive", FILES)
    (root / "top").mkdir()
    extract(archive, root, "top", silent)
    assert list((root / "top").iterdir()) == []


NAMES_THAT_LEAD_OUT = [
    "../out",
    "top/../../out",
    "{root}/out",
    "..",
    "C:\\out",
    "\\\\host\\out",
    "top\\..\\..\\out",
]


@pytest.mark.parametrize("name", NAMES_THAT_LEAD_OUT)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_no_path_leaves_the_root(root, name, kind):
    members = {**FILES, name.replace("{root}", str(root.parent)): b"escaped"}
    archive = zipped(root / "archive", members) if kind == "zip" else tar(root / "archive", members)
    with pytest.raises(ValueError, match="leads out of the folder: refused"):
        extract(archive, root, "top", silent)
    assert [p.name for p in root.iterdir()] == ["archive"]  # and nothing half is left
    assert [p.name for p in root.parent.iterdir()] == ["root"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(root, kind):
    link = tarfile.TarInfo("top/link")
    link.type, link.linkname = kind, "/etc"
    with pytest.raises(ValueError, match="a link or device: refused"):
        extract(tar(root / "archive", [*FILES.items(), link, ("top/link/passwd", b"x")]), root, "top", silent)
    assert [p.name for p in root.iterdir()] == ["archive"]


def test_a_link_in_a_zip_is_refused(root):
    info = zipfile.ZipInfo("top/link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive = zipped(root / "archive", FILES)
    with zipfile.ZipFile(archive, "a") as bundle:
        bundle.writestr(info, "/etc")
    with pytest.raises(ValueError, match="a link or device"):
        extract(archive, root, "top", silent)


def test_an_archive_that_never_ends_is_cut_off(root, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 4000)
    with pytest.raises(ValueError, match="unpacks to more than"):
        extract(zipped(root / "archive", FILES), root, "top", silent)


@pytest.mark.parametrize("kind", ["w:gz", "w", "w:xz", "zip"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_a_cut_archive_is_named(root, kind, share):
    members = {"top/noise": os.urandom(30_000), **FILES}
    path = root / "archive"
    archive = zipped(path, members) if kind == "zip" else tar(path, members, kind)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(share * 30_000)])
    with pytest.raises(ValueError, match=r"damaged or incomplete.*fetch it again") as caught:
        extract(archive, root, "top", silent)
    assert "\n" not in str(caught.value)
    assert [p.name for p in root.iterdir()] == ["archive"]


def test_another_archive_of_that_name(root):
    with pytest.raises(ValueError, match="no folder 'top'"):
        extract(zipped(root / "archive", {"other/x": b"1"}), root, "top", silent)


def test_an_interruption_leaves_nothing(root, monkeypatch):
    archive = zipped(root / "archive", FILES)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_inside", interrupt)
    with pytest.raises(KeyboardInterrupt):
        extract(archive, root, "top", silent)
    assert [p.name for p in root.iterdir()] == ["archive"]
