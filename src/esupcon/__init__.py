"""Supervised contrastive classification: one objective for the embedding and its classifier."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esupcon.estimator import ContrastiveClassifier, load
    from esupcon.spec import RunSpec, TrainSpec
    from esupcon.training.loop import fit
    from esupcon.training.pipeline import train

__version__ = "0.2.0.dev0"
__all__ = ["ContrastiveClassifier", "RunSpec", "TrainSpec", "__version__", "fit", "load", "train"]


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that imports its names, by module in `homes`, at first use.

    A name without a module is a module itself.

    So `import esupcon` needs neither torch nor scikit-learn.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:  # a module, which the import makes an attribute of its package
            return import_module(f"{package}.{name}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *homes})


_HOMES = {
    **dict.fromkeys(("classifier", "data", "functional", "heads", "losses", "methods", "probability", "report"), ""),
    "ContrastiveClassifier": "estimator",
    "RunSpec": "spec",
    "TrainSpec": "spec",
    "fit": "training.loop",
    "load": "estimator",
    "train": "training.pipeline",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
