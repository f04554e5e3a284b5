"""The terms of a batch: what the settings and the batch change in them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_data import quick_spec
from torch import Tensor
from torch.testing import assert_close

from esupcon import functional as F
from esupcon.training import TrainData, fit
from esupcon.training.objective import LOSSES, BatchOutputs

LABELS = torch.arange(12) % 3


def loss(name: str, z: Tensor, **changes: object) -> Tensor:
    about = {key: changes.pop(key) for key in ("log_priors", "anchors") if key in changes}
    prototypes = torch.eye(3, 4, dtype=torch.float64)
    batch = BatchOutputs({}, LABELS, prototypes, n_classes=3, **about)  # type: ignore[arg-type]
    return LOSSES[name](z, batch, quick_spec(**changes))


def test_log_priors_are_added_to_the_logits_of_ce_and_esupcon() -> None:
    logits, z = torch.randn(12, 3, dtype=torch.float64), torch.randn(12, 4, dtype=torch.float64)
    priors = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    assert_close(loss("ce", logits, log_priors=priors), torch.nn.functional.cross_entropy(logits + priors, LABELS))
    expected = F.esupcon_loss(z, LABELS, torch.eye(3, 4, dtype=torch.float64), log_priors=priors)
    assert_close(loss("esupcon", z, log_priors=priors), expected)


@pytest.mark.parametrize("method", ["ce", "esupcon", "supcon_cosine_ce"])
def test_adjusted_logits_predict_rare_classes_more_often(method: str) -> None:
    """The logits that training leaves stand for more equal classes; a class without a sample does no harm."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [90, 10]).astype(np.int64)
    x = (rng.normal(size=(100, 4)) + 0.8 * y[:, None]).astype(np.float32)
    spec = quick_spec(method=method, encoder="mlp-16x1", epochs=20, augmentation="table_noise", temperature=0.5)
    if method == "esupcon":  # averaged over classes, as in the paper, it hardly learns their shares
        spec = spec.model_copy(update={"prototype_share": 0.8, "prototype_average": "sample"})
    plain, adjusted = (
        fit(spec.model_copy(update={"logit_adjustment": strength}), TrainData(x, y, 3)).classifier.logits(x)
        for strength in (0.0, 1.0)
    )
    margin = [(logits[:, 1] - logits[:, 0]).mean() for logits in (plain, adjusted)]
    assert margin[1] > margin[0] + 0.1, margin
    assert np.isfinite(adjusted).all()


def test_anchors_of_ce_add_up() -> None:
    logits = torch.randn(12, 3, dtype=torch.float64)
    parts = [loss("ce", logits, anchors=part, label_smoothing=0.1) for part in (slice(0, 5), slice(5, 12))]
    assert_close(sum(parts), loss("ce", logits, label_smoothing=0.1))
