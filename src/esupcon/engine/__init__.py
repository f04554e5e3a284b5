"""Training: `fit(spec, data) -> Fitted`, for every method, on one loop.

Names are imported when first asked for: a specification is read and hashed without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esupcon.engine.data import TrainData
    from esupcon.engine.fitting import Fitted, fit
    from esupcon.engine.run import TrainingFailed, TrainingInterrupted
    from esupcon.engine.spec import TrainSpec

__all__ = ["Fitted", "TrainData", "TrainSpec", "TrainingFailed", "TrainingInterrupted", "fit"]

_HOMES = {
    "Fitted": "fitting",
    "TrainData": "data",
    "TrainSpec": "spec",
    "TrainingFailed": "run",
    "TrainingInterrupted": "run",
    "fit": "fitting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
