"""A run that was stopped, killed or damaged ends as if nothing had happened, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_data import blobs, quick_spec, rowwise_encoder
from torch import Tensor, nn

from esupcon.methods import METHODS, Method, Stage, Term
from esupcon.training import TrainingInterrupted, fit
from esupcon.training.objective import LOSSES


def same(first, second, *folders: Path) -> None:
    for (name, a), b in zip(first.network.state_dict().items(), second.network.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert first.history == second.history
    assert (first.classifier.logits(first.data.x) == second.classifier.logits(second.data.x)).all()
    histories = {(folder / "history.jsonl").read_bytes() for folder in folders}
    assert len(histories) == 1


def stop_after(steps: int):
    """True at the given step; asked once a step."""
    count = iter(range(1, 10**6))
    return lambda: next(count) == steps


@pytest.mark.parametrize("method", ["esupcon", "supcon_ce"])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_interrupted_run_continues_bit_identical(tmp_path: Path, method: str, steps: int) -> None:
    spec, data = quick_spec(method=method, epochs=4), blobs()
    whole = fit(spec, data, out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        fit(spec, data, out=tmp_path / "parts", should_stop=stop_after(steps))
    said: list[str] = []
    again = fit(spec, data, out=tmp_path / "parts", log=said.append)
    assert any("Continuing at epoch" in line for line in said)
    same(whole, again, tmp_path / "whole", tmp_path / "parts")


def test_interrupted_several_times_with_early_stopping(tmp_path: Path) -> None:
    spec, data = quick_spec(epochs=6, patience=2), blobs()
    whole = fit(spec, data, out=tmp_path / "whole")
    for steps in (2, 3, 5):
        try:
            fit(spec, data, out=tmp_path / "parts", should_stop=stop_after(steps))
        except TrainingInterrupted:
            continue
    same(whole, fit(spec, data, out=tmp_path / "parts"), tmp_path / "whole", tmp_path / "parts")


def test_changed_spec_or_data_never_continues_another_run(tmp_path: Path) -> None:
    fit(quick_spec(), blobs(), out=tmp_path)
    with pytest.raises(ValueError, match=r"another run: epochs was 2, now 3; temperature was 0\.1, now 0\.2"):
        fit(quick_spec(epochs=3, temperature=0.2), blobs(), out=tmp_path)
    with pytest.raises(ValueError, match="another run: the data differ"):
        fit(quick_spec(), blobs(seed=1), out=tmp_path)
    replaced = fit(quick_spec(epochs=3), blobs(), out=tmp_path, overwrite=True)
    assert len(replaced.history) == 3


def seeded_encoder(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return rowwise_encoder()


def test_key_covers_encoder_initial_weights_and_held_out_data(tmp_path: Path) -> None:
    """None of these changes is visible in the settings."""
    data, spec = blobs(), quick_spec()
    keys = [fit(spec, data).run.key]
    keys += [fit(spec, data, encoder=seeded_encoder(seed)).run.key for seed in (1, 2)]
    start = fit(spec, data).network.state_dict()
    keys.append(fit(spec, data, initial=start).run.key)
    start["head.weight"] = start["head.weight"] + 1
    keys.append(fit(spec, data, initial=start).run.key)
    assert data.x_held is not None and data.y_held is not None
    keys.append(fit(spec, replace(data, y_held=data.y_held[::-1].copy())).run.key)
    keys.append(fit(spec, replace(data, x_held=None, y_held=None)).run.key)
    assert len(set(keys)) == len(keys)
    assert fit(spec, data, encoder=seeded_encoder(1)).run.key == keys[1]


def test_run_with_another_encoder_of_equal_repr_is_not_continued(tmp_path: Path) -> None:
    with pytest.raises(TrainingInterrupted):
        fit(quick_spec(), blobs(), encoder=seeded_encoder(1), out=tmp_path, should_stop=stop_after(2))
    with pytest.raises(ValueError, match="the encoder, its initial weights or the method differ"):
        fit(quick_spec(), blobs(), encoder=seeded_encoder(2), out=tmp_path)
    fit(quick_spec(), blobs(), encoder=seeded_encoder(1), out=tmp_path)


def test_custom_method_and_loss_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(weight: float, loss: Callable[..., Tensor]) -> str:
        monkeypatch.setitem(LOSSES, "mine", loss)
        term = Term("mine", on="logits", weight=weight)
        method = Method("mine", "Mine", "x", "linear", (Stage((term,), ("encoder", "head")),))
        monkeypatch.setitem(METHODS, "mine", method)
        return fit(quick_spec(method="mine", epochs=1), blobs()).run.key

    def one(z: Tensor, batch: object, spec: object) -> Tensor:
        return z.square().mean()

    def other(z: Tensor, batch: object, spec: object) -> Tensor:
        return z.abs().mean()

    assert len({key(1.0, one), key(2.0, one), key(1.0, other)}) == 3
    assert key(1.0, one) == key(1.0, one)


def test_stop_between_micro_batches_saves_the_state_before_the_step(tmp_path: Path) -> None:
    """One step has six pieces; statistics of batch normalisation that some of them updated are restored."""
    spec, data = quick_spec(micro_batch=3, epochs=3), blobs()
    whole = fit(spec, data, out=tmp_path / "whole")
    for stop_at in (3, 9, 14):
        with pytest.raises(TrainingInterrupted):
            fit(spec, data, out=tmp_path / "parts", should_stop=stop_after(stop_at))
    same(whole, fit(spec, data, out=tmp_path / "parts"), tmp_path / "whole", tmp_path / "parts")
