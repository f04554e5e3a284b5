"""A trained classifier, from arrays to classes and probabilities: NumPy in, NumPy out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from esupcon._contrast import unit_rows
from esupcon.artifact.config import ArtifactConfig, Label, in_one_line
from esupcon.artifact.folder import read_artifact, save_artifact
from esupcon.artifact.inputs import as_rows, network_batch
from esupcon.heads import PrototypeHead
from esupcon.models import Network
from esupcon.probability.posteriors import softmax

__all__ = ["Classifier", "load_artifact"]

#: Values of a batch of inputs, which bounds memory whatever the size of the images.
BATCH_VALUES = 2**22
LARGEST_BATCH = 512


def load_artifact(
    folder: str | os.PathLike[str], *, encoder: nn.Module | None = None, device: str | torch.device = "cpu"
) -> Classifier:
    """The classifier that was saved to ``folder``, ready to predict.

    ``encoder`` is needed where the model was trained with a module of your own: the same module, whose weights
    are replaced by the stored ones, in float32.
    """
    network, config = read_artifact(folder, encoder=encoder)
    return Classifier(network, config, device=device)


class Classifier:
    """``predict``, ``predict_proba``, ``logits`` and ``transform`` of a trained network, by the batch.

    X is what the network was trained on: uint8 images (n, C, H, W) or (n, H, W, C), where C is 1 also
    (n, H, W), or a table of numbers (n, d). Columns of logits and probabilities are in the order of ``classes_``.
    """

    def __init__(self, network: Network, config: ArtifactConfig, *, device: str | torch.device = "cpu") -> None:
        try:
            self.device = torch.device(device)
            self.network = network.to(self.device).eval()
        except (RuntimeError, AssertionError) as error:  # the latter from torch without CUDA
            reason = str(error).partition("\n")[0]
            raise ValueError(f"device {str(device)!r} cannot be used here ({reason}). Pass 'cpu'.") from error
        self.config = config
        self.classes_ = _class_array(config.classes)

    @property
    def prototypes_(self) -> NDArray[np.float32] | None:
        """One unit vector for each class, in the space of `transform`; None where the head has none."""
        if not isinstance(self.network.head, PrototypeHead):
            return None
        unit: NDArray[np.float32] = unit_rows(self._head_weight.cpu().double()).float().numpy()
        return unit

    def logits(self, X: ArrayLike | Tensor, *, batch_size: int | None = None) -> NDArray[np.float32]:
        """(n, K), before calibration."""
        return self._by_batch(X, self.network, self.config.n_classes, batch_size)

    def transform(self, X: ArrayLike | Tensor, *, batch_size: int | None = None) -> NDArray[np.float32]:
        """The embeddings (n, dim), as the encoder gives them: not normalised."""
        return self._by_batch(X, self.network.embed, self._head_weight.shape[1], batch_size)

    def predict_proba(self, X: ArrayLike | Tensor, *, batch_size: int | None = None) -> NDArray[np.float64]:
        """softmax(logits / calibration_temperature), (n, K); the temperature is 1 until calibrated."""
        logits = self.logits(X, batch_size=batch_size)
        if len(logits) == 0:
            return logits.astype(np.float64)
        return softmax(logits, self.config.calibration_temperature or 1.0)

    def predict(self, X: ArrayLike | Tensor, *, batch_size: int | None = None) -> NDArray[Any]:
        """The most probable class of each row, one of `classes_`."""
        predicted: NDArray[Any] = self.classes_[self.logits(X, batch_size=batch_size).argmax(axis=1)]
        return predicted

    def set_calibration(self, temperature: float | None) -> Self:
        """Divide logits by this in `predict_proba` from now on; None takes it back."""
        values = self.config.model_dump() | {"calibration_temperature": temperature}
        try:
            self.config = ArtifactConfig.model_validate(values)
        except ValidationError as error:
            raise ValueError(f"{in_one_line(error)}; got {temperature!r}. Pass a number above 0, or None.") from error
        return self

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the model, with the calibration it has now, to a folder; see `save_artifact`."""
        return save_artifact(folder, self.network, self.config, overwrite=overwrite)

    def __repr__(self) -> str:
        config = self.config
        shape = "x".join(map(str, config.input_shape))
        return f"Classifier({config.encoder}, {config.method}, input {shape}, {config.n_classes} classes)"

    @property
    def _head_weight(self) -> Tensor:
        weight = self.network.head.weight
        assert isinstance(weight, Tensor)
        return weight.detach()

    def _by_batch(
        self, X: ArrayLike | Tensor, compute: Callable[[Tensor], Tensor], width: int, batch_size: int | None
    ) -> NDArray[np.float32]:
        rows = as_rows(X, self.config.preprocessing)
        if batch_size is None:
            batch_size = min(LARGEST_BATCH, max(1, BATCH_VALUES // math.prod(self.config.input_shape)))
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size!r}. Leave it out to have it chosen.")
        out = np.empty((len(rows), width), np.float32)
        self.network.eval()  # whatever was done to it in between
        with torch.inference_mode():
            for start in range(0, len(rows), batch_size):
                part = slice(start, start + batch_size)
                batch = network_batch(rows[part], self.config.preprocessing).to(self._head_weight)
                out[part] = compute(batch).float().cpu().numpy()
        broken = ~np.isfinite(out).all(axis=1)
        if broken.any():
            raise ValueError(
                f"the network gave NaN or infinite numbers for {int(broken.sum())} of {len(rows)} rows, first row "
                f"{int(broken.argmax())}. Look for values far outside those it was trained on."
            )
        return out


def _class_array(classes: tuple[Label, ...]) -> NDArray[Any]:
    """The classes as NumPy has them where that keeps every one as it is, else as Python objects."""
    kinds = {type(label) for label in classes}
    if len(kinds) == 1:
        array = np.array(classes)
        if array.tolist() == list(classes):  # not so for text that ends in NUL
            return array
    objects = np.empty(len(classes), dtype=object)
    objects[:] = classes
    return objects
