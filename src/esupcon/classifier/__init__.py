"""A trained classifier: from raw inputs to probabilities, saved, exported, evaluated."""

from typing import TYPE_CHECKING

from esupcon.lazy import names_from

if TYPE_CHECKING:
    from esupcon.classifier.classifier import Classifier
    from esupcon.classifier.preprocessing import ImagePreprocessing, TablePreprocessing

__all__ = ["MODEL_FOLDER", "Classifier", "ImagePreprocessing", "TablePreprocessing"]

#: The folder of a run's model inside the folder of the run.
MODEL_FOLDER = "model"

_HOMES = {"Classifier": "classifier", "ImagePreprocessing": "preprocessing", "TablePreprocessing": "preprocessing"}
__getattr__, __dir__ = names_from(__name__, _HOMES)
