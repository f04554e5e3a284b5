from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from esupcon import functional as F
from esupcon import losses
from esupcon.heads import LinearHead, PrototypeHead, class_means

z = torch.randn(8, 5)
labels = torch.tensor([0, 1, 2, 0, 0, 1, 2, 0])
prototypes = torch.randn(4, 5)


SETTINGS = {
    "SimCLR": [{}, {"temperature": 0.3}],
    "SupCon": [{}, {"temperature": 0.3}],
    "SPCE": [{}, {"temperature": 0.3, "average": "batch"}],
    "Tightness": [{}],
    "ESupCon": [
        {},
        {"temperature": 0.3, "prototype_weight": 5.0},
        {"prototype_temperature": 0.2, "prototype_share": 0.4, "prototype_average": "sample", "contrast_weight": 0.3},
    ],
}


@pytest.mark.parametrize(("name", "settings"), [(name, one) for name, many in SETTINGS.items() for one in many])
def test_modules_equal_functions_and_hold_no_parameters(name: str, settings: dict[str, Any]) -> None:
    module, function = getattr(losses, f"{name}Loss")(**settings), getattr(F, f"{name.lower()}_loss")
    arguments = {"SimCLR": (z,), "SupCon": (z, labels), "SPCE": (z, labels)}.get(name, (z, labels, prototypes))
    assert torch.equal(module(*arguments), function(*arguments, **settings))
    assert not module.state_dict()
    assert all(f"{key}={value!r}" in repr(module) for key, value in settings.items())


def test_module_takes_log_priors_and_targets_as_tensors() -> None:
    tensors = {"log_priors": torch.tensor([-1.0, -2, 0, -3]), "targets": torch.full((8, 4), 0.25)}
    settings = {"prototype_share": 0.4, "prototype_average": "sample"}
    found = losses.ESupConLoss(**settings)(z, labels, prototypes, **tensors)
    assert torch.equal(found, F.esupcon_loss(z, labels, prototypes, **settings, **tensors))


def test_heads_give_cosine_over_temperature_or_an_affine_map() -> None:
    head = PrototypeHead(5, 3, temperature=0.2)
    expected = torch.nn.functional.cosine_similarity(z[:, None], head.weight[None], dim=2) / 0.2
    assert_close(head(z), expected)
    assert_close(head.weight.norm(dim=1), torch.ones(3))
    assert repr(head) == "PrototypeHead(dim=5, n_classes=3, temperature=0.2)"
    linear = LinearHead(5, 3)
    assert_close(linear(z), z @ linear.weight.T + linear.bias)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head(z), head(z.float()))
        assert head(z.bfloat16()).dtype == torch.float32


def test_class_means_are_means_of_unit_vectors_where_tightness_is_lowest() -> None:
    means = class_means(z, labels, 4)
    unit = torch.nn.functional.normalize(z)
    for k in range(3):
        assert_close(means[k], unit[labels == k].mean(0))
    assert (means[3] == 0).all()
    best = F.tightness_loss(z, labels, means)
    for _ in range(20):
        assert F.tightness_loss(z, labels, means + 0.1 * torch.randn(4, 5)) > best


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_of_losses_costs_at_most_a_quarter_more_than_torch() -> None:
    code = (
        "import time; start = time.process_time(); import torch; middle = time.process_time(); import esupcon.losses;"
        "print((time.process_time() - start) / (middle - start))"
    )
    assert any(float(run_python(code)) <= 1.25 for _ in range(3))


def test_public_modules_are_attributes_of_the_package() -> None:
    names = ("losses.ESupConLoss", "data.load", "report.build")
    shown = ", ".join(f"esupcon.{name}.__name__" for name in names)
    assert run_python(f"import esupcon; print({shown})") == "ESupConLoss load build"
