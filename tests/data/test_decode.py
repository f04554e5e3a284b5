"""Decoding: every mode, every orientation, everything that can be wrong with a file, many files on threads."""

import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pictures import class_folder, picture, quietly, saved
from PIL import Image, ImageFile, ImageOps

from esupcon.data import load_images
from esupcon.data.decode import DecodeSpec, decode_images, fit_arrays, image_dimensions


def decoded(encoded, height=24, width=24, channels=3, max_pixels=10**8):
    """The array, or the reason there is none."""
    rows = np.zeros((1, channels, height, width), np.uint8)
    one = encoded if isinstance(encoded, bytes) else str(encoded)
    unreadable = decode_images([one], rows, DecodeSpec(height, width, channels, max_pixels))
    return unreadable[0] if unreadable else rows[0]


def planes(image):
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def as_file(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}), **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        *(("RGB", kind, {}) for kind in ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000")),
        *((mode, "PNG", {}) for mode in ("L", "1", "P", "RGBA")),
        ("CMYK", "JPEG", {"quality": 95}),
    ],
)
def test_modes_are_converted_as_pillow_does(mode, kind, options):
    data = as_file(picture().convert(mode), kind, **options)
    opened = Image.open(io.BytesIO(data))
    np.testing.assert_array_equal(decoded(data), planes(opened))
    np.testing.assert_array_equal(decoded(data, channels=1)[0], np.asarray(opened.convert("RGB").convert("L")))
    if mode == "CMYK":  # it is the picture, not its negative
        assert np.abs(decoded(data).astype(int) - planes(picture())).mean() < 3


def test_transparent_pixels_are_composited_on_white():
    alpha = np.linspace(0, 255, 24 * 24).reshape(24, 24).astype(np.uint8)
    share, layer = alpha / 255, Image.fromarray(alpha)
    for image in (picture(), picture().convert("L")):
        transparent = image.copy()
        transparent.putalpha(layer)
        expected = planes(image) * share + 255 * (1 - share)
        np.testing.assert_allclose(decoded(as_file(transparent)), expected, atol=1)
    indexed = Image.new("P", (24, 24), 1)
    indexed.putpalette([0, 0, 0, 200, 10, 10])
    indexed.paste(0, (0, 0, 12, 24))
    got = decoded(as_file(indexed, transparency=0))
    assert got[:, :, :12].min() == 255  # not the black that hides behind it
    np.testing.assert_array_equal(got[:, 0, 12], [200, 10, 10])
    keyed = Image.new("RGB", (24, 24), (1, 2, 3))
    assert decoded(as_file(keyed, transparency=(1, 2, 3))).min() == 255


UNIT = np.linspace(0, 1, 24 * 24, dtype=np.float32).reshape(24, 24)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_wide_samples_are_scaled(kind):
    got = decoded(as_file(Image.fromarray((UNIT * 65535).astype(np.uint16)), kind))
    np.testing.assert_allclose(got[0], UNIT * 255, atol=0.51)


@pytest.mark.parametrize(("values", "word"), [(UNIT, "float"), (np.full((24, 24), 1 << 20, np.int32), "65535")])
def test_samples_of_unknown_scale_are_refused(values, word):
    assert word in decoded(as_file(Image.fromarray(values), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_every_exif_orientation(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = as_file(picture(20, 12), kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    width, height = upright.size
    assert (width, height) == ((12, 20) if orientation >= 5 else (20, 12))
    np.testing.assert_array_equal(decoded(data, height, width), planes(upright))


def test_invalid_exif_is_ignored_without_a_warning():
    exif = Image.Exif()
    exif[0x0112] = 9
    np.testing.assert_array_equal(decoded(as_file(picture(), exif=exif)), planes(picture()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for broken in (b"Exif\0\0II*\0\xff\xff\xff\xffnonsense", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"):
            assert isinstance(decoded(as_file(picture(), "JPEG", exif=broken)), np.ndarray)


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    orientation=st.integers(1, 8),
)
@example(size=(25, 1), target=(1, 39), orientation=1)  # 39 * (25 / 39) is a little more than 25
def test_any_size_is_cropped_and_resized(size, target, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = as_file(picture(*size), exif=exif)
    height, width = target
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    expected = ImageOps.fit(upright, (width, height), Image.Resampling.BILINEAR)
    got = decoded(data, height, width)
    # The small difference is that of turning after resizing: Pillow rounds between rows and columns.
    np.testing.assert_allclose(got, planes(expected), atol=2)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_first_frame_of_an_animation(kind):
    frames = [Image.new("RGB", (24, 24), colour) for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200))]
    got = decoded(as_file(frames[0], kind, save_all=True, append_images=frames[1:]))
    np.testing.assert_array_equal(got[:, 5, 5], [200, 0, 0])
    assert isinstance(decoded(as_file(frames[0], "MPO", save_all=True, append_images=frames[1:])), np.ndarray)


def test_files_that_are_no_images(tmp_path):
    np.testing.assert_array_equal(decoded(saved(tmp_path / "png.jpg", format="PNG")), planes(picture()))
    (tmp_path / "text.jpg").write_text("these are not pixels")
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone")
    (tmp_path / "itself.jpg").symlink_to(tmp_path / "itself.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    (tmp_path / "program.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    reasons = {
        "text.jpg": "not an image",
        "empty.png": "0 bytes",
        "folder.jpg": "not a regular file",
        "link.jpg": "broken link",
        "itself.jpg": "symbolic links",
        "pipe.jpg": "not a regular file",  # and it does not wait for a writer
        "phone.heic": "HEIC",
        "program.jpg": "not an image",  # PostScript would be run by an interpreter
        "absent.jpg": "no such file",
        "a\0b.jpg": "null",
    }
    for name, reason in reasons.items():
        assert reason in decoded(f"{tmp_path}/{name}"), name
        assert image_dimensions(f"{tmp_path}/{name}") is None
    assert "0 bytes" in decoded(b"")


def test_pillow_settings_are_ignored_and_restored(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    for kind in ("JPEG", "PNG", "BMP", "PPM", "WEBP"):
        whole = as_file(picture(40, 40), kind)
        assert isinstance(decoded(whole[: len(whole) // 2]), str), kind  # cut files are never completed
        assert isinstance(decoded(whole), np.ndarray)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True
    assert Image.MAX_IMAGE_PIXELS == 10


# --- Arrays: Pillow is the reference ---


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.sampled_from([1, 3]),
)
def test_arrays_are_resized_and_converted_as_files_are(size, target, channels):
    image = np.random.default_rng(1).integers(0, 256, (1, channels, *size)).astype(np.uint8)
    wanted = 4 - channels
    as_png = as_file(Image.fromarray(image[0, 0] if channels == 1 else image[0].transpose(1, 2, 0)))
    got = fit_arrays(image, DecodeSpec(*target, wanted))[0]
    np.testing.assert_array_equal(got, decoded(as_png, *target, wanted))


# --- Many files ---

SPEC = DecodeSpec(16, 16)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    """Paths and bytes, intact and broken."""
    folder = tmp_path_factory.mktemp("many")
    items = [str(saved(folder / f"{i}.png", picture(20 + i % 7, 20, seed=i))) for i in range(200)]
    items[7] = str(folder / "absent.png")
    items[130] = b"no image"
    items[131] = (folder / "3.png").read_bytes()
    return items


@pytest.mark.parametrize("workers", [1, 5])
def test_number_of_threads_does_not_change_the_result(encoded, workers):
    expected = [decoded(one, 16, 16) for one in encoded]
    done = []
    rows = np.zeros((len(encoded), *SPEC.shape), np.uint8)
    unreadable = decode_images(iter(encoded), rows, SPEC, workers=workers, advance=done.append)
    assert sorted(unreadable) == [7, 130]
    assert sum(done) == len(encoded)
    for i, one in enumerate(expected):
        assert unreadable[i] == one if isinstance(one, str) else (rows[i] == one).all()


def test_failure_of_the_source_is_raised():
    def broken():
        yield from [b"x"] * 40
        raise ValueError("the file ends in the middle")

    threads = threading.active_count()
    with pytest.raises(ValueError, match="in the middle"):
        decode_images(broken(), np.zeros((90, *SPEC.shape), np.uint8), SPEC, workers=2)
    assert threading.active_count() == threads


INTERRUPTED = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a script ignores it
import numpy as np
from esupcon.data import decode
def slow(one, spec):
    time.sleep(0.2)
    raise decode.Unreadable("slow")
decode._decode = slow
print("decoding", flush=True)
try:
    decode.decode_images([b"x"] * 1000, np.zeros((1000, 3, 8, 8), np.uint8), decode.DecodeSpec(8, 8), workers=4)
except KeyboardInterrupt:
    print("stopped", threading.active_count(), flush=True)
"""


def test_ctrl_c_stops_decoding_within_two_seconds():
    process = subprocess.Popen([sys.executable, "-P", "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "decoding\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    output, _ = process.communicate(timeout=30)
    assert time.monotonic() - began < 2
    assert output == "stopped 1\n"


def test_load_images_returns_batches_in_order_as_load_decodes(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 4, "b": 4}, width=50, height=31)
    paths = sorted(root.rglob("*.png"))
    data = quietly(root, tmp_path, image_size=(12, 10), channels=1)
    (whole,) = load_images(paths, (12, 10), channels=1)
    assert sorted(whole.images.tolist()) == sorted(np.concatenate([data.x_train, data.x_test]).tolist())
    endless = load_images(itertools.cycle([*paths, tmp_path / "absent.png"]), (12, 10), 1, batch_size=5, workers=2)
    first, second = next(endless), next(endless)
    assert first.paths + second.paths == [str(path) for path in [*paths, paths[0]]]
    np.testing.assert_array_equal(np.concatenate([first.images, second.images])[:8], whole.images)
    assert (first.skipped, second.skipped) == ([], [(str(tmp_path / "absent.png"), "no such file, or a broken link")])
    (nothing,) = load_images([tmp_path / "absent.png"], 8)
    assert (nothing.paths, nothing.images.shape) == ([], (0, 3, 8, 8))
