"""Calibrate, measure, adapt and combine posterior probabilities: NumPy arrays in, no torch.

SciPy, scikit-learn and matplotlib are imported when a function needs them.
"""

from esupcon.probability.calibration import (
    Calibration,
    CalibrationFigures,
    Priors,
    can_calibrate,
    fit_calibration,
    fit_temperature,
    held_out_calibration,
    measure_calibration,
    paper_calibration,
    smoothed_temperature,
)
from esupcon.probability.conformal import fit_conformal
from esupcon.probability.diagram import reliability_diagram
from esupcon.probability.metrics import (
    Figures,
    SharesFigures,
    accuracy,
    bootstrap_intervals,
    brier_score,
    expected_calibration_error,
    measure,
    measure_for_shares,
    negative_log_likelihood,
    reliability_bins,
)
from esupcon.probability.ood import (
    Mahalanobis,
    energy_score,
    fit_mahalanobis,
    knn_score,
    max_softmax_score,
    prototype_distance_score,
)
from esupcon.probability.predictions import Predictions, log_softmax, softmax
from esupcon.probability.priors import adapt_to_priors, estimate_priors

# fmt: off
__all__ = [
    "Calibration", "CalibrationFigures", "Figures", "Mahalanobis", "Predictions", "Priors", "SharesFigures", "accuracy",
    "adapt_to_priors", "bootstrap_intervals", "brier_score", "can_calibrate", "energy_score", "estimate_priors",
    "expected_calibration_error", "fit_calibration", "fit_conformal", "fit_mahalanobis", "fit_temperature",
    "held_out_calibration", "knn_score", "log_softmax", "max_softmax_score", "measure", "measure_calibration",
    "measure_for_shares", "negative_log_likelihood", "paper_calibration", "prototype_distance_score",
    "reliability_bins", "reliability_diagram", "smoothed_temperature", "softmax",
]
# fmt: on
