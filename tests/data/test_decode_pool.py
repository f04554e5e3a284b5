"""Decoding on several processes gives what one gives, whatever happens to the helpers."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from pictures import picture, saved

from esupcon.data import decode_pool
from esupcon.data.decode import DecodeSpec, decode_rows
from esupcon.data.decode_pool import DecodePool, helpers_for

SPEC = DecodeSpec(16, 16)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    """Paths and bytes, sound and broken."""
    folder = tmp_path_factory.mktemp("pool")
    items = [str(saved(folder / f"{i}.png", picture(20 + i % 7, 20, seed=i))) for i in range(300)]
    items[7] = str(folder / "absent.png")
    items[130] = b"no image"
    items[131] = (folder / "3.png").read_bytes()
    return items


def run(encoded, tmp_path, helpers, advance=lambda n: None, before=lambda pool: None):
    file = tmp_path / "rows.u8"
    rows = np.memmap(file, np.uint8, mode="w+", shape=(len(encoded), *SPEC.shape))
    with DecodePool(helpers) as pool:
        before(pool)
        findings = pool.decode(iter(encoded), file, rows, SPEC, advance)
    return np.array(rows), findings


@pytest.fixture(scope="module")
def expected(encoded):
    rows = np.zeros((len(encoded), *SPEC.shape), np.uint8)
    return rows, decode_rows(encoded, rows, SPEC)[0]


@pytest.mark.parametrize("helpers", [0, 1, 2])
def test_the_number_of_helpers_changes_nothing(encoded, expected, tmp_path, helpers):
    done = []
    rows, findings = run(encoded, tmp_path, helpers, done.append)
    np.testing.assert_array_equal(rows, expected[0])
    assert findings.unreadable == expected[1]
    assert sorted(findings.unreadable) == [7, 130]
    assert sum(done) == len(encoded)


def test_a_helper_does_its_share(encoded, expected, tmp_path, monkeypatch):
    """With this process held back, the helper alone does all but what this process holds."""
    helper_is_done, here = threading.Event(), []

    def slow(chunk, rows, spec):
        here.append(len(chunk))
        helper_is_done.wait(20)
        return decode_rows(chunk, rows, spec)

    monkeypatch.setattr(decode_pool, "decode_rows", slow)
    done = []

    def advance(n):
        done.append(n)
        if sum(done) + sum(here) >= len(encoded):
            helper_is_done.set()

    rows, _ = run(encoded, tmp_path, 1, advance)
    np.testing.assert_array_equal(rows, expected[0])
    assert len(here) == 1


def test_helpers_that_die_cost_no_image(encoded, expected, tmp_path):
    def kill(pool):
        for helper in pool._helpers:
            helper.kill()
            helper.wait()

    rows, findings = run(encoded, tmp_path, 2, before=kill)
    np.testing.assert_array_equal(rows, expected[0])
    assert findings.unreadable == expected[1]


def test_helpers_that_cannot_start_cost_no_image(encoded, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python here"))
    np.testing.assert_array_equal(run(encoded, tmp_path, 2)[0], expected[0])


def test_a_source_that_fails_is_heard(tmp_path):
    def broken():
        yield from [b"x"] * 20
        raise ValueError("the file ends in the middle")

    file = tmp_path / "rows.u8"
    rows = np.memmap(file, np.uint8, mode="w+", shape=(50, *SPEC.shape))
    with DecodePool(1) as pool, pytest.raises(ValueError, match="in the middle"):
        pool.decode(broken(), file, rows, SPEC, lambda n: None)


def test_an_interruption_ends_the_helpers(encoded, tmp_path):
    helpers, threads = [], threading.active_count()

    def interrupt(n):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(encoded, tmp_path, 1, interrupt, before=lambda pool: helpers.extend(pool._helpers))
    assert all(helper.poll() is not None for helper in helpers)
    assert threading.active_count() == threads


def test_a_script_without_a_main_guard_is_not_run_again(encoded, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from esupcon.data.decode import DecodeSpec\n"
        "from esupcon.data.decode_pool import DecodePool\n"
        "print('once')\n"
        f"images = {[one for one in encoded if isinstance(one, str)]!r}\n"
        f"file = Path({str(tmp_path / 'script.u8')!r})\n"
        "rows = np.memmap(file, np.uint8, mode='w+', shape=(len(images), 3, 16, 16))\n"
        "with DecodePool(1) as pool:\n"
        "    print(pool.decode(images, file, rows, DecodeSpec(16, 16), lambda n: None).unreadable)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["once", "{7: 'no such file, or a broken link'}"]


def job(images, seconds_each, monkeypatch):
    """A job whose images take a given time each, by a clock of our own."""
    now = [0.0]

    def decode(chunk, rows, spec):
        chunks.append(list(chunk))
        now[0] += sum(seconds_each(one) for one in chunk)
        return {}, 0

    chunks = []
    monkeypatch.setattr(decode_pool, "decode_rows", decode)
    monkeypatch.setattr(decode_pool.time, "perf_counter", lambda: now[0])
    made = decode_pool._Job(images, None, np.empty((0, 1)), SPEC, lambda n: None)
    return made, chunks


@pytest.mark.parametrize(("seconds", "length"), [(1e-5, 256), (1e-4, 200), (0.004, 5), (0.5, 1)])
def test_chunks_take_about_the_same_time(monkeypatch, seconds, length):
    made, chunks = job(range(5000), lambda one: seconds, monkeypatch)
    made.here()
    assert [one for chunk in chunks for one in chunk] == list(range(5000))
    assert abs(len(chunks[len(chunks) // 2]) - length) <= 1


def test_images_are_drawn_as_they_are_needed(monkeypatch):
    drawn = []
    made, _ = job((drawn.append(i) or i for i in range(10**9)), lambda one: 1e-4, monkeypatch)
    for _ in range(5):
        made._decode_here(made._next())
    assert len(drawn) <= 8 + 32 + 128 + 200 + 200


def test_small_jobs_start_no_helpers_and_large_ones_do():
    assert helpers_for(100, 100_000, workers=8) == 0
    assert helpers_for(10_000, 20_000_000, workers=2) == 1
    assert helpers_for(10**6, 10**9, workers=8) == 7
    assert helpers_for(10**6, 10**9, workers=1) == 0
    assert helpers_for(10**6, 10**9, workers=None) == decode_pool.usable_cores() - 1
    with pytest.raises(ValueError, match="at least 1"):
        helpers_for(1, 1, workers=0)


def test_helpers_import_no_torch():
    code = "import sys, esupcon.data.decode_worker; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
