"""Shim: moved to esupcon.training; to be deleted."""

from esupcon.training import Fitted, TrainData, TrainingFailed, TrainingInterrupted, fit

__all__ = ["Fitted", "TrainData", "TrainingFailed", "TrainingInterrupted", "fit"]
