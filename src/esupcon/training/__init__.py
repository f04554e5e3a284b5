"""Training: `fit(spec, data)` for arrays, `train(run_spec, out)` from a data source to a finished folder."""

from typing import TYPE_CHECKING

from esupcon.lazy import names_from

if TYPE_CHECKING:
    from esupcon.training.batches import TrainData
    from esupcon.training.loop import fit
    from esupcon.training.monitor import TrainingFailed
    from esupcon.training.run import FitOptions, Fitted, TrainingInterrupted

__all__ = ["FitOptions", "Fitted", "TrainData", "TrainingFailed", "TrainingInterrupted", "fit"]

_HOMES = {
    "FitOptions": "run",
    "Fitted": "run",
    "TrainData": "batches",
    "TrainingFailed": "monitor",
    "TrainingInterrupted": "run",
    "fit": "loop",
}

__getattr__, __dir__ = names_from(__name__, _HOMES)
