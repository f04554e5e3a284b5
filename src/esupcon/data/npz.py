"""Arrays in a .npz file: x_train, y_train, and where there are any x_test, y_test and classes."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esupcon.data.labels import encode_labels
from esupcon.data.listing import Arrays
from esupcon.data.progress import Say
from esupcon.files import quoted
from esupcon.npz_file import NotPlainArrays, array_names, read_arrays

# Further names the same things go by, in files that other libraries write.
_NAMES = {
    "x_train": ("x_train", "train_images", "x", "images", "data"),
    "y_train": ("y_train", "train_labels", "y", "labels"),
    "x_test": ("x_test", "test_images"),
    "y_test": ("y_test", "test_labels"),
    "classes": ("classes", "class_names", "label_names"),
}
_LAYOUTS = ("NHWC", "NCHW")


def read_npz(file: Path, note: Say, *, layout: str | None = None) -> Arrays:
    """Images NHWC or NCHW, or NHW for one channel; `layout` settles what the shape leaves open. Floats are
    read as 0 to 1 where none is above 1, else as 0 to 255."""
    if layout not in (None, *_LAYOUTS):
        raise ValueError(f"layout must be 'NHWC' or 'NCHW'; got {layout!r}")
    content, held = _content(file)
    for name in ("x_train", "y_train"):
        if name not in content:
            raise ValueError(
                f"{file} has no {name}; it holds {', '.join(map(quoted, held)) or 'nothing'}. "
                "Expected x_train, y_train and optionally x_test, y_test, classes."
            )
    if ("x_test" in content) != ("y_test" in content):
        raise ValueError(f"{file} has one of x_test and y_test; expected both or neither.")
    parts = ("train", "test") if "x_test" in content else ("train",)
    for part in parts:
        n_images, n_labels = len(content[f"x_{part}"]), len(content[f"y_{part}"])
        if n_images != n_labels:
            raise ValueError(f"{file}: x_{part} has {n_images} images and y_{part} {n_labels} labels.")
    classes = _class_names(content["classes"], file) if "classes" in content else None
    y_train, y_test, names = encode_labels(content["y_train"], content.get("y_test"), classes, file)
    planes = [_channels_first(content[f"x_{part}"], layout, f"{file}: x_{part}") for part in parts]
    if len({array.shape[1:] for array in planes}) > 1:
        raise ValueError(f"{file}: x_train and x_test differ in size, {planes[0].shape[1:]} and {planes[1].shape[1:]}.")
    images = _as_bytes(planes, file, note)
    return Arrays(images[0], y_train, names, images[1] if y_test is not None else None, y_test)


def _content(file: Path) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The arrays that mean something here, under our names, and the names of all there are."""
    try:
        held = array_names(file)
        present = {name.lower(): name for name in held}
        chosen = {name: next((present[one] for one in usual if one in present), None) for name, usual in _NAMES.items()}
        keys = {name: key for name, key in chosen.items() if key is not None}
        arrays = read_arrays(file, set(keys.values()))
    except NotPlainArrays as reason:
        raise ValueError(f"{file} cannot be read as .npz: {reason}.") from None
    return {name: np.atleast_1d(arrays[key]) for name, key in keys.items()}, held


def _class_names(names: NDArray[Any], file: Path) -> list[str]:
    if names.ndim != 1:
        raise ValueError(f"{file}: classes must be a list of names; got shape {names.shape}.")
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names.tolist()]


def _channels_first(images: NDArray[Any], layout: str | None, what: str) -> NDArray[Any]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise ValueError(f"{what} must be (n, H, W, C), (n, C, H, W) or (n, H, W); got shape {images.shape}.")
    if layout is None:
        first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
        if first and last:
            raise ValueError(f"{what} of shape {images.shape} may be NHWC or NCHW. Pass layout.")
        layout = "NCHW" if first else "NHWC"
    planes = images.transpose(0, 3, 1, 2) if layout == "NHWC" else images
    if planes.shape[1] not in (1, 3) or 0 in planes.shape[2:]:
        raise ValueError(f"{what} must have 1 or 3 channels; as {layout}, shape {images.shape} has {planes.shape[1]}.")
    return planes


def _as_bytes(parts: list[NDArray[Any]], file: Path, note: Say) -> list[NDArray[np.uint8]]:
    """One rule for all parts, so that train and test keep one scale."""
    if all(part.dtype == np.uint8 for part in parts):
        return [np.ascontiguousarray(part) for part in parts]
    if any(part.dtype.kind not in "buif" for part in parts):
        raise ValueError(f"{file}: images must be numbers; got dtype {parts[0].dtype}.")
    filled = [part for part in parts if part.size]
    low = min((part.min() for part in filled), default=0)
    high = max((part.max() for part in filled), default=0)
    if not (low >= 0 and high <= 255):  # so written, it is true of NaN too
        raise ValueError(
            f"{file}: pixel values run from {low} to {high}; expected 0 to 1 or 0 to 255. Undo the "
            "normalisation, or save uint8."
        )
    floats = any(part.dtype.kind == "f" for part in parts)
    unit = (floats and high <= 1) or all(part.dtype.kind == "b" for part in parts)
    if floats:
        note(f"{file} holds floats from {low:.4g} to {high:.4g}, read as 0 to {1 if unit else 255}")
    scale = np.float32(255 if unit else 1)
    return [np.rint(part * scale).astype(np.uint8, order="C") for part in parts]
