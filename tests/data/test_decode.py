"""Decoding: every mode, every orientation, everything that can be wrong with a file, many files on threads."""

import io
import itertools
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pictures import class_folder, picture, quietly, saved
from PIL import Image, ImageFile, ImageOps

from esupcon.data import decode, load_images
from esupcon.data.decode import DecodeSpec, decode_images, fit_arrays, image_dimensions


def decoded(encoded, height=24, width=24, channels=3, max_pixels=10**8):
    """The array, or the reason there is none."""
    rows = np.zeros((1, channels, height, width), np.uint8)
    one = encoded if isinstance(encoded, bytes) else str(encoded)
    findings = decode_images([one], rows, DecodeSpec(height, width, channels, max_pixels))
    decoded.animated = findings.animated
    return findings.unreadable[0] if findings.unreadable else rows[0]


def planes(image):
    return np.asarray(image).transpose(2, 0, 1)


def as_file(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000"])
def test_lossless_formats_are_unchanged(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(decoded(as_file(picture(), kind, **options)), planes(picture()))


def test_jpeg_is_what_pillow_decodes():
    data = as_file(picture(), "JPEG")
    np.testing.assert_array_equal(decoded(data), planes(Image.open(io.BytesIO(data))))


def test_format_is_found_from_content_not_from_the_name(tmp_path):
    path = saved(tmp_path / "really a png.jpg", picture(), format="PNG")
    np.testing.assert_array_equal(decoded(path), planes(picture()))


def test_grey_becomes_three_equal_channels():
    grey = picture().convert("L")
    for channel in decoded(as_file(grey)):
        np.testing.assert_array_equal(channel, np.asarray(grey))


def test_one_channel_is_the_luma():
    got = decoded(as_file(picture()), channels=1)
    np.testing.assert_array_equal(got[0], np.asarray(picture().convert("L")))


def test_black_and_white():
    two = picture().convert("1")
    np.testing.assert_array_equal(decoded(as_file(two))[0], np.where(np.asarray(two), 255, 0))


def test_palette():
    indexed = picture().convert("P", palette=Image.Palette.ADAPTIVE)
    np.testing.assert_array_equal(decoded(as_file(indexed)), planes(indexed.convert("RGB")))


def test_cmyk():
    data = as_file(picture().convert("CMYK"), "JPEG", quality=95)
    expected = planes(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(decoded(data), expected)
    assert np.abs(expected.astype(int) - planes(picture())).mean() < 3  # and it is the picture, not its negative


def over_white(rgba):
    colour, alpha = rgba[..., :3].astype(float), rgba[..., 3:] / 255
    return (colour * alpha + 255 * (1 - alpha)).transpose(2, 0, 1)


def test_alpha_is_composited_on_white():
    rgba = np.dstack([np.asarray(picture()), np.linspace(0, 255, 24 * 24).reshape(24, 24).astype(np.uint8)])
    got = decoded(as_file(Image.fromarray(rgba)))
    np.testing.assert_allclose(got, over_white(rgba), atol=1)


def test_grey_with_alpha():
    grey = np.asarray(picture().convert("L"))
    alpha = np.where(np.arange(24) < 12, 0, 255).astype(np.uint8)[None].repeat(24, 0)
    got = decoded(as_file(Image.merge("LA", (Image.fromarray(grey), Image.fromarray(alpha)))))
    np.testing.assert_array_equal(got[0], np.where(alpha == 0, 255, grey))


def test_transparent_palette_colour_and_colour_key():
    indexed = Image.new("P", (24, 24), 1)
    indexed.putpalette([0, 0, 0, 200, 10, 10])
    indexed.paste(0, (0, 0, 12, 24))
    got = decoded(as_file(indexed, transparency=0))
    assert got[:, :, :12].min() == 255  # not the black that hides behind it
    np.testing.assert_array_equal(got[:, 0, 12], [200, 10, 10])
    keyed = Image.new("RGB", (24, 24), (1, 2, 3))
    assert decoded(as_file(keyed, transparency=(1, 2, 3))).min() == 255


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled(kind):
    values = np.linspace(0, 65535, 24 * 24).reshape(24, 24).astype(np.uint16)
    got = decoded(as_file(Image.fromarray(values), kind))
    np.testing.assert_allclose(got[0], values * (255 / 65535), atol=0.5 + 1e-9)


def test_floats_of_a_tiff():
    unit = np.linspace(0, 1, 24 * 24, dtype=np.float32).reshape(24, 24)
    np.testing.assert_allclose(decoded(as_file(Image.fromarray(unit), "TIFF"))[0], unit * 255, atol=0.51)
    wide = unit * 255
    np.testing.assert_allclose(decoded(as_file(Image.fromarray(wide), "TIFF"))[0], wide, atol=0.51)
    assert "float" in decoded(as_file(Image.fromarray(unit - 0.5), "TIFF"))
    assert "float" in decoded(as_file(Image.fromarray(unit * np.nan), "TIFF"))


def test_integers_beyond_sixteen_bits_are_refused():
    large = np.full((24, 24), 1 << 20, np.int32)
    assert "65535" in decoded(as_file(Image.fromarray(large), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_every_exif_orientation(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    data = as_file(picture(20, 12), kind, exif=exif, **options)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    width, height = upright.size
    assert (width, height) == ((12, 20) if orientation >= 5 else (20, 12))
    np.testing.assert_array_equal(decoded(data, height, width), planes(upright))


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_invalid_orientation_is_ignored(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = as_file(picture(), exif=exif)
    np.testing.assert_array_equal(decoded(data), planes(picture()))


def test_broken_exif_is_ignored():
    data = as_file(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xffnonsense")
    assert isinstance(decoded(data), np.ndarray)


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


def test_large_jpeg_is_shrunk_while_decoding():
    data = as_file(picture(1600, 1200), "JPEG", quality=95)
    expected = ImageOps.fit(Image.open(io.BytesIO(data)), (32, 32), Image.Resampling.BILINEAR)
    difference = np.abs(decoded(data, 32, 32).astype(int) - planes(expected))
    assert difference.mean() < 1
    assert difference.max() < 20  # at the edge of the bright corner


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_first_frame_of_an_animation(kind):
    frames = [Image.new("RGB", (24, 24), colour) for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200))]
    options = {"lossless": True} if kind == "WEBP" else {}
    got = decoded(as_file(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert decoded.animated == 1
    np.testing.assert_array_equal(got[:, 5, 5], [200, 0, 0])


def test_camera_file_with_a_preview_is_no_animation():
    data = as_file(picture(), "MPO", save_all=True, append_images=[picture(8, 8)])
    assert isinstance(decoded(data), np.ndarray)
    assert decoded.animated == 0


def png_that_claims(width, height):
    """A valid header and next to nothing behind it."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9_500, 14_000, 60_000, 2_000_000])
def test_decompression_bomb_is_refused_by_its_header(side):
    assert "pixels" in decoded(png_that_claims(side, side), max_pixels=89_478_485)


def test_caller_sets_the_limit_of_pixels():
    data = as_file(picture(30, 20))
    assert isinstance(decoded(data, max_pixels=600), np.ndarray)
    assert "30 x 20" in decoded(data, max_pixels=599)


def test_files_that_are_no_images(tmp_path):
    (tmp_path / "text.jpg").write_text("these are not the pixels you are looking for")
    (tmp_path / "nothing.png").touch()
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone")
    (tmp_path / "itself.jpg").symlink_to(tmp_path / "itself.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    (tmp_path / "program.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    assert "not an image" in decoded(tmp_path / "text.jpg")
    assert "0 bytes" in decoded(tmp_path / "nothing.png")
    assert "not a regular file" in decoded(tmp_path / "folder.jpg")
    assert "broken link" in decoded(tmp_path / "link.jpg")
    assert "symbolic links" in decoded(tmp_path / "itself.jpg")
    assert "not a regular file" in decoded(tmp_path / "pipe.jpg")  # and it does not wait for a writer
    assert "HEIC" in decoded(tmp_path / "phone.heic")
    assert "not an image" in decoded(tmp_path / "program.jpg")  # PostScript would be run by an interpreter
    assert "no such file" in decoded(tmp_path / "absent.jpg")
    assert "null" in decoded("a\0b.jpg")
    assert "0 bytes" in decoded(b"")


def test_file_without_permission(tmp_path):
    path = saved(tmp_path / "secret.png")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    assert "denied" in decoded(path)


WHOLE = {
    kind: as_file(picture(40, 40), kind, **({"save_all": True} if kind == "GIF" else {}))
    for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000")
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "PPM", "WEBP"])
def test_truncated_file_is_refused(kind):
    reason = decoded(WHOLE[kind][: len(WHOLE[kind]) // 2])
    assert isinstance(reason, str)
    assert "\n" not in reason


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kind=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_damaged_file_gives_an_image_or_a_reason(kind, data):
    """Nothing else comes out of it: no exception, no warning."""
    whole = bytearray(WHOLE[kind])
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    result = decoded(bytes(whole[:cut]), 16, 16, max_pixels=10**6)
    assert isinstance(result, str | np.ndarray)
    if isinstance(result, str):
        assert result
        assert "\n" not in result


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(data):
    assert isinstance(decoded(data), str | np.ndarray)


def test_pillow_settings_are_ignored_and_restored(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert isinstance(decoded(WHOLE["PNG"][:-60]), str)
    assert isinstance(decoded(WHOLE["PNG"]), np.ndarray)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True
    assert Image.MAX_IMAGE_PIXELS == 10


def test_pillow_warnings_are_hidden():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(decoded(as_file(picture(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")), np.ndarray)


def test_dimensions_are_read_from_the_header(tmp_path):
    assert image_dimensions(str(saved(tmp_path / "a.png", picture(31, 17)))) == (31, 17)
    assert image_dimensions(b"nothing") is None
    assert image_dimensions(str(tmp_path / "absent")) is None
    assert image_dimensions(png_that_claims(9_500, 9_500), max_pixels=100) is None


# --- Arrays: Pillow is the reference ---


def noise(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.sampled_from([1, 3]),
)
def test_arrays_are_resized_and_converted_as_files_are(size, target, channels):
    image = noise(1, 1, channels, *size)
    wanted = 4 - channels
    as_png = as_file(Image.fromarray(image[0, 0] if channels == 1 else image[0].transpose(1, 2, 0)))
    got = fit_arrays(image, DecodeSpec(*target, wanted))[0]
    np.testing.assert_array_equal(got, decoded(as_png, *target, wanted))


def test_arrays_that_fit_are_not_copied():
    images = noise(2, 4, 1, 8, 8)
    assert fit_arrays(images, DecodeSpec(8, 8, 1)) is images
    assert fit_arrays(images[:0], DecodeSpec(4, 4, 3)).shape == (0, 3, 4, 4)


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


@pytest.mark.parametrize("workers", [1, 2, 5, None])
def test_number_of_threads_does_not_change_the_result(encoded, workers):
    expected = [decoded(one, 16, 16) for one in encoded]
    done = []
    rows = np.zeros((len(encoded), *SPEC.shape), np.uint8)
    findings = decode_images(iter(encoded), rows, SPEC, workers=workers, advance=done.append)
    assert sorted(findings.unreadable) == [7, 130]
    assert sum(done) == len(encoded)
    for i, one in enumerate(expected):
        assert findings.unreadable[i] == one if isinstance(one, str) else (rows[i] == one).all()


def test_two_threads_decode_at_the_same_time(encoded, monkeypatch):
    """Each of two threads waits until the other one is inside the decoder."""
    both, real, arrived = threading.Barrier(2, timeout=20), decode._decode, set()

    def meet(one, spec):
        if threading.get_ident() not in arrived:
            arrived.add(threading.get_ident())
            both.wait()
        return real(one, spec)

    monkeypatch.setattr(decode, "_decode", meet)
    decode_images(encoded, np.zeros((len(encoded), *SPEC.shape), np.uint8), SPEC, workers=2)
    assert len(arrived) == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_failure_of_the_source_is_raised(workers):
    def broken():
        yield from [b"x"] * 40
        raise ValueError("the file ends in the middle")

    threads = threading.active_count()
    with pytest.raises(ValueError, match="in the middle"):
        decode_images(broken(), np.zeros((90, *SPEC.shape), np.uint8), SPEC, workers=workers)
    assert threading.active_count() == threads


def test_large_images_are_held_one_at_a_time():
    """What a Parquet file yields is read only when a thread needs it."""
    ahead = []
    source = enumerate(ahead.append(i) or bytes(decode._CHUNK_BYTES + 1) for i in range(100))
    assert len(decode._next_chunk(source)) == 1
    assert ahead == [0]


INTERRUPTED = """
import sys, threading, time
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


@pytest.fixture
def paths(tmp_path):
    return [saved(tmp_path / f"{i:02}.png", picture(20 + i, 30, seed=i)) for i in range(25)]


@pytest.mark.parametrize("batch_size", [1, 7, 25, 100])
def test_load_images_returns_the_files_in_order(paths, batch_size):
    batches = list(load_images(iter(paths), 16, batch_size=batch_size, workers=2))
    assert [len(batch.paths) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert [path for batch in batches for path in batch.paths] == [str(path) for path in paths]
    (whole,) = load_images(paths, 16, batch_size=25)
    np.testing.assert_array_equal(np.concatenate([batch.images for batch in batches]), whole.images)
    assert whole.images.shape == (25, 3, 16, 16)
    assert whole.images.dtype == np.uint8


def test_load_images_decodes_as_load_does(tmp_path):
    root = class_folder(tmp_path / "set", {"a": 4, "b": 4}, width=50, height=31)
    data = quietly(root, tmp_path, image_size=(12, 10), channels=1)
    (batch,) = load_images(sorted(root.rglob("*.png")), (12, 10), channels=1)
    loaded = np.concatenate([data.x_train, data.x_test])
    assert {image.tobytes() for image in batch.images} == {image.tobytes() for image in loaded}


def test_load_images_lists_unreadable_files_in_their_batch(paths, tmp_path):
    mixed = [paths[0], tmp_path / "absent.png", paths[1], tmp_path / "gone.png", tmp_path / "lost.png"]
    first, second = load_images(mixed, 8, batch_size=3)
    assert first.paths == [str(paths[0]), str(paths[1])]
    assert [path for path, _ in first.skipped] == [str(tmp_path / "absent.png")]
    assert (second.paths, second.images.shape) == ([], (0, 3, 8, 8))
    assert len(second.skipped) == 2


def test_load_images_reads_an_endless_list_as_needed(paths):
    batches = load_images(itertools.cycle(paths), 8, batch_size=10, workers=1)
    first = next(batches)
    before = first.images.copy()
    assert len(next(batches).paths) == 10
    np.testing.assert_array_equal(first.images, before)  # the next batch has memory of its own
    assert list(load_images([], 8)) == []


@pytest.mark.parametrize(("size", "options"), [(0, {}), (8, {"batch_size": 0}), (8, {"channels": 2}), ((4, 0), {})])
def test_load_images_refuses_mistakes_at_once(size, options):
    with pytest.raises(ValueError, match="load_images needs"):
        load_images(["x"], size, **options)
