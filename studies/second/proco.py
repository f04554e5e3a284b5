"""ProCo, a competitor for imbalanced classes (Du et al., "Probabilistic Contrastive Learning for Long-Tailed Visual
Recognition", TPAMI 2024), written from its equations: cross entropy with logit adjustment, and the expected supervised
contrastive loss if the projections of class k follow a von Mises-Fisher distribution around mu_k:

    logit_k(z) = log pi_k + log C(kappa_k) - log C(|kappa_k mu_k + z / tau|)

pi are the class shares, C is the normaliser of the distribution. The moments are running class means of the
projections. They are not part of checkpoints: a run that was interrupted ends with slightly different weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from esupcon.methods import Method, Stage, Term, register
from esupcon.spec import TrainSpec
from esupcon.training.objective import BatchOutputs, register_loss

KEPT = 0.99  # of the class sums, per step
_moments: dict[int, tuple[TrainSpec, Tensor, Tensor]] = {}  # of the run whose settings these are


def log_bessel(order: float, x: Tensor) -> Tensor:
    """Return the logarithm of the modified Bessel function I_order(x): its uniform expansion for large orders."""
    root = torch.sqrt(order**2 + x**2)
    return root + order * torch.log(x / (order + root)) - 0.5 * torch.log(2 * math.pi * root)


def log_normaliser(kappa: Tensor, dim: int) -> Tensor:
    """Return log C(kappa) of the von Mises-Fisher distribution, up to a constant."""
    order = dim / 2 - 1
    return order * kappa.log() - log_bessel(order, kappa)


def proco(z: Tensor, batch: BatchOutputs, spec: TrainSpec) -> Tensor:
    """Return the mean of -log softmax(logits)[label] over the rows."""
    assert batch.n_classes is not None
    z, dim = normalize(z.double(), dim=1), z.shape[1]
    known = _moments.get(0)
    if known is None or known[0] is not spec:
        known = spec, z.new_zeros(batch.n_classes, dim), z.new_zeros(batch.n_classes)
    sums = (KEPT * known[1]).index_add_(0, batch.labels, z.detach())
    counts = (KEPT * known[2]).index_add_(0, batch.labels, torch.ones_like(z[:, 0]))
    _moments[0] = spec, sums, counts
    means = sums / counts.clamp_min(1e-6)[:, None]
    length = means.norm(dim=1).clamp(1e-3, 0.99)
    kappa = length * (dim - length**2) / (1 - length**2)
    shifted = kappa[:, None] * normalize(means, dim=1) + z[:, None, :] / spec.temperature
    logits = log_normaliser(kappa, dim) - log_normaliser(shifted.norm(dim=2), dim)
    logits = (logits + counts.log()).masked_fill(counts == 0, -torch.inf)
    rows = batch.rows
    return cross_entropy(logits[rows], batch.labels[rows], reduction="sum") / len(z)


register_loss("proco", proco)
register(
    Method(
        key="proco",
        title="ProCo",
        summary="Cross entropy with logit adjustment, and the expected contrastive loss of von Mises-Fisher classes.",
        head="linear",
        stages=(
            Stage((Term("ce", on="logits"), Term("proco", on="projection")), trains=("encoder", "projector", "head")),
        ),
    )
)
