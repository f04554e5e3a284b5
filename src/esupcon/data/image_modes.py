"""The modes an image file may come in, brought down to three: L, RGB and RGBA."""

import numpy as np
from PIL import Image


class Unreadable(Exception):  # noqa: N818 - reads as what it says: `except Unreadable as reason`
    """This file gives no image; the message is the reason, in a few words."""


def plain_mode(image: Image.Image, *, may_be_transparent: bool) -> Image.Image:
    """Any mode -> L, RGB or RGBA, the three that resize without surprises."""
    if image.mode in ("RGB", "L") and not (may_be_transparent and "transparency" in image.info):
        image.load()
        return image
    if image.mode.startswith("I"):
        return _from_integers(image)
    if image.mode == "F":
        return _from_floats(image)
    if may_be_transparent and image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert("L" if image.mode == "1" else "RGB")


def _from_integers(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise Unreadable(f"integer samples from {values.min()} to {values.max()}: expected 0 to 65535")
    return Image.fromarray(((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8))


def _from_floats(image: Image.Image) -> Image.Image:
    values = np.asarray(image, np.float64)
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 255:
        raise Unreadable("float samples outside 0 to 1 and 0 to 255")
    scale = 255.0 if values.max() <= 1 else 1.0
    return Image.fromarray(np.rint(values * scale).astype(np.uint8))
