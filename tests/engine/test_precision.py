from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from small_data import blobs, quick_spec

from esupcon.engine import bfloat16, fit, speed
from esupcon.models import build_network


@pytest.fixture
def fresh_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bfloat16, "platform_cache", lambda: tmp_path / "cache")
    bfloat16.bfloat16_works.cache_clear()
    yield tmp_path / "cache"
    bfloat16.bfloat16_works.cache_clear()


def test_processor_that_dies_in_bfloat16_is_found_out_and_remembered(
    fresh_verdict: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bfloat16, "TRIAL", f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})")
    assert bfloat16.bfloat16_works() is False
    assert [json.loads(p.read_text()) for p in fresh_verdict.glob("bfloat16-*.json")] == [{"works": False}]
    monkeypatch.setattr(bfloat16, "_try", lambda: pytest.fail("tried again"))
    bfloat16.bfloat16_works.cache_clear()
    assert bfloat16.bfloat16_works() is False
    with pytest.raises(ValueError, match=r"illegal instruction\. Use precision 32"):
        fit(quick_spec(precision="bf16"), blobs())
    assert fit(quick_spec(precision="auto", epochs=1), blobs()).precision == "32"


def test_damaged_verdict_is_found_anew(fresh_verdict: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16, "TRIAL", "pass")
    assert bfloat16.bfloat16_works() is True
    (path,) = fresh_verdict.glob("bfloat16-*.json")
    path.write_text("{")
    bfloat16.bfloat16_works.cache_clear()
    assert bfloat16.bfloat16_works() is True
    assert json.loads(path.read_text()) == {"works": True}


@pytest.mark.parametrize(("gain", "choice"), [(2.0, "bf16"), (1.05, "32"), (0.5, "32")])
def test_the_clearly_faster_precision_is_taken(gain: float, choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "bfloat16_works", lambda: True)
    monkeypatch.setattr(speed, "_seconds", lambda *_, bf16: 1.0 if bf16 else gain)
    network = build_network(
        encoder="resnet10-w8", input_shape=(1, 8, 8), n_classes=2, head="linear", projection_dim=None, temperature=0.1
    )
    assert speed.choose_precision(network, torch.zeros(4, 1, 8, 8), ("logits",), torch.device("cpu")) == choice
    assert speed.choose_precision(network, torch.zeros(4, 8), ("logits",), torch.device("cpu")) == "32"


def test_measuring_leaves_the_network_as_it_was() -> None:
    network = build_network(
        encoder="resnet10-w8", input_shape=(1, 8, 8), n_classes=2, head="linear", projection_dim=None, temperature=0.1
    )
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert speed._seconds(network, torch.randn(4, 1, 8, 8), ("logits",), bf16=False) > 0
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_settled_precision_is_kept_when_a_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement that came out differently the second time would end bit-identity."""
    first = fit(quick_spec(precision="auto", epochs=1), blobs(), out=tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["precision"] == first.precision
    monkeypatch.setattr("esupcon.engine.start.choose_precision", lambda *_: pytest.fail("measured again"))
    assert fit(quick_spec(precision="auto", epochs=1), blobs(), out=tmp_path).precision == first.precision


@pytest.mark.skipif(not bfloat16.bfloat16_works(), reason="this processor cannot compute in bfloat16")
def test_bfloat16_trains() -> None:
    fitted = fit(quick_spec(precision="bf16", epochs=10), blobs())
    assert fitted.precision == "bf16"
    assert fitted.history[-1]["held_out_accuracy"] > 0.6
