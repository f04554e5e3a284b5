"""check_data: no finding for clean data, and for each problem its code with the right numbers."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from scipy.fft import dctn
from sklearn.datasets import load_digits

from esupcon.data.dataset import Rows
from esupcon.doctor import CODES, SEVERITIES, Finding, check_data
from esupcon.doctor.data import near_pairs


def checked(x: Any, y: Any, x_test: Any = None, **changes: Any) -> dict[str, Finding]:
    n_classes = int(np.asarray(y).max(initial=0)) + 1
    found = check_data(x, y, x_test=x_test, **{"n_classes": n_classes, **changes})
    assert len({finding.code for finding in found}) == len(found)
    assert all("\n" not in str(finding) for finding in found)
    return {finding.code: finding for finding in found}


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    images, y = load_digits(return_X_y=True)
    x = (images * 16).clip(0, 255).astype(np.uint8).reshape(-1, 1, 8, 8)
    return x[:1400], y[:1400], x[1400:]


def test_clean_images_and_tables_have_no_findings(digits: Any) -> None:
    x, y, x_test = digits
    assert checked(x, y, x_test) == {}
    tables = [part.reshape(len(part), -1) / 16.0 for part in (x, x_test)]
    assert checked(tables[0], y, tables[1]) == {}
    assert checked(x, y) == checked(x, y, x[:0]) == {}


def test_held_out_copies_and_test_copies_of_either_part_are_leaks(digits: Any) -> None:
    x, y, x_test = (part.copy() for part in digits)
    x, x_held, y = x[:1200], x[1200:], y[:1200]
    x_held[3] = x[11]
    x_test[[7, 9]] = x[40], x_held[100]
    (finding,) = checked(x, y, x_test, x_held=x_held).values()
    assert finding.code == "leak"
    assert "1 of 200 held-out images (0.5 %) and 2 of 397 test images (0.5 %)" in finding.message
    assert "(held-out 3 = train 11, test 7 = train 40, test 9 = held-out 100)" in finding.message


def saved_again(image: np.ndarray, scale: float = 0.8, quality: int = 60) -> np.ndarray:
    """Return an image (3, H, W) as it is read from a smaller JPEG file of it."""
    picture, file = Image.fromarray(image.transpose(1, 2, 0)), io.BytesIO()
    picture.resize([round(scale * side) for side in picture.size], Image.Resampling.BILINEAR).save(
        file, "JPEG", quality=quality
    )
    return np.asarray(Image.open(file).resize(picture.size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def scenes(n: int, side: int, seed: int) -> np.ndarray:
    """Return images of random smooth colours with the spectrum of photographs."""
    rng = np.random.default_rng(seed)
    low = rng.normal(size=(n, 3, 12, 12)) / (1 + np.add.outer(np.arange(12), np.arange(12)))
    x = dctn(np.pad(low, [(0, 0), (0, 0), (0, side - 12), (0, side - 12)]), type=3, axes=(2, 3))
    return (128 + 50 * x / x.std()).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("side", [32, 100])
def test_copies_that_were_scaled_and_compressed_are_found_as_pairs(side: int) -> None:
    x, x_test = scenes(400, side, seed=0), scenes(300, side, seed=1)
    y = np.arange(400) % 2
    x[0], x_test[0] = 90, 91  # images of one colour are not alike
    assert checked(x, y, x_test) == {}
    x_test[100:200] = [saved_again(image) for image in x[100:200]]
    x_test[7] = x[9]  # an exact copy is another finding
    found = checked(x, y, x_test)
    assert set(found) == {"leak", "near-copies"}
    near = found["near-copies"]
    assert near.severity == "warning"
    n_found = int(near.message.split()[0])
    assert 95 <= n_found <= 100
    assert len(near.pairs) == 50
    assert all(i == j >= 100 for i, j in near.pairs)
    assert Finding.model_validate_json(near.model_dump_json()) == near
    x_test[105:200] = scenes(95, side, seed=2)
    few = checked(x, y, x_test)["near-copies"]
    assert (few.severity, few.pairs) == ("note", tuple((i, i) for i in range(100, 105)))
    assert few.message.startswith("5 of 300 test images (1.7 %) look almost like a training image (test 100 and train")


def test_images_below_32_pixels_and_tables_are_not_compared_by_looks() -> None:
    x = scenes(50, 31, seed=0)
    similar = np.clip(x.astype(int) + 1, 0, 255).astype(np.uint8)
    assert checked(x, np.arange(50) % 2, similar) == {}
    assert near_pairs(similar, x) == [(i, i) for i in range(50)]


MEASURED = """
import resource
import numpy as np
from scipy.fft import dct
from esupcon.doctor.data import near_pairs
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
rng = np.random.default_rng(0)
x, x_test = (rng.integers(0, 256, (n, 1, 32, 32), np.uint8) for n in (20_000, 4_000))
x_test[3000] = x[15_000]
near_pairs(x_test[:1], x[:1])
before = peak()
assert near_pairs(x_test, x) == [(3000, 15_000)]
print(peak() - before)
"""


def test_20000_against_4000_images_are_compared_in_little_memory() -> None:
    command = [sys.executable, "-P", "-c", MEASURED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) < 200  # MB, of 320 that all pairs would take


def test_identical_images_with_different_labels_contradict_each_other(digits: Any) -> None:
    x, y, *_ = digits
    x, y = x.copy(), y.copy()
    x[[700, 701]] = x[10]
    y[[10, 700, 701]] = 3, 3, 8
    x[801] = x[20]
    y[[20, 801]] = 1, 1  # a copy with the same label contradicts nothing
    found = checked(x, y, classes=[f"digit {k}" for k in range(10)])
    assert list(found) == ["contradicting-labels"]
    message = found["contradicting-labels"].message
    assert message.startswith("3 training images, in 1 group(s) of identical ones,")
    assert "train 10 is 'digit 3' and its copy 701 'digit 8'" in message


@settings(max_examples=60)
@given(st.data(), st.integers(1, 12), st.integers(0, 12), st.sampled_from([np.uint8, np.float32, np.float64]))
def test_identical_rows_are_those_that_a_loop_over_all_pairs_finds(
    data: st.DataObject, n: int, n_test: int, dtype: type
) -> None:
    values = st.sampled_from([0, 1, 2]) if dtype is np.uint8 else st.sampled_from([0.0, -0.0, 0.5])
    x = data.draw(arrays(dtype, (n, 2), elements=values))
    x_test = data.draw(arrays(np.uint8, (n_test, 2), elements=st.sampled_from([0, 1])))  # of another type
    y = data.draw(arrays(np.int64, n, elements=st.integers(0, 2)))
    found = checked(x, y, x_test, n_classes=3)
    leaked = [i for i in range(n_test) if any((x_test[i] == x[j]).all() for j in range(n))]
    contradicted = [
        i
        for i in range(n)
        if any((x[i] == x[j]).all() and y[k] != y[j] and (x[k] == x[i]).all() for j in range(n) for k in range(n))
    ]
    assert ("leak" in found) == bool(leaked)
    if leaked:
        assert found["leak"].severity == "note" and "can be chance" in found["leak"].remedy
        assert found["leak"].message.startswith(f"{len(leaked)} of {n_test} test rows")
    assert ("contradicting-labels" in found) == bool(contradicted)
    if contradicted:
        assert found["contradicting-labels"].message.startswith(f"{len(contradicted)} training rows")


def test_large_arrays_are_read_in_pieces(tmp_path: Path, digits: Any, monkeypatch: Any) -> None:
    x, y, x_test = digits
    x_test = x_test.copy()
    x_test[390] = x[1399]
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr("esupcon.doctor.data.CHUNK_BYTES", 1000)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for part in (mapped, Rows(mapped, np.arange(len(x)))):
        assert "test 390 = train 1399" in checked(part, y, x_test)["leak"].message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": [0, 1, 2, 9]}, "labels of the train part must lie in 0..2"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "train at least one"),
        ({"x_test": np.zeros((2, 5))}, "of one shape"),
    ],
)
def test_impossible_input_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    values = {"x": np.arange(8.0).reshape(4, 2), "y": [0, 1, 2, 0], "n_classes": 3, **changes}
    with pytest.raises(ValueError, match=message) as error:
        checked(**values)
    assert "\n" not in str(error.value)


def test_finding_survives_json_and_prints_as_one_line() -> None:
    finding = Finding(code=CODES[0], severity=SEVERITIES[0], message="all of\n'a\x85b\u2028' are", remedy="Look.\n")
    assert Finding.model_validate_json(finding.model_dump_json()) == finding
    assert str(finding) == f"note [{CODES[0]}]: all of 'a b ' are Look."


@pytest.mark.parametrize(("n_rare", "severity"), [(15, None), (14, "note"), (2, "note"), (1, "warning")])
def test_imbalance_is_a_note_or_a_warning(n_rare: int, severity: str | None) -> None:
    y = np.repeat([0, 1], [148, n_rare])
    x = np.random.default_rng(0).normal(size=(len(y), 3))
    finding = checked(x, y).get("imbalance")
    assert (finding and finding.severity) == severity
    if finding:
        assert f"148 training samples, the smallest, class 1, {n_rare}: {148 / n_rare:.0f} to 1" in finding.message
