"""From a listing to arrays: decoded through the cache, checked, and divided into train and test."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from esupcon.data.cache import Entry, entry, key_of
from esupcon.data.decode import DECODE_VERSION, DecodeSpec, image_dimensions
from esupcon.data.decode_pool import DecodePool, helpers_for
from esupcon.data.listing import Arrays, EncodedImages, Listing, Skipped
from esupcon.data.progress import Say, progress_bar
from esupcon.data.split import Indices, stratified_split

_SIZES = (32, 64, 128, 224)
_SAMPLE = 200  # headers looked at to choose a size
_LISTED = 20  # unreadable files named one by one; all of them are in Dataset.skipped
_IN_MEMORY = 2 << 30  # a larger part of a set is kept on disk and mapped


def decoded(
    listing: Listing, spec: DecodeSpec, *, cache: Path | None, workers: int | None, strict: bool, note: Say
) -> tuple[Arrays, list[Skipped]]:
    """The images and their labels, and every file left out."""
    images = listing.images
    found = _entry(images, spec, cache, workers, note)
    unreadable = {int(i): str(reason) for i, reason in _mapping(found.record["unreadable"]).items()}
    skipped = listing.skipped + [(images.name(i), reason) for i, reason in sorted(unreadable.items())]
    _say_skipped(skipped, len(images) + len(listing.skipped), strict, note)
    if found.record["animated"]:
        note(f"{found.record['animated']} image(s) are animated; the first frame of each is used")
    kept = np.ones(len(images), bool)
    kept[list(unreadable)] = False
    n_train = None if listing.n_train is None else int(kept[: listing.n_train].sum())
    labels = listing.labels[kept]
    _refuse_lost_classes(listing, labels[:n_train], unreadable)
    arrays = Arrays(found.images[:n_train], labels[:n_train], listing.classes)
    if n_train is not None and n_train < len(labels):
        arrays.x_test, arrays.y_test = found.images[n_train:], labels[n_train:]
    return arrays, skipped


def divided(arrays: Arrays, indices: tuple[Indices, Indices], cache: Path | None, note: Say) -> Arrays:
    """The training part of `arrays`, which is all there is, in two."""
    train, test = indices
    if len(test) == 0:
        raise ValueError("no image is left to test on: every class has a single one. Add images or a test part.")
    x, y = arrays.x_train, arrays.y_train
    return Arrays(_taken(x, train, cache, note), y[train], arrays.classes, _taken(x, test, cache, note), y[test])


def stratified(y: NDArray[np.int64], test_fraction: float, seed: int, note: Say) -> tuple[Indices, Indices]:
    train, test = stratified_split(y, test_fraction, seed)
    note(
        f"there is no test part: {len(test):,} of {len(y):,} images are set aside as one, "
        f"drawn from every class (test_fraction={test_fraction}, seed={seed})"
    )
    return train, test


def usual_size(images: EncodedImages, max_pixels: int, note: Say) -> tuple[int, int]:
    """(height, width) to decode to when nobody says: the images' own where they are alike, square and at most
    224, else the largest of 32, 64, 128 and 224 that their median shorter side reaches."""
    seen = [image_dimensions(one, max_pixels) for one in images.sample(_SAMPLE)]
    sizes = [size for size in seen if size is not None]
    if not sizes:
        return _SIZES[0], _SIZES[0]
    if len(set(sizes)) == 1 and sizes[0][0] == sizes[0][1] <= _SIZES[-1]:
        side = sizes[0][0]
        note(f"image_size is {side}, as the images have it")
    else:
        middle = median(min(size) for size in sizes)
        side = max((size for size in _SIZES if size <= middle), default=_SIZES[0])
        note(
            f"image_size is {side}, chosen by the images' median shorter side of {middle:g}; "
            "pass image_size to change it"
        )
    return side, side


def _entry(images: EncodedImages, spec: DecodeSpec, cache: Path | None, workers: int | None, note: Say) -> Entry:
    def fill(file: Path, rows: NDArray[np.uint8]) -> tuple[list[int], dict[str, object]]:
        helpers = helpers_for(len(images), images.n_bytes, workers)
        with progress_bar("decoding images", len(images)) as advance, DecodePool(helpers) as pool:
            findings = pool.decode(images, file, rows, spec, advance)
        record = {"unreadable": findings.unreadable, "animated": findings.animated}
        return sorted(findings.unreadable), record

    if len(images) == 0:
        return Entry(np.empty((0, *spec.shape), np.uint8), {"unreadable": {}, "animated": 0})
    key = key_of("decoded", DECODE_VERSION, asdict(spec), images.stamp())
    return entry(cache, key, (len(images), *spec.shape), fill, note)


def _mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _say_skipped(skipped: list[Skipped], n_files: int, strict: bool, note: Say) -> None:
    if not skipped:
        return
    if strict:
        path, reason = skipped[0]
        raise ValueError(
            f"{len(skipped)} of {n_files:,} files cannot be used, {path} the first ({reason}). "
            "Repair or remove them, or pass strict=False to leave them out."
        )
    for path, reason in skipped[:_LISTED]:
        note(f"left out: {path} ({reason})")
    more = f", {len(skipped) - _LISTED} of them not named here" if len(skipped) > _LISTED else ""
    note(f"{len(skipped)} of {n_files:,} files were left out{more}")


def _refuse_lost_classes(listing: Listing, kept: NDArray[np.int64], unreadable: dict[int, str]) -> None:
    before = Counter(listing.labels[: listing.n_train].tolist())
    lost = sorted(set(before) - set(kept.tolist()))
    if lost:
        example = next(i for i in sorted(unreadable) if listing.labels[i] == lost[0])
        more = f" ({len(lost) - 1} further class(es) alike)" if len(lost) > 1 else ""
        raise ValueError(
            f"the class {listing.classes[lost[0]]!r} has no readable image: of {before[lost[0]]}, "
            f"{listing.images.name(example)} is the first ({unreadable[example]}){more}. "
            "Replace its files or remove the class."
        )


def _taken(x: NDArray[np.uint8], rows: Indices, cache: Path | None, note: Say) -> NDArray[np.uint8]:
    """x[rows], in memory or where that is large as a further entry of the cache."""
    if rows.size * x[:1].nbytes <= _IN_MEMORY or cache is None or not isinstance(x, np.memmap):
        return np.asarray(x)[rows]

    def fill(file: Path, out: NDArray[np.uint8]) -> tuple[list[int], dict[str, object]]:
        for start in range(0, rows.size, 1024):
            out[start : start + 1024] = x[rows[start : start + 1024]]
        return [], {}

    key = key_of("rows", str(x.filename), rows.tolist())
    return entry(cache, key, (rows.size, *x.shape[1:]), fill, note).images
