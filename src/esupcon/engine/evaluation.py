"""Un-augmented passes over data: logits, embeddings, class means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esupcon.cosine import unit_rows
from esupcon.engine.data import TrainData
from esupcon.heads import class_means
from esupcon.models import Network

# On a CPU 128 images at a time took half as long: activations of 512 go back to the system and are zeroed anew.
_BATCH, _BATCH_ON_CPU = 512, 128


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Every part in evaluation mode, and afterwards each as it was."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def outputs_of(
    network: Network, data: TrainData, x: NDArray[np.generic], names: tuple[str, ...], device: torch.device
) -> dict[str, Tensor]:
    """The named outputs for every row of x, in the order of x, in float32 or better."""
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    dtype = next(network.parameters()).dtype
    size = _BATCH_ON_CPU if device.type == "cpu" else _BATCH
    with evaluating(network):
        for start in range(0, len(x), size):
            batch = data.to_input(x[start : start + size], device).to(dtype)
            for name, value in network.outputs(batch, names).items():
                parts[name].append(value)
    return {name: torch.cat(values) for name, values in parts.items()}


def training_class_means(network: Network, data: TrainData, device: torch.device, limit: int | None = None) -> Tensor:
    """Class means of unit embeddings over the un-augmented training samples, or over `limit` of them spread evenly."""
    rows = np.arange(len(data.x)) if limit is None else np.unique(np.linspace(0, len(data.x) - 1, limit).astype(int))
    z = outputs_of(network, data, data.x[rows], ("embedding",), device)["embedding"]
    return class_means(z, torch.from_numpy(data.y[rows]).to(device), data.n_classes)


def accuracy(logits: Tensor, labels: NDArray[np.int64]) -> float:
    return float((logits.argmax(1).cpu().numpy() == labels).mean())


def held_out_accuracy(
    network: Network, data: TrainData, device: torch.device, *, head_is_trained: bool
) -> float | None:
    """Accuracy on the held-out samples: of the head, or of the nearest class mean while no head is trained."""
    if data.x_held is None or data.y_held is None or len(data.x_held) == 0:
        return None
    if head_is_trained:
        return accuracy(outputs_of(network, data, data.x_held, ("logits",), device)["logits"], data.y_held)
    means = training_class_means(network, data, device, limit=2000)
    z = outputs_of(network, data, data.x_held, ("embedding",), device)["embedding"]
    return accuracy(unit_rows(z) @ unit_rows(means).T, data.y_held)
