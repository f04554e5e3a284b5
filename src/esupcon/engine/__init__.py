"""Training: `fit(spec, data) -> Fitted`, for every method, on one loop."""

from esupcon.engine.data import TrainData
from esupcon.engine.fitting import Fitted, fit
from esupcon.engine.run import TrainingFailed, TrainingInterrupted
from esupcon.engine.spec import TrainSpec

__all__ = ["Fitted", "TrainData", "TrainSpec", "TrainingFailed", "TrainingInterrupted", "fit"]
