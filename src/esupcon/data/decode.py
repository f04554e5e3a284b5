"""One image file, or its bytes, becomes one uint8 array of a given size, whatever the file turns out to be.

The picture is turned upright (EXIF), laid over white where it is transparent, cropped about its centre to
the target's proportions and resized. Of an animation the first frame counts. Sixteen-bit samples are scaled
as v * 255 / 65535. What cannot be read raises `Unreadable` with a reason fit to be shown to a user.
"""

import importlib
import io
import math
import os
import stat
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from esupcon.data.image_modes import Unreadable, plain_mode

# Part of every cache key: raise it when the same file would give other pixels than before.
DECODE_VERSION = 1

# Formats that decode in-process, by plugin. EPS is left out on purpose: Pillow hands it to an interpreter.
_PLUGINS = {
    "JPEG": "Jpeg",
    "PNG": "Png",
    "GIF": "Gif",
    "BMP": "Bmp",
    "WEBP": "WebP",
    "TIFF": "Tiff",
    "PPM": "Ppm",
    "JPEG2000": "Jpeg2K",
    "AVIF": "Avif",
}
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".bmp", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif", ".heic", ".heif"),
)
DEFAULT_MAX_PIXELS = 89_478_485  # a quarter of a gigabyte as RGB: Pillow's own threshold of suspicion

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_EXIF_ORIENTATION = 0x0112
_ANIMATED_FORMATS = ("GIF", "PNG", "WEBP", "TIFF", "AVIF")  # MPO's further frames are previews, not animation

_READ_AT_ONCE = 1 << 20
# Without waiting, for a pipe named like an image may never get a writer.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

Encoded = str | bytes  # a path, or the contents of an image file


@dataclass(frozen=True)
class DecodeSpec:
    """What every image is turned into: (channels, height, width)."""

    height: int
    width: int
    channels: int = 3
    max_pixels: int = DEFAULT_MAX_PIXELS

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)


def _available_formats() -> tuple[str, ...]:
    for plugin in _PLUGINS.values():  # a build of Pillow may lack some
        with suppress(ImportError):
            importlib.import_module(f"PIL.{plugin}ImagePlugin")
    return tuple(name for name in _PLUGINS if name in Image.OPEN)


_FORMATS = _available_formats()
_pillow_settings = threading.RLock()


@contextmanager
def _settled_pillow(max_pixels: int) -> Iterator[None]:
    """Pillow's global switches at known values, so that every process decodes alike; restored afterwards."""
    with _pillow_settings, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Pillow warns of is either harmless or fails on its own
        before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = max_pixels, False
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


def decode_rows(encoded: Sequence[Encoded], rows: NDArray[np.uint8], spec: DecodeSpec) -> tuple[dict[int, str], int]:
    """Fill rows[i] from encoded[i]. Returns {i: reason} of the unreadable ones and the number of animations."""
    unreadable: dict[int, str] = {}
    animated = 0
    with _settled_pillow(spec.max_pixels):
        for i, one in enumerate(encoded):
            try:
                rows[i], moves = _decode(one, spec)
                animated += moves
            except Unreadable as reason:
                unreadable[i] = str(reason)
    return unreadable, animated


def image_dimensions(encoded: Encoded, max_pixels: int = DEFAULT_MAX_PIXELS) -> tuple[int, int] | None:
    """(width, height) as the file's header states them; None where it cannot be read."""
    with _settled_pillow(max_pixels):
        try:
            with _opened(encoded) as file:
                return _identify(file, max_pixels).size
        except Exception:  # as in _decode
            return None


def _decode(encoded: Encoded, spec: DecodeSpec) -> tuple[NDArray[np.uint8], bool]:
    try:
        with _opened(encoded) as file:
            return _pixels(_identify(file, spec.max_pixels), spec)
    except (Unreadable, KeyboardInterrupt):
        raise
    except Exception as error:  # damaged bytes make decoders raise nearly anything
        raise Unreadable(_reason(error)) from error


def _opened(encoded: Encoded) -> BinaryIO:
    """The bytes to decode: a small file is read at one go, a large one as far as its decoder asks for it."""
    if isinstance(encoded, bytes):
        if not encoded:
            raise Unreadable("empty (0 bytes)")
        return io.BytesIO(encoded)
    try:
        descriptor = os.open(encoded, _OPEN_FLAGS)
    except FileNotFoundError:
        raise Unreadable("no such file, or a broken link") from None
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("not a regular file")
        if status.st_size == 0:
            raise Unreadable("empty (0 bytes)")
        if status.st_size > _READ_AT_ONCE:
            return os.fdopen(os.dup(descriptor), "rb")
        return io.BytesIO(os.read(descriptor, status.st_size))
    finally:
        os.close(descriptor)


def _identify(file: BinaryIO, max_pixels: int) -> ImageFile.ImageFile:
    try:
        image = Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        file.seek(0)
        if file.read(12)[4:] in (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc"):
            raise Unreadable("HEIC: convert it to JPEG or PNG") from None
        raise Unreadable("not an image, whatever its name says") from None
    except Image.DecompressionBombError:
        raise Unreadable(f"more than {max_pixels:,} pixels") from None
    width, height = image.size
    if width * height > max_pixels:
        raise Unreadable(f"{width} x {height} is more than {max_pixels:,} pixels")
    return image


def _pixels(image: ImageFile.ImageFile, spec: DecodeSpec) -> tuple[NDArray[np.uint8], bool]:
    file_format = image.format
    jpeg = file_format in ("JPEG", "MPO")
    if not jpeg:
        image.load()  # TIFF turns itself upright while loading; only then is the tag to be believed
    orientation = _orientation(image)
    target = (spec.height, spec.width) if orientation >= 5 else (spec.width, spec.height)
    if jpeg and image.size != target:
        image.draft(None, _draft_size(image.size, target))
    animated = file_format in _ANIMATED_FORMATS and _is_animated(image)
    picture = plain_mode(image, may_be_transparent=not jpeg)
    if picture.size != target:
        picture = picture.resize(target, Image.Resampling.BILINEAR, box=_centre(picture.size, target))
    if orientation != 1:
        picture = picture.transpose(_UPRIGHT[orientation])
    if picture.mode == "RGBA":
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    mode = "L" if spec.channels == 1 else "RGB"
    if picture.mode != mode:
        picture = picture.convert(mode)
    flat = np.frombuffer(picture.tobytes(), np.uint8)
    return flat.reshape(spec.height, spec.width, spec.channels).transpose(2, 0, 1), animated


def _orientation(image: ImageFile.ImageFile) -> int:
    if image.format == "JPEG" and "exif" not in image.info:
        return 1  # without building an empty Exif object first
    try:
        value = image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # broken metadata must not cost a sound picture
        return 1
    return value if value in _UPRIGHT else 1


def _is_animated(image: ImageFile.ImageFile) -> bool:
    """Whether there is a second frame; the image is left at its first."""
    if not getattr(image, "is_animated", False):
        return False
    image.seek(0)
    return True


def _draft_size(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """JPEG may shrink by 2, 4 or 8 while decoding; half of the remaining reduction is left to the filter."""
    scale = 2 * max(target[0] / size[0], target[1] / size[1])
    return math.ceil(size[0] * scale), math.ceil(size[1] * scale)


def _centre(size: tuple[int, int], target: tuple[int, int]) -> tuple[float, float, float, float]:
    """The largest centred box of the target's proportions: shorter side resized, longer side cropped."""
    scale = min(size[0] / target[0], size[1] / target[1])
    width, height = target[0] * scale, target[1] * scale
    left, top = max(0.0, (size[0] - width) / 2), max(0.0, (size[1] - height) / 2)
    return left, top, min(left + width, size[0]), min(top + height, size[1])  # never outside by a rounding error


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "needs more memory than there is"
    if isinstance(error, Image.DecompressionBombError):
        return "more pixels than allowed"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if "truncated" in text.lower() else f"damaged: {text}"
