"""Which reader a source needs, and what the readers are told."""

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from esupcon.data.caltech import list_caltech256
from esupcon.data.cifar import read_cifar10, read_cifar100
from esupcon.data.decode import DEFAULT_MAX_PIXELS
from esupcon.data.folders import list_folder
from esupcon.data.huggingface import is_arrow_source, list_arrow
from esupcon.data.listing import Arrays, Listing
from esupcon.data.named import PUBLISHED, published_folder
from esupcon.data.npz import read_npz
from esupcon.data.progress import Say
from esupcon.data.split import check_test_fraction
from esupcon.data.tables import list_csv
from esupcon.data.tiny_imagenet import list_tiny_imagenet

#: The sets that `load` knows by name.
NAMES = ("digits", *PUBLISHED)
_BY_SUFFIX = {".npz": "npz", ".csv": "csv", ".tsv": "csv", ".parquet": "arrow"}
_LARGEST_SIDE = 4096
# Options that say something to some readers only: given to another, they are a mistake.
_PARTICULAR = {
    "n_per_class": ("caltech256",),
    "include_clutter": ("caltech256",),
    "layout": ("npz",),
    "image_column": ("csv", "arrow"),
    "label_column": ("csv", "arrow"),
}


@dataclass(frozen=True)
class Options:
    """What `load` was asked for; see there."""

    image_size: int | tuple[int, int] | None = None
    channels: int | None = None
    seed: int = 0
    test_fraction: float = 0.2
    strict: bool = False
    n_per_class: int | None = None
    include_clutter: bool = False
    layout: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    max_pixels: int = DEFAULT_MAX_PIXELS
    download: bool = True
    workers: int | None = None

    def __post_init__(self) -> None:
        check_test_fraction(self.test_fraction)
        sides = self.size or (1, 1)
        if len(sides) != 2 or not all(isinstance(n, int) and 1 <= n <= _LARGEST_SIDE for n in sides):
            raise ValueError(
                f"image_size must be a side or (height, width), each from 1 to {_LARGEST_SIDE}; got {self.image_size!r}"
            )
        if self.channels not in (None, 1, 3):
            raise ValueError(f"channels must be 1 or 3, or None for the source's own; got {self.channels!r}")
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels must be at least 1; got {self.max_pixels}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, or None for one a core; got {self.workers}")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed must be a whole number, 0 or more; got {self.seed!r}")

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width), or None where it is left open."""
        if self.image_size is None or isinstance(self.image_size, tuple):
            return self.image_size
        return (self.image_size, self.image_size)

    def refuse_idle(self, kind: str, source: object) -> None:
        for option, kinds in _PARTICULAR.items():
            if getattr(self, option) not in (None, False) and kind not in kinds:
                raise ValueError(f"{option} applies to {' and '.join(kinds)}, not to {source}. Leave it out.")


def identified(source: str | os.PathLike[str], root: Path, note: Say) -> tuple[str, Path | None]:
    """The kind of a source, and its path; of a named set the path is still to be found."""
    text = os.fspath(source)
    if not isinstance(text, str) or not text:
        raise ValueError(f"source must be a name or a path; got {source!r}")
    name = _as_name(text) if isinstance(source, str) else None
    path = Path(text).expanduser()
    if name is not None:
        if path.exists():
            note(f"{text!r} is read as the set of that name; for the folder beside you say ./{text}")
        return name, None
    if not path.exists() and (root / path).exists():
        path = root / path
    if path.is_dir():
        return _kind_of_folder(path), path.absolute()
    if path.is_file():
        kind = _BY_SUFFIX.get(path.suffix.lower())
        if kind is None:
            raise ValueError(f"{path} is neither a folder nor one of {', '.join(_BY_SUFFIX)}. Unpack an archive first.")
        return kind, path.absolute()
    raise _not_found(text, path)


def read(kind: str, path: Path | None, root: Path, options: Options, note: Say) -> Arrays | Listing:
    if kind == "digits":
        return _read_digits()
    if path is None:
        path = published_folder(PUBLISHED[kind], root, note, may_download=options.download, strict=options.strict)
    return _READERS[kind](path, options, note)


_READERS: dict[str, Callable[[Path, Options, Say], Arrays | Listing]] = {
    "cifar10": lambda path, _, note: read_cifar10(path, note),
    "cifar100": lambda path, _, note: read_cifar100(path, note),
    "tiny_imagenet": lambda path, _, note: list_tiny_imagenet(path, note),
    "caltech256": lambda path, asked, note: list_caltech256(
        path,
        note,
        seed=asked.seed,
        n_per_class=asked.n_per_class,
        include_clutter=asked.include_clutter,
        test_fraction=asked.test_fraction,
    ),
    "npz": lambda path, asked, note: read_npz(path, note, layout=asked.layout),
    "csv": lambda path, asked, note: list_csv(
        path, note, image_column=asked.image_column, label_column=asked.label_column
    ),
    "arrow": lambda path, asked, note: list_arrow(
        path, note, image_column=asked.image_column, label_column=asked.label_column
    ),
    "folder": lambda path, _, note: list_folder(path, note),
}


def _read_digits() -> Arrays:
    """scikit-learn's 1,797 handwritten digits: values 0 to 16 become v * 255 / 16."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import, and one source of many

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return Arrays(images[:, None], bunch.target.astype(np.int64), tuple(map(str, bunch.target_names)))


def _as_name(text: str) -> str | None:
    """cifar10 for CIFAR-10, tiny_imagenet for TinyImageNet."""
    bare = re.sub(r"[-_ ]", "", text).lower()
    return next((name for name in NAMES if name.replace("_", "") == bare), None)


def _kind_of_folder(path: Path) -> str:
    official = next((one for one in PUBLISHED.values() if one.folder == path.name), None)
    if official is not None and (path / official.proof).exists():
        return official.name
    return "arrow" if is_arrow_source(path) else "folder"


def _not_found(text: str, path: Path) -> Exception:
    looks_like_a_path = path.suffix != "" or any(mark in text for mark in "/\\~")
    if not looks_like_a_path:
        close = difflib.get_close_matches(text.lower(), NAMES, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return ValueError(f"{text!r} is neither a known set ({', '.join(NAMES)}) nor a file or folder here.{hint}")
    beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1)
    hint = f" Did you mean {path.parent / close[0]}?" if close else " Check the path."
    return FileNotFoundError(f"there is no file or folder {path}.{hint}")
