"""Supervised contrastive classification: one objective for the embedding and its classifier."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esupcon.estimator import ContrastiveClassifier, load

__version__ = "0.1.0"
__all__ = ["ContrastiveClassifier", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """The estimator is imported when first asked for: the package alone needs neither torch nor scikit-learn."""
    if name not in ("ContrastiveClassifier", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("esupcon.estimator"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
