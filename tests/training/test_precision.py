"""Precision is a rule about the machine: a capability probe decides, no timing."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_data import blobs, quick_spec

from esupcon.training import devices, fit

ILLEGAL = f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cold cache, on a processor that announces bfloat16 instructions."""
    monkeypatch.setattr(devices, "cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr(devices, "_has_bfloat16_instructions", lambda: True)
    monkeypatch.setattr(devices, "_uses_gpu", lambda accelerator: False)
    devices.bfloat16_works.cache_clear()
    yield tmp_path / "cache"
    devices.bfloat16_works.cache_clear()


def stored(cache: Path) -> list[object]:
    return [json.loads(path.read_text()) for path in cache.glob("bfloat16-*.json")]


def test_illegal_instruction_makes_auto_choose_float32(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "PROBE", ILLEGAL)
    assert devices.choose_precision("auto") == (
        "32",
        "the processor announces bfloat16 instructions and stops at the first",
    )
    assert stored(cache) == [{"works": False}]
    monkeypatch.setattr(devices, "PROBE", "raise SystemExit('tried again')")
    devices.bfloat16_works.cache_clear()
    with pytest.raises(ValueError, match=r"illegal instruction\. Use precision 32"):
        fit(quick_spec(precision="bf16"), blobs())
    fitted = fit(quick_spec(precision="auto", epochs=1), blobs())
    assert (fitted.spec.precision, fitted.precision_reason) == devices.choose_precision("auto")


def test_probe_that_fails_for_another_reason_is_repeated_then_an_error_and_never_stored(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = f"open({str(tmp_path / 'tries')!r}, 'a').write('x')\n"
    monkeypatch.setattr(devices, "PROBE", count + "raise MemoryError('no memory')")
    with pytest.raises(ValueError, match=r"failed 3 times \(MemoryError: no memory\)\. Free memory.*precision 32"):
        devices.choose_precision("auto")
    assert (tmp_path / "tries").read_text() == "xxx"
    assert stored(cache) == []
    monkeypatch.setattr(devices, "PROBE", "pass")
    assert devices.choose_precision("auto")[0] == "bf16"
    assert stored(cache) == [{"works": True}]


def test_probe_that_hangs_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(devices, "PROBE_SECONDS", 0.2)
    with pytest.raises(ValueError, match=r"no answer within 0\.2 s"):
        devices.choose_precision("auto")


def test_damaged_verdict_is_found_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "PROBE", "pass")
    assert devices.bfloat16_works()
    (path,) = cache.glob("bfloat16-*.json")
    for damage in ("{", "[]", '{"works": 1}', '{"other": true}'):
        path.write_text(damage)
        devices.bfloat16_works.cache_clear()
        assert devices.bfloat16_works()
        assert json.loads(path.read_text()) == {"works": True}


def test_processor_without_bfloat16_instructions_is_not_probed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_has_bfloat16_instructions", lambda: False)
    monkeypatch.setattr(devices, "PROBE", "raise SystemExit(1)")
    assert devices.choose_precision("auto") == ("32", "the processor has no bfloat16 instructions")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile", True),
        ("flags\t\t: fpu amx_bf16", True),
        ("Features\t: fp asimd bf16", True),
        ("flags\t\t: fpu avx2 avx512f not_avx512_bf16x", False),
        ("model name\t: avx512_bf16", False),
    ],
)
def test_instructions_are_read_from_the_flags(line: str, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_cpu_lines", lambda: ["processor\t: 0", line])
    assert devices._has_bfloat16_instructions() == found


def test_tables_are_computed_in_float32(cache: Path) -> None:
    assert devices.choose_precision("auto", images=False)[0] == "32"


def test_continued_run_keeps_its_precision_and_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, before = quick_spec(precision="auto", epochs=1), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first = fit(spec, blobs(), out=tmp_path)
    finally:
        torch.set_num_threads(1)
    assert first.spec.threads == 2
    stored = json.loads((tmp_path / "run.json").read_text())
    assert stored["spec"]["train"]["precision"] == first.spec.precision
    assert stored["precision_reason"] == first.precision_reason
    monkeypatch.setattr(devices, "_has_bfloat16_instructions", lambda: first.spec.precision == "32")
    assert fit(spec, blobs(), out=tmp_path).run == first.run
    assert torch.get_num_threads() == 1  # as before
    with pytest.raises(ValueError, match="threads was 2, now 1"):
        fit(spec.model_copy(update={"threads": 1}), blobs(), out=tmp_path)
    torch.set_num_threads(before)


@pytest.mark.skipif(not devices.bfloat16_works(), reason="this processor cannot compute in bfloat16")
def test_bfloat16_trains() -> None:
    fitted = fit(quick_spec(precision="bf16", epochs=10), blobs())
    assert fitted.spec.precision == "bf16"
    assert fitted.history[-1]["held_out_accuracy"] > 0.6
