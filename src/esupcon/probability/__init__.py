"""Posterior probabilities from stored logits: NumPy and SciPy, no torch; matplotlib only once a diagram is drawn."""

from typing import TYPE_CHECKING, Any

from esupcon.probability.bootstrap import Interval, bootstrap_interval, bootstrap_intervals
from esupcon.probability.calibration import (
    CalibrationReport,
    held_out_calibration,
    paper_calibration,
    stratified_split,
)
from esupcon.probability.combine import Combination, combine_posteriors, fit_combination, fit_weights
from esupcon.probability.conformal import ConformalSets, coverage, fit_conformal, mean_set_size
from esupcon.probability.detection import Detection, auroc, detection_table, format_detection_table, fpr_at_tpr
from esupcon.probability.metrics import (
    accuracy,
    brier_score,
    confusion_matrix,
    negative_log_likelihood,
    per_class_accuracy,
)
from esupcon.probability.ood import (
    Mahalanobis,
    energy_score,
    fit_mahalanobis,
    knn_score,
    max_logit_score,
    max_softmax_score,
    prototype_distance_score,
)
from esupcon.probability.posteriors import log_softmax, softmax
from esupcon.probability.predictions import Predictions
from esupcon.probability.prior_shift import (
    PriorEstimate,
    PriorShiftTest,
    adapt_to_priors,
    class_priors,
    estimate_priors,
    prior_shift_test,
)
from esupcon.probability.reliability import (
    ReliabilityBins,
    adaptive_calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_bins,
)
from esupcon.probability.temperature import fit_temperature
from esupcon.probability.vector_scaling import VectorScaling, fit_vector_scaling

if TYPE_CHECKING:
    from esupcon.probability.diagram import calibration_diagram, reliability_diagram, save_figure

__all__ = [
    "CalibrationReport",
    "Combination",
    "ConformalSets",
    "Detection",
    "Interval",
    "Mahalanobis",
    "Predictions",
    "PriorEstimate",
    "PriorShiftTest",
    "ReliabilityBins",
    "VectorScaling",
    "accuracy",
    "adapt_to_priors",
    "adaptive_calibration_error",
    "auroc",
    "bootstrap_interval",
    "bootstrap_intervals",
    "brier_score",
    "calibration_diagram",
    "class_priors",
    "classwise_calibration_error",
    "combine_posteriors",
    "confusion_matrix",
    "coverage",
    "detection_table",
    "energy_score",
    "estimate_priors",
    "expected_calibration_error",
    "fit_combination",
    "fit_conformal",
    "fit_mahalanobis",
    "fit_temperature",
    "fit_vector_scaling",
    "fit_weights",
    "format_detection_table",
    "fpr_at_tpr",
    "held_out_calibration",
    "knn_score",
    "log_softmax",
    "max_logit_score",
    "max_softmax_score",
    "maximum_calibration_error",
    "mean_set_size",
    "negative_log_likelihood",
    "paper_calibration",
    "per_class_accuracy",
    "prior_shift_test",
    "prototype_distance_score",
    "reliability_bins",
    "reliability_diagram",
    "save_figure",
    "softmax",
    "stratified_split",
]

_NEED_MATPLOTLIB = ("calibration_diagram", "reliability_diagram", "save_figure")


def __getattr__(name: str) -> Any:
    if name not in _NEED_MATPLOTLIB:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from esupcon.probability import diagram  # noqa: PLC0415  # drawing alone is worth matplotlib's import time

    return getattr(diagram, name)
