"""Mistakes at the public edge: one line with expectation, value and remedy."""

from __future__ import annotations

import pytest
import torch

from esupcon import functional as F
from esupcon import heads, losses

z = torch.randn(6, 4)
labels = torch.tensor([0, 0, 1, 1, 2, 2])
prototypes = torch.randn(3, 4)


def call(**changes):
    arguments = {"z": z, "labels": labels, "prototypes": prototypes} | changes
    return F.esupcon_loss(**arguments)


MISTAKES = {
    "rank one": ({"z": z[0]}, r"two dimensions \(samples, dim\); got shape \(4,\)"),
    "views on their own axis": ({"z": z.view(3, 2, 4)}, r"got shape \(3, 2, 4\).*z\.flatten\(0, 1\)"),
    "integers for embeddings": ({"z": z.long()}, r"floating-point embeddings; got torch.int64.*z\.float\(\)"),
    "empty batch": ({"z": z[:0], "labels": labels[:0]}, r"at least one sample.*\(0, 4\)"),
    "labels of half the length": ({"labels": labels[:3]}, r"each of the 6 rows.*\(3,\).*labels\.repeat\(2\)"),
    "labels of another length": ({"labels": labels[:4]}, r"each of the 6 rows of z; got shape \(4,\)\.$"),
    "one-hot labels": ({"labels": torch.eye(6)}, r"one label for each of the 6 rows.*\(6, 6\)"),
    "float labels": ({"labels": labels.float()}, r"must be integers; got torch.float32.*labels\.long\(\)"),
    "negative label": ({"labels": labels - 1}, r"not be negative; the lowest is -1"),
    "label beyond the prototypes": ({"labels": labels + 1}, r"number of classes, 3; the highest is 3"),
    "prototypes too narrow": ({"prototypes": prototypes[:, :3]}, r"shape \(classes, 4\).*got \(3, 3\)"),
    "prototypes of rank one": ({"prototypes": prototypes[0]}, r"shape \(classes, 4\).*got \(4,\)"),
    "integer prototypes": ({"prototypes": prototypes.long()}, r"prototypes must be floating-point; got torch.int64"),
    "temperature zero": ({"temperature": 0.0}, r"temperature must be a finite number above 0; got 0\.0"),
    "temperature negative": ({"temperature": -0.1}, r"above 0; got -0\.1"),
    "temperature NaN": ({"temperature": float("nan")}, r"above 0; got nan"),
    "temperature as text": ({"temperature": "0.1"}, r"above 0; got '0\.1'"),
    "temperature as tensor": ({"temperature": torch.tensor(0.1)}, r"got a tensor.*float\(temperature\)"),
    "prototype weight negative": ({"prototype_weight": -1.0}, r"prototype_weight must be .* at least 0; got -1\.0"),
    "prototype temperature zero": ({"prototype_temperature": 0}, r"prototype_temperature must be .* above 0; got 0"),
    "prototype temperature as tensor": ({"prototype_temperature": torch.ones(1)}, r"Pass float\(prototype_temp"),
    "prototype share above one": ({"prototype_share": 1.5}, r"prototype_share must be .* 0 to 1, or None; got 1\.5"),
    "prototype share NaN": ({"prototype_share": float("nan")}, r"from 0 to 1, or None; got nan"),
    "share and weight": ({"prototype_share": 0.5, "prototype_weight": 2.0}, r"exclude each other; got 2\.0 and 0\.5"),
    "unknown average": ({"prototype_average": "batch"}, r"'class', 'sample'; got 'batch'"),
    "average without a share": ({"prototype_average": "sample"}, r"'sample' needs a prototype_share; got None"),
    "no positive pair": ({"z": z[::2], "labels": labels[::2]}, r"3 samples hold 3 classes\. Pass two views"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_message_gives_expectation_value_and_remedy(mistake: str) -> None:
    changes, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message) as caught:
        call(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["simclr", "supcon", "spce", "tightness", "prototype", "esupcon"])
def test_finite_check_is_opt_in(value: float, name: str) -> None:
    loss = getattr(F, f"{name}_loss")
    arguments = {"simclr": (), "supcon": (labels,), "spce": (labels,)}.get(name, (labels, prototypes))
    bad = z.clone()
    bad[2, 1] = value
    with pytest.raises(ValueError, match="1 of 6 rows hold NaN or inf"):
        loss(bad, *arguments, check_finite=True)
    assert not loss(bad, *arguments).isfinite().all()  # and nothing hides it when the check is off


def test_odd_number_of_views() -> None:
    with pytest.raises(ValueError, match=r"two views.*odd number of rows, 5"):
        F.simclr_loss(z[:5])


def test_unknown_average() -> None:
    with pytest.raises(ValueError, match=r"'class', 'batch'; got 'mean'"):
        F.spce_loss(z, labels, average="mean")


def test_posterior_of_another_width() -> None:
    with pytest.raises(ValueError, match="same width; got 4 and 3"):
        F.spce_posterior(z, z[:, :3], labels, 3)


@pytest.mark.parametrize(
    "build",
    [
        lambda: losses.SimCLRLoss(0),
        lambda: losses.SupConLoss(temperature=-1),
        lambda: losses.SPCELoss(average="mean"),
        lambda: losses.ESupConLoss(prototype_weight=-1),
        lambda: losses.ESupConLoss(prototype_temperature=0),
        lambda: losses.ESupConLoss(prototype_share=2),
        lambda: heads.PrototypeHead(3, 2, temperature=0),
    ],
)
def test_modules_refuse_bad_settings_when_built(build) -> None:
    with pytest.raises(ValueError, match="must be"):
        build()
