"""The five named data sets: locate, download, verify, unpack and read them."""

from __future__ import annotations

import hashlib
import http.client
import io
import pickle
import re
import shutil
import tempfile
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from esupcon._console import Log, printable, progress_bar
from esupcon._io import locked, write_whole
from esupcon.data import DataOptions
from esupcon.data.cache import DATA_VARIABLE, data_root
from esupcon.data.decode import Skipped
from esupcon.data.folders import image_files_below
from esupcon.data.sources import ImageFiles, Source


class Published(NamedTuple):
    """An archive on the web. `folder` is its top folder, `proof` a path in it that identifies it."""

    url: str
    md5: str
    folder: str
    proof: str

    @property
    def archive(self) -> str:
        return self.url.rpartition("/")[2]


_TORONTO, _STANFORD = "https://www.cs.toronto.edu/~kriz", "http://cs231n.stanford.edu"
_CALTECH = "https://data.caltech.edu/records/nyy15-4j048/files"
PUBLISHED = {
    "cifar10": Published(
        f"{_TORONTO}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py", "data_batch_1"
    ),
    "cifar100": Published(
        f"{_TORONTO}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python", "train"
    ),
    "tiny_imagenet": Published(
        f"{_STANFORD}/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", "tiny-imagenet-200", "wnids.txt"
    ),
    "caltech256": Published(
        f"{_CALTECH}/256_ObjectCategories.tar", "67b4f42ca05d46448c6bb8ecd2220f6d", "256_ObjectCategories", "."
    ),
}
#: The sets that `load` knows by name.
NAMES = ("digits", *PUBLISHED)
#: Height and width of the images if no image_size is given.
DEFAULT_SIZES = {"tiny_imagenet": (32, 32), "caltech256": (64, 64)}
_MOST_DOWNLOADED = 8 << 30  # bytes: a server without end must not fill the disk
_md5 = partial(hashlib.md5, usedforsecurity=False)  # the checksum that the sets are published with

# --- Locate, download, unpack ----------------------------------------------------------------------------------------


def bare_name(text: str) -> str:
    """Return a name in lower case without separators: cifar10 for CIFAR-10."""
    return re.sub(r"[-_ ]", "", text).lower()


def find_published(name: str, options: DataOptions, log: Log) -> Path:
    """Return the folder of a set: find it in the data folder, unpack its archive there, or download that."""
    one, root = PUBLISHED[name], data_root(options.data_dir)
    if root is None:
        raise ValueError(f"{name} needs a data folder: this user has no home. Pass data_dir, or set {DATA_VARIABLE}.")
    for folder in (root / one.folder, root):
        if folder.name == one.folder and (folder / one.proof).exists():
            return folder
    archive, reason = root / one.archive, ""
    if not archive.is_file() and options.download:
        try:
            download(one.url, archive, one.md5, log)
        except (OSError, http.client.HTTPException) as error:
            reason = f"the download failed ({printable(error) or type(error).__name__})"
    if archive.is_file():
        return extract(archive, one.md5, root / one.folder, log)
    raise FileNotFoundError(
        f"{name} is not in {root} (neither {one.folder}/ nor {one.archive}), and "
        f"{reason or 'downloads are switched off'}. "
        f"Fetch it yourself: curl -L -C - -o {archive} {one.url} (md5 {one.md5})."
    )


def download(url: str, target: Path, md5: str, log: Log) -> None:
    """Download `url` to a temporary file and rename it to `target` if its checksum is right; else raise an OSError."""

    def receive(file: BinaryIO) -> None:
        digest, received = _md5(), 0
        request = urllib.request.Request(url, headers={"User-Agent": "esupcon", "Accept-Encoding": "identity"})
        with urllib.request.urlopen(request, timeout=30) as response:
            length = response.headers.get("Content-Length") or ""
            with progress_bar("downloading", int(length) if length.isdigit() else None, in_bytes=True) as advance:
                while (block := response.read(1 << 18)) and received <= _MOST_DOWNLOADED:
                    received += len(block)
                    digest.update(block)
                    file.write(block)
                    advance(len(block))
        if digest.hexdigest() != md5:
            raise OSError(f"received {received:,} bytes with md5 {digest.hexdigest()}, not {md5}")

    target.parent.mkdir(parents=True, exist_ok=True)
    waiting = partial(log, f"another process is downloading {target.name}; waiting for it")
    with locked(target.with_name(f".{target.name}.lock"), waiting):
        if not target.exists():
            log(f"downloading {url} to {target}")
            write_whole(target, receive)


def extract(archive: Path, md5: str, target: Path, log: Log) -> Path:
    """Unpack the folder `target.name` of a published archive, in one step once it is complete; refuse others."""
    waiting = partial(log, f"another process is unpacking {archive.name}; waiting for it")
    with locked(target.with_name(f".{target.name}.lock"), waiting):
        if target.is_dir():
            return target
        log(f"unpacking {archive} to {target}")
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, _md5).hexdigest()
        if found != md5:  # incomplete, or it may write anywhere
            remedy = "Delete it and fetch it again, or unpack it yourself"
            raise ValueError(f"{archive} is not the official archive: its md5 is {found}, expected {md5}. {remedy}.")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
            # Zip files hold no links or devices, and take no filter.
            shutil.unpack_archive(archive, temporary, filter=None if archive.suffix == ".zip" else "data")
            (Path(temporary) / target.name).rename(target)
    return target


# --- Read ------------------------------------------------------------------------------------------------------------


def read_digits() -> Source:
    """Return scikit-learn's 1,797 handwritten digits; values 0 to 16 become v * 255 / 16."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return Source(images[:, None], bunch.target.astype(np.int64), tuple(map(str, bunch.target_names)))


# MD5 of the official files. They are pickles, so nothing else is read.
_CIFAR_FILES = {
    "cifar10": {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    "cifar100": {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
}


def verified_digest(name: str) -> str | None:
    """Return a digest of a set whose files are verified when they are read; None for the others."""
    files = _CIFAR_FILES.get(name)
    return None if files is None else hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()


def read_cifar(name: str, folder: Path, options: DataOptions, log: Log) -> Source:
    """Read the official Python files of cifar10 or cifar100; each row has 3,072 bytes, planes of 32x32."""
    *parts, meta = (_read_cifar_file(folder / file, md5) for file, md5 in _CIFAR_FILES[name].items())
    label_key, names_key = (b"labels", b"label_names") if name == "cifar10" else (b"fine_labels", b"fine_label_names")
    images = np.concatenate([part[b"data"] for part in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([np.asarray(part[label_key], np.int64) for part in parts])
    return Source(images, labels, tuple(one.decode() for one in meta[names_key]), len(images) - len(parts[-1][b"data"]))


def _read_cifar_file(file: Path, md5: str) -> dict[bytes, Any]:
    """Return the content of an official file; refuse any other, because reading a pickle can run code."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing. Unpack the official archive again.")
    content = file.read_bytes()
    if (found := _md5(content).hexdigest()) != md5:
        remedy = "Unpack the official archive again, or save your own images as .npz"
        raise ValueError(f"{file} is not the official file: its md5 is {found}, expected {md5}. {remedy}.")
    return dict(_CifarUnpickler(io.BytesIO(content), encoding="bytes").load())


class _CifarUnpickler(pickle.Unpickler):
    """Rebuild NumPy arrays and nothing else, should a checksum ever be forged."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case (("numpy.core.multiarray" | "numpy._core.multiarray"), "_reconstruct"):
                return np.empty(0).__reduce__()[0]
            case "numpy", ("ndarray" | "dtype"):
                return getattr(np, name)
        raise ValueError(f"a CIFAR file asks for {module}.{name}, which is not allowed. Unpack the archive again.")


def read_tiny_imagenet(folder: Path, options: DataOptions, log: Log) -> Source:
    """Read train/<wnid>/images/*.JPEG and val/images/*.JPEG; test images have no labels, so val is the test part."""

    def lines(file: Path) -> list[list[str]]:
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        return [line.split("\t") for line in text.splitlines() if "\t" in line]

    skipped: list[Skipped] = []
    wnids = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir() and path.name[0] == "n")
    train = [(path, wnid) for wnid in wnids for path in image_files_below(folder / "train" / wnid, skipped)]
    test = [(str(folder / "val/images" / line[0]), line[1]) for line in lines(folder / "val" / "val_annotations.txt")]
    if not test or not {wnid for _, wnid in test} <= {wnid for _, wnid in train}:
        raise ValueError(f"{folder}/val has no images, or a class that train lacks. Unpack the official archive again.")
    words = {line[0]: line[1] for line in lines(folder / "words.txt")}
    names = [words.get(wnid, "").partition(",")[0].strip() or wnid for wnid in wnids]
    classes = tuple(
        f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True)
    )
    labels = np.searchsorted(wnids, [wnid for _, wnid in train + test])
    return Source(ImageFiles([path for path, _ in train + test]), labels, classes, len(train), skipped)


def read_caltech256(folder: Path, options: DataOptions, log: Log) -> Source:
    """Read 001.ak47/001_0001.jpg and so on. There is no official split: `n_per_class` images of each class train."""
    categories = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[:3].isdigit())
    files = {category.name: sorted(map(str, category.glob("[0-9]*.jpg"))) for category in categories}
    if not options.include_clutter and files.pop("257.clutter", []):
        log("skipped the clutter class")
    classes = tuple(name.partition(".")[2] or name for name in files)
    labels = np.repeat(np.arange(len(files)), [len(of_class) for of_class in files.values()])
    images = ImageFiles([path for of_class in files.values() for path in of_class])
    return Source(images, labels, classes, n_per_class=options.n_per_class or 60)
