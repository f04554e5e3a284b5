"""Supervised contrastive classification: one objective for the embedding and its classifier."""

from typing import TYPE_CHECKING

from esupcon.lazy import names_from

if TYPE_CHECKING:
    from esupcon.estimator import ContrastiveClassifier, load
    from esupcon.spec import RunSpec, TrainSpec
    from esupcon.training.loop import fit
    from esupcon.training.pipeline import train

__version__ = "0.1.0"
__all__ = ["ContrastiveClassifier", "RunSpec", "TrainSpec", "__version__", "fit", "load", "train"]

# The package alone needs neither torch nor scikit-learn.
_HOMES = {
    "ContrastiveClassifier": "estimator",
    "RunSpec": "spec",
    "TrainSpec": "spec",
    "fit": "training.loop",
    "load": "estimator",
    "train": "training.pipeline",
}
__getattr__, __dir__ = names_from(__name__, _HOMES)
