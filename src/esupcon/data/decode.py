"""Decode one image file to a uint8 array of a given size; many of them on threads.

The image is rotated as its EXIF tag says, composited on white if it is transparent, cropped about its centre to the
target's proportions and resized. Only the first frame of an animation is used. Sixteen-bit samples are scaled as
v * 255 / 65535. A file that cannot be read raises `Unreadable` with a reason that can be shown to a user.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from esupcon._console import usable_cores
from esupcon.data import DEFAULT_MAX_PIXELS

# Part of every cache key: raise it when the same file would give other pixels than before.
DECODE_VERSION = 1

# Formats that decode in-process. EPS is left out on purpose: Pillow passes it to an interpreter.
for _plugin in ("Jpeg", "Png", "Gif", "Bmp", "WebP", "Tiff", "Ppm", "Jpeg2K", "Avif"):
    with suppress(ImportError):  # a build of Pillow may lack some
        importlib.import_module(f"PIL.{_plugin}ImagePlugin")
_READ = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
_FORMATS = tuple(name for name in _READ if name in Image.OPEN)
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".bmp", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif", ".heic", ".heif"),
)
_T, _EXIF_ORIENTATION = Image.Transpose, 0x0112
_ROTATIONS = dict(enumerate((_T.FLIP_LEFT_RIGHT, _T.ROTATE_180, _T.FLIP_TOP_BOTTOM, _T.TRANSPOSE), start=2))
_ROTATIONS |= {6: _T.ROTATE_270, 7: _T.TRANSVERSE, 8: _T.ROTATE_90}

_SIDES = (32, 64, 128, 224)
#: Images whose shorter side has this many pixels or more are photos, for which pretrained weights help.
PHOTO_SIDE = 64
#: Headers that are read to choose a size.
SAMPLED_HEADERS = 200
Encoded = str | bytes  # a path, or the content of an image file
Skipped = tuple[str, str]  # path, reason


class Unreadable(Exception):  # noqa: N818 - the message is a reason to show: `except Unreadable as reason`
    """Raised if a file gives no image; the message is the reason in a few words."""


@dataclass(frozen=True)
class DecodeSpec:
    """The shape that every image is brought to, and the most pixels that a file may have."""

    height: int
    width: int
    channels: int = 3
    max_pixels: int = DEFAULT_MAX_PIXELS

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)


# --- Many images -----------------------------------------------------------------------------------------------------


def decode_images(
    images: Iterable[Encoded],
    rows: NDArray[np.uint8],
    spec: DecodeSpec,
    *,
    workers: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> dict[int, str]:
    """Decode the i-th image into rows[i] on threads; return {row: reason} of those that cannot be read.

    Threads suffice because Pillow releases the interpreter lock. Ctrl-C stops them after their current image.
    """
    unreadable: dict[int, str] = {}
    lock, stop, source = threading.Lock(), threading.Event(), enumerate(images)

    def work() -> None:
        while not stop.is_set():
            with lock:
                i, encoded = next(source, (-1, b""))
            if i < 0:
                break
            try:
                rows[i] = _decode(encoded, spec)
            except Unreadable as reason:
                unreadable[i] = str(reason)
            with lock:
                advance(1)

    n_threads = max(1, min(workers or usable_cores(), len(rows)))
    # Pillow's settings are restored after the threads have ended.
    with _pillow_settings(spec.max_pixels), ThreadPoolExecutor(n_threads) as pool:
        try:
            for done in as_completed([pool.submit(work) for _ in range(n_threads)]):
                done.result()
        finally:
            stop.set()
    return unreadable


class ImageBatch(NamedTuple):
    """`images[i]` comes from `paths[i]`; `skipped` holds the files of this batch that could not be read."""

    paths: list[str]
    images: NDArray[np.uint8]
    skipped: list[Skipped]


def load_images(
    paths: Iterable[str | os.PathLike[str]],
    image_size: int | tuple[int, int],
    channels: int = 3,
    *,
    batch_size: int = 256,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    workers: int | None = None,
) -> Iterator[ImageBatch]:
    """Decode files as `load` does, `batch_size` at a time and in order: uint8 (n, channels, height, width).

    Memory does not grow with the list. Unreadable files are listed in their batch, which may be empty.
    """
    height, width = image_size if isinstance(image_size, tuple) else (image_size, image_size)
    spec = DecodeSpec(height, width, channels, max_pixels)
    remaining = (os.fspath(path) for path in paths)
    while batch := list(islice(remaining, batch_size)):
        rows = np.empty((len(batch), *spec.shape), np.uint8)
        lost = decode_images(batch, rows, spec, workers=workers)
        kept = [i for i in range(len(batch)) if i not in lost]
        skipped = [(batch[i], lost[i]) for i in sorted(lost)]
        yield ImageBatch([batch[i] for i in kept], rows[kept] if lost else rows, skipped)


def fit_arrays(images: NDArray[np.uint8], spec: DecodeSpec) -> NDArray[np.uint8]:
    """Resize uint8 images (n, C, H, W) and convert their channels as files are; return them as they are if they fit."""
    if images.shape[1:] == spec.shape:
        return images
    out = np.empty((len(images), *spec.shape), np.uint8)
    for i, image in enumerate(images):
        picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
        out[i] = _fit(picture, spec)
    return out


def image_dimensions(encoded: Encoded, max_pixels: int = DEFAULT_MAX_PIXELS) -> tuple[int, int] | None:
    """Return (width, height) from the file's header; None if it cannot be read."""
    with _pillow_settings(max_pixels):
        try:
            with _open(encoded) as file:
                return _identify(file, max_pixels).size
        except Exception:  # as in _decode
            return None


def choose_side(sizes: Sequence[tuple[int, int]], photo_side: int | None = None) -> tuple[int, float]:
    """Return a side for images of these sizes, and their median shorter side: `photo_side`, if given, for photos.

    Otherwise their own if all are equal, square and at most 224, or the largest of 32 to 224 below the median.
    """
    sizes = sizes or [(_SIDES[0], _SIDES[0])]
    middle = median(min(size) for size in sizes)
    if photo_side is not None and middle >= PHOTO_SIDE:
        return photo_side, middle
    if len(set(sizes)) == 1 and sizes[0][0] == sizes[0][1] <= _SIDES[-1]:
        return sizes[0][0], middle
    return max((side for side in _SIDES if side <= middle), default=_SIDES[0]), middle


# --- One image -------------------------------------------------------------------------------------------------------


_pillow_lock = threading.RLock()


@contextmanager
def _pillow_settings(max_pixels: int) -> Iterator[None]:
    """Set Pillow's global switches to known values, once around all threads; restore them afterwards."""
    with _pillow_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Pillow warns of is either harmless or fails on its own
        before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = max_pixels, False
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


def _decode(encoded: Encoded, spec: DecodeSpec) -> NDArray[np.uint8]:
    try:
        with _open(encoded) as file:
            return picture_pixels(_identify(file, spec.max_pixels), spec)
    except Unreadable:
        raise
    except Image.DecompressionBombError:
        raise Unreadable(f"more than {spec.max_pixels:,} pixels") from None
    except Exception as error:  # damaged bytes make decoders raise nearly anything
        text = " ".join(str(error).split()) or type(error).__name__
        raise Unreadable(text if "truncated" in text.lower() else f"damaged: {text}") from error


def _open(encoded: Encoded) -> BinaryIO:
    if isinstance(encoded, bytes):
        return io.BytesIO(encoded)
    try:
        if stat.S_ISREG(os.stat(encoded).st_mode):  # noqa: PTH116 - a Path per image is slow
            return open(encoded, "rb")  # noqa: PTH123 - as above; callers close it
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise Unreadable("no such file, or a broken link" if missing else error.strerror or str(error)) from error
    raise Unreadable("not a regular file")  # opening a pipe could wait for ever


def _identify(file: BinaryIO, max_pixels: int) -> ImageFile.ImageFile:
    try:
        image = Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        file.seek(0)
        start = file.read(12)
        heic = start[4:] in (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc")
        reason = "HEIC: convert it to JPEG or PNG" if heic else "not an image, despite its name"
        raise Unreadable(reason if start else "empty (0 bytes)") from None
    width, height = image.size
    if width * height > max_pixels:
        raise Unreadable(f"{width} x {height} is more than {max_pixels:,} pixels")
    return image


def picture_pixels(image: ImageFile.ImageFile, spec: DecodeSpec) -> NDArray[np.uint8]:
    """Return the pixels of an opened image."""
    jpeg = image.format in ("JPEG", "MPO")
    if not jpeg:
        image.load()  # TIFF rotates itself while loading; only then is the tag right
    orientation = 1
    if image.format != "JPEG" or "exif" in image.info:  # without building an empty Exif object first
        with suppress(Exception):  # broken metadata must not cost an intact image
            orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    orientation = orientation if orientation in _ROTATIONS else 1
    target = (spec.height, spec.width) if orientation >= 5 else (spec.width, spec.height)
    if jpeg and image.size != target:
        # JPEG can shrink by 2, 4 or 8 while decoding; half of the remaining reduction is left to the filter.
        scale = 2 * max(target[0] / image.size[0], target[1] / image.size[1])
        image.draft(None, (math.ceil(image.size[0] * scale), math.ceil(image.size[1] * scale)))
    return _fit(_plain_mode(image, may_be_transparent=not jpeg), spec, orientation)


def _plain_mode(image: Image.Image, *, may_be_transparent: bool) -> Image.Image:
    """Convert any mode to L, RGB or RGBA, the three that can be resized directly."""
    if image.mode in ("RGB", "L") and not (may_be_transparent and "transparency" in image.info):
        image.load()
        return image
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise Unreadable(f"integer samples from {values.min()} to {values.max()}: expected 0 to 65535")
        return Image.fromarray(((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode == "F":
        raise Unreadable("float samples: save it with 8 or 16 bits")
    if may_be_transparent and image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert("L" if image.mode == "1" else "RGB")


def _fit(picture: Image.Image, spec: DecodeSpec, orientation: int = 1) -> NDArray[np.uint8]:
    """Crop, resize and rotate an image of mode L, RGB or RGBA, and convert it to (channels, height, width)."""
    target = (spec.height, spec.width) if orientation >= 5 else (spec.width, spec.height)
    if picture.size != target:
        # The largest centred box with the target's proportions, never outside by a rounding error.
        scale = min(picture.width / target[0], picture.height / target[1])
        width, height = target[0] * scale, target[1] * scale
        left, top = max(0.0, (picture.width - width) / 2), max(0.0, (picture.height - height) / 2)
        box = (left, top, min(left + width, picture.width), min(top + height, picture.height))
        picture = picture.resize(target, Image.Resampling.BILINEAR, box=box)
    if orientation != 1:
        picture = picture.transpose(_ROTATIONS[orientation])
    if picture.mode == "RGBA":
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    mode = "L" if spec.channels == 1 else "RGB"
    if picture.mode != mode:
        picture = picture.convert(mode)
    flat = np.frombuffer(picture.tobytes(), np.uint8)
    return flat.reshape(spec.height, spec.width, spec.channels).transpose(2, 0, 1)
