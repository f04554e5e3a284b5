"""Training: `fit(spec, data) -> Fitted`, for every method, on one loop.

Names are imported when first asked for: a specification is read and hashed without torch.
"""

from typing import TYPE_CHECKING

from esupcon.lazy import names_from

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

__getattr__, __dir__ = names_from(__name__, _HOMES)
