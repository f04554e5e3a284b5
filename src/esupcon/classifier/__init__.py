"""A trained classifier: from raw inputs to probabilities; saved, exported, evaluated."""

from typing import TYPE_CHECKING

from esupcon import lazy_names

if TYPE_CHECKING:
    from esupcon.classifier.classifier import Classifier, Explanation, LabelIssues
    from esupcon.classifier.evaluation import Prediction, calibrate, evaluate, predict_files
    from esupcon.classifier.export import export_onnx, export_torch
    from esupcon.classifier.folder import ModelInfo, TrainingData, load_classifier
    from esupcon.classifier.preprocessing import ImagePreprocessing, TablePreprocessing

#: Name of the folder with the model inside the folder of a run.
MODEL_FOLDER = "model"

_HOMES = {
    "classifier": ("Classifier", "Explanation", "LabelIssues"),
    "evaluation": ("Prediction", "calibrate", "evaluate", "predict_files"),
    "export": ("export_onnx", "export_torch"),
    "folder": ("ModelInfo", "TrainingData", "load_classifier"),
    "preprocessing": ("ImagePreprocessing", "TablePreprocessing"),
}
# fmt: off
__all__ = [
    "MODEL_FOLDER", "Classifier", "Explanation", "ImagePreprocessing", "LabelIssues", "ModelInfo", "Prediction",
    "TablePreprocessing", "TrainingData", "calibrate", "evaluate", "export_onnx", "export_torch", "load_classifier",
    "predict_files",
]
# fmt: on
__getattr__, __dir__ = lazy_names(__name__, {name: home for home, names in _HOMES.items() for name in names})
