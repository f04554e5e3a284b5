"""Training with frozen first blocks, whose outputs for a few views are computed once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_data import blobs, quick_spec
from torch import Tensor, nn
from torch.testing import assert_close

from esupcon.models import build_encoder, split_encoder
from esupcon.models.pretrained import EfficientNetLite0
from esupcon.spec import TrainSpec
from esupcon.training import Fitted, TrainData, TrainingInterrupted, fit
from esupcon.training.devices import bfloat16_works
from esupcon.training.run import start


def frozen_spec(**changes: Any) -> TrainSpec:
    settings = {"encoder": "efficientnet-lite0", "train_blocks": 2, "cached_views": 2, "neck": "linear"}
    settings |= {"optimizer": "adamw", "lr": 1e-3, "augmentation": "translate", "batch_size": 8, "epochs": 2}
    return quick_spec(**settings | changes)


def images() -> TrainData:
    return blobs(n=16, n_classes=2, size=32, channels=3)


@pytest.fixture(scope="module")
def pretrained() -> nn.Module:
    return build_encoder("efficientnet-lite0", input_shape=(3, 32, 32))


def layers(encoder: nn.Module, first: slice) -> dict[str, Tensor]:
    assert isinstance(encoder, EfficientNetLite0)
    return nn.ModuleList(list(encoder.layers)[first]).state_dict()


def same_tensors(one: Fitted, other: Fitted) -> None:
    for (name, a), b in zip(one.network.state_dict().items(), other.network.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(("n_trained", "precision"), [(0, "32"), (2, "32"), (2, "bf16"), (2, "64")])
def test_frozen_blocks_keep_weights_and_statistics(pretrained: nn.Module, n_trained: int, precision: str) -> None:
    if precision == "bf16" and not bfloat16_works():
        pytest.skip("this processor does not compute in bfloat16")
    fitted = fit(frozen_spec(train_blocks=n_trained, precision=precision), images())
    n_frozen = 18 - n_trained
    frozen, before = (layers(one, slice(n_frozen)) for one in (fitted.network.encoder, pretrained))
    for name, value in frozen.items():
        assert torch.equal(value, before[name]), name
    trained, before = (layers(one, slice(n_frozen, None)) for one in (fitted.network.encoder, pretrained))
    for name, value in trained.items():
        assert not torch.equal(value, before[name]), name
    assert all(value.isfinite().all() for value in fitted.network.state_dict().values())
    assert fitted.history[-1]["held_out_accuracy"] is not None


@pytest.mark.parametrize("n_trained", [0, 2])
def test_interrupted_run_continues_bit_identical(tmp_path: Path, n_trained: int) -> None:
    """The views are computed again, and are the same."""
    spec = frozen_spec(train_blocks=n_trained, cached_views=3)
    asked: list[None] = []
    whole = fit(spec, images(), should_stop=lambda: bool(asked.append(None)))
    for last in (2, len(asked) - 1):  # among the frozen blocks, and in the last epoch
        answers = iter([*[False] * (last - 1), True])
        with pytest.raises(TrainingInterrupted):
            fit(spec, images(), out=tmp_path, should_stop=answers.__next__)
    again = fit(spec, images(), out=tmp_path)
    same_tensors(whole, again)
    assert whole.history == again.history


class Uncached(nn.Module):
    """The same network, with its first blocks computed in every step."""

    def __init__(self, encoder: nn.Module, n_trained: int) -> None:
        super().__init__()
        self.blocks, self.rest = split_encoder(encoder, n_trained)

    def train(self, mode: bool = True) -> Uncached:
        super().train(mode)
        self.blocks.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.blocks(x)
        return self.rest(x)


@pytest.mark.parametrize("n_trained", [0, 2])
def test_cached_views_train_as_views_made_in_every_step(pretrained: nn.Module, n_trained: int) -> None:
    """Without augmentation all views of an image are equal."""
    assert isinstance(pretrained, EfficientNetLite0)
    data, spec = images(), frozen_spec(train_blocks=n_trained, augmentation="none", precision="64", optimizer="sgd")
    cached = fit(spec, data, encoder=copy.deepcopy(pretrained)).network  # both draw the head first
    normalised = data.normalised_by(*pretrained.pixels)
    plain = spec.model_copy(update={"train_blocks": None})
    encoder = Uncached(copy.deepcopy(pretrained), n_trained)
    stepwise = fit(plain, normalised, encoder=encoder).network
    assert_close(cached.head.weight, stepwise.head.weight, rtol=1e-5, atol=1e-6)
    ours, theirs = cached.neck.state_dict(), stepwise.neck.state_dict()
    for name, value in ours.items():
        assert_close(value, theirs[name], rtol=1e-5, atol=1e-6)
    for a, b in zip(split_encoder(cached.encoder, n_trained)[1].parameters(), encoder.rest.parameters(), strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_held_out_samples_are_measured_as_they_will_be_predicted() -> None:
    data = images()
    fitted = fit(frozen_spec(train_blocks=0, epochs=1, test_time_flip=True), data)
    with start(fitted.spec, data, initial=fitted.network.state_dict()) as run:
        run.freeze_blocks()
        measured = run.outputs(data.x_held, "logits")[0].double().numpy()
    np.testing.assert_allclose(measured, fitted.classifier.logits(data.x_held), rtol=1e-4, atol=1e-4)
    fitted.network.mirror = False
    assert not np.allclose(measured, fitted.classifier.logits(data.x_held), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("method", ["ce", "supcon_ce", "supcon_tt", "spce_m"])
def test_methods_with_other_heads_and_stages_train(method: str) -> None:
    fitted = fit(frozen_spec(method=method, train_blocks=0, epochs=1), images())
    assert all(value.isfinite().all() for value in fitted.network.state_dict().values())
    assert fitted.classifier.predict_proba(images().x).shape == (16, 2)


def test_pieces_of_a_batch_give_the_same_gradients() -> None:
    """With no neck and nothing but the head to train, rows do not depend on each other."""
    spec = frozen_spec(train_blocks=0, neck="none", precision="64", optimizer="sgd")
    whole, pieces = (fit(spec.model_copy(update={"micro_batch": size}), images()).network for size in (None, 3))
    assert_close(whole.head.weight, pieces.head.weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_blocks": 18}, "train_blocks must be at most 17 for encoder EfficientNetLite0; got 18"),
        ({"encoder": "fast"}, "train_blocks must be at most 0 for encoder FastEncoder; got 2"),
        ({"method": "spce_m", "neck": "norm", "train_blocks": 0}, "spce_m leaves nothing to train"),
    ],
)
def test_blocks_that_cannot_be_trained_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        fit(frozen_spec(**changes), images(), out=tmp_path / "run")
    assert "\n" not in str(raised.value)
    if "blocks must" in message:
        assert not (tmp_path / "run" / "run.json").exists()
