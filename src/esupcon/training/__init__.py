"""Training: `fit(spec, data)` for arrays, `train(run_spec, out)` from a data source to a finished folder."""

from typing import TYPE_CHECKING

from esupcon import lazy_names

if TYPE_CHECKING:
    from esupcon.training.batches import TrainData
    from esupcon.training.loop import fit
    from esupcon.training.monitor import TrainingFailed
    from esupcon.training.pipeline import train
    from esupcon.training.result import Result
    from esupcon.training.run import FitOptions, Fitted, TrainingInterrupted

__all__ = ["FitOptions", "Fitted", "Result", "TrainData", "TrainingFailed", "TrainingInterrupted", "fit", "train"]

_HOMES = {
    "FitOptions": "run",
    "Fitted": "run",
    "Result": "result",
    "TrainData": "batches",
    "TrainingFailed": "monitor",
    "TrainingInterrupted": "run",
    "fit": "loop",
    "train": "pipeline",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
