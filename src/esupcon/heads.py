"""Classifier heads: they hold the parameters that the losses take as arguments, and return logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esupcon._contrast import class_sums, unit_rows, without_autocast
from esupcon.functional import check_embeddings, check_number, count_classes


class LinearHead(nn.Linear):
    """`logits = W z + b`: the un-normalised head of plain cross entropy, for embeddings of width `dim`."""

    def __init__(self, dim: int, n_classes: int) -> None:
        super().__init__(dim, n_classes)


class PrototypeHead(nn.Module):
    """`logits_k = cos(z, theta_k) / temperature`.

    The softmax of the logits is the posterior that `esupcon_loss` trains. Only the direction of a prototype matters, so
    prototypes should have no weight decay.

    Parameters
    ----------
    dim, n_classes : int
        Width of the embedding, and number of classes.
    temperature : float, default=0.1
        As in the loss: its `prototype_temperature` if it has one, else its `temperature`.

    Attributes
    ----------
    weight : Parameter of shape (n_classes, dim)
        The prototypes theta.
    """

    def __init__(self, dim: int, n_classes: int, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = check_number("temperature", temperature)
        self.weight = nn.Parameter(unit_rows(torch.randn(n_classes, dim)))

    @without_autocast
    def forward(self, z: Tensor) -> Tensor:
        """Return the logits (n, n_classes) of embeddings (n, dim)."""
        z = check_embeddings(z)
        return unit_rows(z) @ unit_rows(self.weight.to(z.dtype)).T / self.temperature

    def extra_repr(self) -> str:
        n_classes, dim = self.weight.shape
        return f"dim={dim}, n_classes={n_classes}, temperature={self.temperature}"


def class_means(z: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return `c_k = 1/n_k sum_{i: y_i = k} z_i / |z_i|`, shape (n_classes, d); zero for a class without samples."""
    z = check_embeddings(z)
    ids, counts, *_ = count_classes(labels, len(z), n_classes)
    return class_sums(unit_rows(z), ids, n_classes) / counts.clamp_min(1).unsqueeze(1)
