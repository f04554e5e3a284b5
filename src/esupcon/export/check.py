"""A file is kept if it gives what the classifier gives: on noise, on photographs, on the caller's own inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from esupcon.artifact import Classifier, ImagePreprocessing, TablePreprocessing
from esupcon.artifact.inputs import as_rows

__all__ = ["TOLERANCE", "checked", "trial_inputs"]

TOLERANCE = 1e-4
_N_NOISE = 8
_CROPS = 3
#: Rows of one run, and values of its input, which bounds memory whatever the size of the images.
_LARGEST_BATCH, _BATCH_VALUES = 7, 2**22

Inputs = NDArray[np.uint8] | NDArray[np.float64]
#: From a batch of the file's own input to probabilities and embedding.
Run = Callable[[NDArray[np.generic]], tuple[NDArray[np.float32], NDArray[np.float32]]]


def trial_inputs(classifier: Classifier, samples: ArrayLike | None) -> Inputs:
    """Random inputs and, for images, pieces of two photographs that scikit-learn brings; then the samples."""
    expected = classifier.config.preprocessing
    rng = np.random.default_rng(0)
    made: Inputs
    if isinstance(expected, TablePreprocessing):
        spread = rng.standard_normal((2 * _N_NOISE, len(expected.mean))) * np.asarray(expected.scale)
        # As float32, the file's input, holds them: the check is of the file, not of that rounding.
        made = (np.asarray(expected.mean) + spread).astype(np.float32).astype(np.float64)
    else:
        noise = rng.integers(0, 256, (_N_NOISE, *expected.input_shape), dtype=np.uint8)
        extremes = np.stack([np.full(expected.input_shape, level, np.uint8) for level in (0, 255)])
        made = np.concatenate([noise, extremes, _photographs(expected, rng)])
    if samples is None:
        return made
    return np.concatenate([made, as_rows(samples, expected)])


def checked(classifier: Classifier, run: Run, inputs: Inputs) -> float:
    """The largest difference between the file and the classifier; above `TOLERANCE` it is a ValueError."""
    probabilities, embedding = classifier.predict_proba(inputs), classifier.transform(inputs)
    dtype = np.uint8 if isinstance(classifier.config.preprocessing, ImagePreprocessing) else np.float32
    scale = max(1.0, float(np.abs(embedding).max()))
    largest = 0.0
    for part in _batches(len(inputs), math.prod(classifier.config.input_shape)):
        found = run(np.ascontiguousarray(inputs[part], dtype=dtype))
        for name, ours, theirs, unit in (
            ("probabilities", probabilities[part], found[0], 1.0),
            ("embedding", embedding[part], found[1], scale),
        ):
            if theirs.shape != ours.shape:
                raise ValueError(
                    f"the exported graph gave {name} of shape {theirs.shape} where the classifier gives "
                    f"{ours.shape}, so no file was kept. The encoder must treat every row alike."
                )
            difference = float(np.abs(ours - theirs).max()) / unit
            if not difference <= TOLERANCE:  # NaN is no agreement either
                raise ValueError(
                    f"the exported graph differs from the classifier by {difference:.2g} in {name}, more than "
                    f"{TOLERANCE:g}, so no file was kept. Temperatures far below 0.1, features whose deviation is "
                    "tiny beside their mean, and encoders that draw random numbers do that; or try the other format."
                )
            largest = max(largest, difference)
    return largest


def _batches(n: int, values: int) -> Iterator[slice]:
    """One alone, then as many together as memory has room for."""
    size = max(1, min(_LARGEST_BATCH, _BATCH_VALUES // values))
    yield slice(0, 1)
    for start in range(1, n, size):
        yield slice(start, start + size)


def _photographs(expected: ImagePreprocessing, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Each photograph whole and in random pieces, at the size of the classifier's input."""
    height, width = expected.image_size
    pieces = []
    for photograph in load_sample_images().images:
        image = Image.fromarray(photograph).convert("L" if expected.channels == 1 else "RGB")
        boxes = [(0, 0, *image.size)]
        side = min(image.size) // 3
        for _ in range(_CROPS - 1):
            left, top = (int(rng.integers(0, length - side)) for length in image.size)
            boxes.append((left, top, left + side, top + side))
        pieces += [np.asarray(image.resize((width, height), box=box)) for box in boxes]
    stacked = np.stack(pieces).reshape(len(pieces), height, width, expected.channels)
    return np.ascontiguousarray(stacked.transpose(0, 3, 1, 2))
