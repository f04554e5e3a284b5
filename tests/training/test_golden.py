"""Ten float64 steps of every method, pinned: a change of the loop must reproduce them.

After a change that is meant to alter training, write the new values with

    ESUPCON_WRITE_GOLDEN=1 pytest tests/training/test_golden.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from small_data import blobs, quick_spec

from esupcon.methods import METHODS
from esupcon.training import fit

GOLDEN = Path(__file__).with_name("golden.json")


def ten_steps(method: str) -> dict[str, list[float]]:
    spec = quick_spec(method=method, precision="64", steps=10, batch_size=16)
    fitted = fit(spec, blobs(n=16 * 1))
    head = fitted.network.head.weight.detach().double()
    return {
        "losses": [record["loss"] for record in fitted.history],
        "head": [head.norm().item(), head.sum().item()],
        "encoder": [sum(p.detach().double().norm().item() for p in fitted.network.encoder.parameters())],
    }


@pytest.mark.parametrize("method", METHODS)
def test_ten_steps(method: str) -> None:
    values = ten_steps(method)
    if os.environ.get("ESUPCON_WRITE_GOLDEN"):
        known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        GOLDEN.write_text(json.dumps(known | {method: values}, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())[method]
    assert len(values["losses"]) == len(golden["losses"])
    for name, expected in golden.items():
        # Augmentation is float32, so machines may differ in its last digits; a changed loop differs in the first.
        torch.testing.assert_close(torch.tensor(values[name]), torch.tensor(expected), rtol=1e-4, atol=1e-4)
