"""Shim: moved to esupcon.training; to be deleted."""

from typing import TYPE_CHECKING

from esupcon.lazy import names_from

if TYPE_CHECKING:
    from esupcon.spec import TrainSpec
    from esupcon.training import Fitted, TrainData, TrainingFailed, TrainingInterrupted, fit

__all__ = ["Fitted", "TrainData", "TrainSpec", "TrainingFailed", "TrainingInterrupted", "fit"]

_HOMES = dict.fromkeys(("Fitted", "TrainData", "TrainingFailed", "TrainingInterrupted", "fit"), "names")

__getattr__, __dir__ = names_from(__name__, {**_HOMES, "TrainSpec": "spec"})
