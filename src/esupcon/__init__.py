"""Supervised contrastive classification: one objective for the embedding and its classifier."""

from typing import TYPE_CHECKING

from esupcon.lazy import names_from

if TYPE_CHECKING:
    from esupcon.estimator import ContrastiveClassifier, load

__version__ = "0.1.0"
__all__ = ["ContrastiveClassifier", "__version__", "load"]

# The package alone needs neither torch nor scikit-learn.
__getattr__, __dir__ = names_from(__name__, {"ContrastiveClassifier": "estimator", "load": "estimator"})
