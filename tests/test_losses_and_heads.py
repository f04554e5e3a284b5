from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from esupcon import functional as F
from esupcon import losses
from esupcon.heads import LinearHead, PrototypeHead, class_means

z = torch.randn(8, 5)
labels = torch.tensor([0, 1, 2, 0, 0, 1, 2, 0])
prototypes = torch.randn(4, 5)


@pytest.mark.parametrize(
    ("module", "arguments", "expected"),
    [
        (losses.SimCLRLoss(0.3), (z,), F.simclr_loss(z, temperature=0.3)),
        (losses.SupConLoss(0.3), (z, labels), F.supcon_loss(z, labels, temperature=0.3)),
        (losses.SPCELoss(0.3, "batch"), (z, labels), F.spce_loss(z, labels, temperature=0.3, average="batch")),
        (losses.TightnessLoss(), (z, labels, prototypes), F.tightness_loss(z, labels, prototypes)),
        (
            losses.ESupConLoss(0.3, 5.0),
            (z, labels, prototypes),
            F.esupcon_loss(z, labels, prototypes, temperature=0.3, prototype_weight=5.0),
        ),
        (
            losses.ESupConLoss(0.3, prototype_temperature=0.2, prototype_share=0.4, prototype_average="sample"),
            (z, labels, prototypes),
            F.esupcon_loss(
                z,
                labels,
                prototypes,
                temperature=0.3,
                prototype_temperature=0.2,
                prototype_share=0.4,
                prototype_average="sample",
            ),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_modules_equal_functions_and_hold_no_parameters(module, arguments, expected) -> None:
    assert torch.equal(module(*arguments), expected)
    assert not list(module.parameters())
    assert not module.state_dict()


def test_defaults_are_those_of_the_functions() -> None:
    assert torch.equal(losses.SimCLRLoss()(z), F.simclr_loss(z))
    assert torch.equal(losses.SupConLoss()(z, labels), F.supcon_loss(z, labels))
    assert torch.equal(losses.SPCELoss()(z, labels), F.spce_loss(z, labels))
    assert torch.equal(losses.ESupConLoss()(z, labels, prototypes), F.esupcon_loss(z, labels, prototypes))


def test_settings_show_in_the_repr() -> None:
    assert repr(losses.ESupConLoss(0.2, 3.0)) == "ESupConLoss(temperature=0.2, prototype_weight=3.0)"
    shared = losses.ESupConLoss(prototype_temperature=0.3, prototype_share=0.5)
    assert repr(shared) == (
        "ESupConLoss(temperature=0.1, prototype_weight=1.0, prototype_temperature=0.3, prototype_share=0.5, "
        "prototype_average='class')"
    )
    assert repr(PrototypeHead(5, 3)) == "PrototypeHead(dim=5, n_classes=3, temperature=0.1)"


def test_linear_head_is_affine() -> None:
    head = LinearHead(5, 3)
    assert_close(head(z), z @ head.weight.T + head.bias)


def test_prototype_head_gives_cosine_over_temperature() -> None:
    head = PrototypeHead(5, 3, temperature=0.2)
    expected = torch.nn.functional.cosine_similarity(z[:, None], head.weight[None], dim=2) / 0.2
    assert_close(head(z), expected)
    assert_close(head.weight.norm(dim=1), torch.ones(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head(z), head(z.float()))
        assert head(z.bfloat16()).dtype == torch.float32


def test_class_means_are_means_of_unit_vectors() -> None:
    means = class_means(z, labels, 4)
    unit = torch.nn.functional.normalize(z)
    for k in range(3):
        assert_close(means[k], unit[labels == k].mean(0))
    assert (means[3] == 0).all()


def test_class_means_are_where_tightness_is_lowest() -> None:
    means = class_means(z, labels, 4)
    best = F.tightness_loss(z, labels, means)
    for _ in range(20):
        assert F.tightness_loss(z, labels, means + 0.1 * torch.randn(4, 5)) > best


def test_softmax_of_the_head_is_what_the_loss_trains() -> None:
    """With one sample l_pt is the cross entropy of the head whose temperature is `prototype_temperature`."""
    head = PrototypeHead(5, 4, temperature=0.3)
    value = F.prototype_loss(z[:1], labels[:1], head.weight, temperature=0.1, prototype_temperature=0.3)
    assert_close(value, torch.nn.functional.cross_entropy(head(z[:1]), labels[:1], reduction="none"))


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_losses_import_torch_and_nothing_heavy() -> None:
    heavy = "{'sklearn', 'matplotlib', 'lightning_fabric', 'PIL', 'rich', 'typer', 'pydantic', 'torch._dynamo'}"
    assert run_python(f"import sys, esupcon.losses; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_import_of_losses_costs_at_most_a_quarter_more_than_torch() -> None:
    code = (
        "import time; start = time.process_time(); import torch; middle = time.process_time(); import esupcon.losses;"
        "print((time.process_time() - start) / (middle - start))"
    )
    assert any(float(run_python(code)) <= 1.25 for _ in range(3))
