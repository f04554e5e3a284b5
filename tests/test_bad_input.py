"""Mistakes at the public edge: one line with expectation, value and remedy."""

from __future__ import annotations

import pytest
import torch

from esupcon import functional as F

z = torch.randn(6, 4)
labels = torch.tensor([0, 0, 1, 1, 2, 2])
prototypes = torch.randn(3, 4)


MISTAKES = {
    "views on their own axis": ({"z": z.view(3, 2, 4)}, r"got \(3, 2, 4\).*z\.flatten\(0, 1\)"),
    "labels of half the length": ({"labels": labels[:3]}, r"each of the 6 rows.*\(3,\).*labels\.repeat\(2\)"),
    "one-hot labels": ({"labels": torch.eye(6)}, r"one label for each of the 6 rows.*\(6, 6\)"),
    "float labels": ({"labels": labels.float()}, r"must be integers; got torch.float32.*labels\.long\(\)"),
    "negative label": ({"labels": labels - 1}, r"at least 0 .*; the lowest is -1"),
    "label beyond the prototypes": ({"labels": labels + 1}, r"number of classes, 3; .* the highest 3"),
    "prototypes too narrow": (
        {"prototypes": prototypes[:, :3]},
        r"prototypes must be as wide as z, 4; got shape \(3, 3\)",
    ),
    "temperature zero": ({"temperature": 0.0}, r"temperature must be a finite number above 0; got 0\.0"),
    "temperature as tensor": ({"temperature": torch.tensor(0.1)}, r"got tensor\(0.1.*float\(temperature\)"),
    "prototype share above one": ({"prototype_share": 1.5}, r"prototype_share must be .* 0 to 1.*; got share 1\.5"),
    "share and weight": (
        {"prototype_share": 0.5, "prototype_weight": 2.0},
        r"needs prototype_weight=1.*got share 0\.5, weight 2\.0",
    ),
    "average without a share": (
        {"prototype_average": "sample"},
        r"None, which needs prototype_average='class'; got .*'sample'",
    ),
    "log priors of another length": (
        {"log_priors": torch.zeros(2)},
        r"log_priors must have shape \(3,\).*; got \(2,\)",
    ),
    "targets of another shape": ({"targets": torch.eye(3)}, r"targets must have shape \(6, 3\).*; got \(3, 3\)"),
    "no positive pair": ({"z": z[::2], "labels": labels[::2]}, r"3 samples hold 3 classes\. Pass two views"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_message_gives_expectation_value_and_remedy(mistake: str) -> None:
    changes, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message) as caught:
        F.esupcon_loss(**({"z": z, "labels": labels, "prototypes": prototypes} | changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: F.simclr_loss(z[:5]), r"two views.*odd number of rows, 5"),
        (lambda: F.spce_loss(z, labels, average="mean"), r"class, batch; got 'mean'"),
        (lambda: F.spce_posterior(z, z[:, :3], labels, 3), "z_support must be as wide as z, 4"),
    ],
)
def test_other_losses_refuse_mistakes(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
