"""Outputs of a trained network, by the batch, in its own precision."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from esupcon.estimator.inputs import Form
from esupcon.heads import PrototypeHead
from esupcon.models import Network

__all__ = ["class_vectors", "outputs"]

_BATCH_VALUES = 2**22
_LARGEST_BATCH = 512


@torch.no_grad()
def outputs(network: Network, form: Form, rows: NDArray[np.generic]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Embeddings (n, d) and logits (n, K) of rows in the form of training."""
    weight = network.head.weight
    assert isinstance(weight, torch.Tensor)
    step = min(_LARGEST_BATCH, max(1, _BATCH_VALUES // int(np.prod(form.input_shape))))
    embeddings = np.empty((len(rows), weight.shape[1]))
    logits = np.empty((len(rows), len(weight)))
    network.eval()
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        batch = form.to_network(rows[part]).to(weight.dtype)
        found = network.outputs(batch, ("embedding", "logits"))
        embeddings[part], logits[part] = found["embedding"].numpy(), found["logits"].numpy()
    return embeddings, logits


def class_vectors(network: Network) -> NDArray[np.float64] | None:
    """The prototypes, unit vectors (K, d); None for a linear head."""
    if not isinstance(network.head, PrototypeHead):
        return None
    weight = network.head.weight.detach().double()
    return torch.nn.functional.normalize(weight, dim=1).numpy()
