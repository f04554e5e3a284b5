"""The published sets: what their archives are called, where they come from, where they usually lie."""

import os
from dataclasses import dataclass
from pathlib import Path

from esupcon.data.download import DownloadFailed, download, md5_of
from esupcon.data.extract import extract
from esupcon.data.places import platform_cache
from esupcon.data.progress import Say


@dataclass(frozen=True)
class Published:
    """`folder` is the archive's top folder, `proof` a path in it that shows it to be the right one."""

    name: str
    archive: str
    url: str
    md5: str
    folder: str
    proof: str
    aliases: tuple[str, ...]  # folders people put it into


PUBLISHED = {
    one.name: one
    for one in (
        Published(
            "cifar10",
            "cifar-10-python.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
            "data_batch_1",
            ("cifar10", "cifar-10", "CIFAR10", "cifar"),
        ),
        Published(
            "cifar100",
            "cifar-100-python.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
            "train",
            ("cifar100", "cifar-100", "CIFAR100", "cifar"),
        ),
        Published(
            "tiny_imagenet",
            "tiny-imagenet-200.zip",
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            "tiny-imagenet-200",
            "wnids.txt",
            ("tiny_imagenet", "tiny-imagenet", "tinyimagenet", "TinyImageNet"),
        ),
        Published(
            "caltech256",
            "256_ObjectCategories.tar",
            "https://data.caltech.edu/records/nyy15-4j048/files/256_ObjectCategories.tar",
            "67b4f42ca05d46448c6bb8ecd2220f6d",
            "256_ObjectCategories",
            ".",
            ("caltech256", "caltech-256", "Caltech256", "caltech"),
        ),
    )
}


def published_folder(one: Published, root: Path, note: Say, *, may_download: bool, strict: bool) -> Path:
    """The unpacked set: found in `root` or its usual subfolders, unpacked from the archive there, or fetched."""
    homes = (root, *(root / alias for alias in one.aliases))
    for folder in (*(home / one.folder for home in homes), root):
        if (folder.name == one.folder or one.proof != ".") and (folder / one.proof).exists():
            return folder
    archive = next((home / one.archive for home in homes if (home / one.archive).is_file()), None)
    if archive is None:
        archive = root / one.archive
        _fetch(one, archive, note, may_download)
    else:
        _say_if_not_official(one, archive, note, strict)
    return extract(archive, _writable(archive.parent), one.folder, note)


def _fetch(one: Published, archive: Path, note: Say, may_download: bool) -> None:
    reason = "downloading was not allowed"
    if may_download:
        try:
            download(one.url, archive, one.md5, note)
        except DownloadFailed as failure:
            reason = f"it could not be downloaded: {failure}"
        else:
            return
    raise FileNotFoundError(
        f"{one.name} is not in {archive.parent} (neither {one.folder}/ nor {one.archive}), and {reason}. "
        f"Fetch {one.url} (md5 {one.md5}) by other means and put it at {archive}."
    )


def _say_if_not_official(one: Published, archive: Path, note: Say, strict: bool) -> None:
    found = md5_of(archive)
    if found == one.md5:
        return
    message = f"{archive} is not the official archive: its md5 is {found}, expected {one.md5}"
    if strict:
        raise ValueError(f"{message}. Fetch {one.url}, or pass strict=False.")
    note(f"{message}; it is read all the same")


def _writable(folder: Path) -> Path:
    """`folder`, or for a read-only collection the platform's cache folder."""
    if os.access(folder, os.W_OK):
        return folder
    cache = platform_cache()
    cache.mkdir(parents=True, exist_ok=True)
    return cache
