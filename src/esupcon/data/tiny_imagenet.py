"""Tiny ImageNet in its official tree: train/<wnid>/images/*.JPEG and val/images/*.JPEG with an annotation file."""

from pathlib import Path

import numpy as np

from esupcon.data.folders import image_files_below
from esupcon.data.listing import ImageFiles, Listing, Skipped
from esupcon.data.progress import Say


def list_tiny_imagenet(folder: Path, note: Say) -> Listing:
    """The validation part is the test part: the official test images have no labels."""
    wnids = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir() and path.name[0] != ".")
    index = {wnid: k for k, wnid in enumerate(wnids)}
    skipped: list[Skipped] = []
    paths: list[str] = []
    labels: list[int] = []
    for wnid in wnids:
        files = image_files_below(folder / "train" / wnid, skipped)
        paths += files
        labels += [index[wnid]] * len(files)
    n_train = len(paths)
    for path, wnid in _validation(folder / "val", skipped):
        if wnid in index:
            paths.append(path)
            labels.append(index[wnid])
        else:
            skipped.append((path, f"its class {wnid} has no folder in train"))
    if (n_train, len(paths) - n_train) != (100_000, 10_000):
        note(f"{folder} holds {n_train:,} + {len(paths) - n_train:,} images; the official set has 100,000 + 10,000")
    return Listing(ImageFiles(paths), np.array(labels, np.int64), _class_names(folder, wnids), n_train, skipped)


def _validation(folder: Path, skipped: list[Skipped]) -> list[tuple[str, str]]:
    annotations = folder / "val_annotations.txt"
    if not annotations.is_file():  # often sorted into class folders, as train is
        sorted_by_class = [path for path in sorted(folder.glob("n*")) if path.is_dir()]
        if not sorted_by_class:
            raise FileNotFoundError(f"{annotations} is missing. Unpack the official archive again.")
        return [(f, path.name) for path in sorted_by_class for f in image_files_below(path, skipped)]
    pairs = []
    for line in _lines(annotations):
        name, _, rest = line.partition("\t")
        if name:
            pairs.append((str(folder / "images" / name), rest.partition("\t")[0]))
    return pairs


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} must be text in UTF-8; it is not ({error}). Unpack the official archive again."
        ) from None


def _class_names(folder: Path, wnids: list[str]) -> tuple[str, ...]:
    """The first word for each wnid; the wnid itself where that is unknown or taken."""
    words: dict[str, str] = {}
    table = folder / "words.txt"
    if table.is_file():
        for line in _lines(table):
            wnid, _, synonyms = line.partition("\t")
            words[wnid] = synonyms.partition(",")[0].strip()
    names = [words.get(wnid) or wnid for wnid in wnids]
    return tuple(f"{name} ({wnid})" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True))
