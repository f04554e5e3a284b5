"""`Classifier`: a trained network with its preprocessing and calibration, and everything that can be asked of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esupcon.classifier.preprocessing import Preprocessing, Rows
from esupcon.heads import PrototypeHead
from esupcon.models import Network

Floats = NDArray[np.float64]

#: Rows per batch. On CPUs 128 images take half as long as 512, whose activations are returned to the system each time.
CPU_BATCH, GPU_BATCH = 128, 512
#: Values per batch, which bounds memory for large images.
BATCH_VALUES = 2**22


class Classifier:
    """A trained network that maps raw inputs to classes and probabilities.

    X is what the network was trained on: images as an array, as paths of files or as PIL images, or a table (an array
    or a data frame). Columns of logits and probabilities are in the order of `classes_`.
    """

    def __init__(self, network: Network, preprocessing: Preprocessing, classes: Sequence[Any] | NDArray[Any]) -> None:
        self.network = network
        self.preprocessing = preprocessing
        self.classes_ = classes if isinstance(classes, np.ndarray) else class_array(classes)

    @property
    def device(self) -> torch.device:
        return self._head_weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._head_weight.dtype

    @property
    def n_classes(self) -> int:
        return len(self.classes_)

    @property
    def prototypes_(self) -> Floats | None:
        """Unit vectors (K, dim), one for each class, in the space of `transform`; None if the head is linear."""
        if not isinstance(self.network.head, PrototypeHead):
            return None
        return nn.functional.normalize(self._head_weight.detach().cpu().double(), dim=1).numpy()

    @torch.no_grad()
    def outputs(self, rows: Rows, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Return the named outputs (embedding, projection, logits) of rows that `preprocessing.rows` returned.

        This is the only loop over batches of un-augmented samples. Raise ValueError if an output is not finite.
        """
        most = CPU_BATCH if self.device.type == "cpu" else GPU_BATCH
        step = max(1, min(most, BATCH_VALUES // math.prod(self.preprocessing.input_shape)))
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        with evaluating(self.network):
            for start in range(0, len(rows), step):
                batch = self.preprocessing.tensor(rows[start : start + step], self.device).to(self.dtype)
                for name, value in self.network.outputs(batch, names).items():
                    parts[name].append(value)
            if not len(rows):  # one row of zeros gives the widths
                batch = torch.zeros(1, *self.preprocessing.input_shape, device=self.device, dtype=self.dtype)
                parts = {name: [value[:0]] for name, value in self.network.outputs(batch, names).items()}
        outputs = {name: torch.cat(values) for name, values in parts.items()}
        for name, value in outputs.items():
            broken = ~value.isfinite().all(dim=1)
            if broken.any():
                raise ValueError(
                    f"the network gave a {name} with NaN or infinity for {int(broken.sum())} of {len(rows)} rows, "
                    f"first row {int(broken.int().argmax())}. Look for values far outside those of training."
                )
        return outputs

    def logits(self, X: Any) -> Floats:
        """Return the logits (n, K), before calibration."""
        return self.outputs(self.preprocessing.rows(X), ("logits",))["logits"].double().cpu().numpy()

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return the embeddings (n, dim) as the encoder gives them: not normalised."""
        return self.outputs(self.preprocessing.rows(X), ("embedding",))["embedding"].float().cpu().numpy()

    @property
    def _head_weight(self) -> Tensor:
        weight = self.network.head.weight
        assert isinstance(weight, Tensor)
        return weight


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode inside, and restore each one's mode afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def class_array(classes: Sequence[Any]) -> NDArray[Any]:
    """Return the classes as a NumPy array of their type if that keeps each of them unchanged, else of objects."""
    if len({type(label) for label in classes}) == 1:
        array = np.array(classes)
        if array.ndim == 1 and array.tolist() == list(classes):  # not so for text that ends in NUL
            return array
    objects = np.empty(len(classes), dtype=object)
    objects[:] = classes
    return objects
