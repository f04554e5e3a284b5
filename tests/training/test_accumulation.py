"""A batch encoded in pieces trains like the batch in one shot."""

from __future__ import annotations

import copy

import pytest
import torch
from small_data import blobs, quick_spec, rowwise_encoder
from torch import nn
from torch.testing import assert_close

from esupcon.methods import METHODS
from esupcon.training import fit


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("micro_batch", [1, 5])
def test_pieces_give_the_gradients_of_the_whole(method: str, micro_batch: int) -> None:
    encoder = rowwise_encoder()
    spec = quick_spec(method=method, precision="64", epochs=2)
    whole, pieces = (
        fit(spec.model_copy(update={"micro_batch": size}), blobs(), encoder=copy.deepcopy(encoder))
        for size in (None, micro_batch)
    )
    for a, b in zip(whole.network.parameters(), pieces.network.parameters(), strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert [r["loss"] for r in whole.history] == pytest.approx([r["loss"] for r in pieces.history], rel=1e-9)


def test_dropout_drops_the_same_units_in_both_passes() -> None:
    """With the whole batch as one piece the cached way is the plain way, dropout and all."""
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 8))
    fitted = fit(quick_spec(micro_batch=16, epochs=3), blobs(), encoder=encoder)
    assert all(torch.isfinite(p).all() for p in fitted.network.parameters())
    losses = [record["loss"] for record in fitted.history]
    assert losses[-1] < losses[0]


def test_batch_norm_statistics_are_updated_once_a_piece() -> None:
    fitted = fit(quick_spec(micro_batch=8, epochs=1), blobs())
    counts = {int(v) for n, v in fitted.network.state_dict().items() if n.endswith("num_batches_tracked")}
    assert counts == {3 * 2}  # three steps, two pieces each, the caching pass not counted
