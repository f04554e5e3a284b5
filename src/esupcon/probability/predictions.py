"""Where torch ends: a classifier's logits on labelled samples, as NumPy arrays in one file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esupcon.files import write_whole
from esupcon.npz_file import NotPlainArrays, read_arrays
from esupcon.probability.posteriors import softmax
from esupcon.probability.validation import FloatArray, IntArray, as_labels, as_logits


@dataclass(frozen=True, eq=False, init=False)
class Predictions:
    """`logits` (n, K) in the floating type they were given in, `labels` (n,) int64, the column of each row's class."""

    logits: NDArray[np.floating[Any]]
    labels: IntArray

    def __init__(self, logits: ArrayLike, labels: ArrayLike) -> None:
        checked = as_logits(logits)
        given = np.asarray(logits)
        kept = np.array(given) if given.dtype.kind == "f" else checked
        object.__setattr__(self, "logits", kept)
        object.__setattr__(self, "labels", as_labels(labels, n=len(checked), n_classes=checked.shape[1]))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        return int(self.logits.shape[1])

    def probabilities(self, temperature: float = 1.0) -> FloatArray:
        """softmax(logits / temperature)."""
        return softmax(self.logits, temperature)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an .npz file (two plain arrays, no pickle) at exactly `path`, replacing what is there."""
        arrays: dict[str, Any] = {"logits": self.logits, "labels": self.labels}
        return write_whole(path, lambda file: np.savez_compressed(file, **arrays))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; anything else is a ValueError, and nothing in the file is ever executed."""
        source = Path(path)
        if not source.is_file():
            raise FileNotFoundError(f"no predictions at {source}. Pass the .npz file that Predictions.save wrote.")
        try:
            arrays = read_arrays(source, ("logits", "labels"))
        except NotPlainArrays as reason:
            raise ValueError(
                f"{source} must be an .npz file with plain arrays 'logits' and 'labels'; it could not be read as one "
                f"({reason}). Write it with Predictions.save."
            ) from reason
        return cls(arrays["logits"], arrays["labels"])
