"""A trained classifier as a folder that anyone can load: safetensors and JSON, never pickle."""

from esupcon.artifact.classifier import Classifier, load_artifact
from esupcon.artifact.config import ArtifactConfig, ImagePreprocessing, TablePreprocessing
from esupcon.artifact.folder import save_artifact

__all__ = [
    "ArtifactConfig",
    "Classifier",
    "ImagePreprocessing",
    "TablePreprocessing",
    "load_artifact",
    "save_artifact",
]
