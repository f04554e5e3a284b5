"""Vector scaling: a weight and a bias for each class, drawn towards temperature scaling where data is scarce."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize  # type: ignore[import-untyped]  # SciPy ships no annotations

from esupcon.probability.posteriors import log_softmax
from esupcon.probability.temperature import fit_temperature
from esupcon.probability.validation import FloatArray, as_logits, as_logits_and_labels


@dataclass(frozen=True, eq=False)
class VectorScaling:
    """Logits z become weight ⊙ z + bias; both are (K,)."""

    weight: FloatArray
    bias: FloatArray

    def apply(self, logits: ArrayLike) -> FloatArray:
        """Calibrated logits, (n, K); a masked class (-inf) stays masked."""
        z = as_logits(logits)
        if z.shape[1] != len(self.weight):
            raise ValueError(
                f"this vector scaling was fitted on {len(self.weight)} classes; got logits of shape {z.shape}. "
                "Use logits of the same classifier."
            )
        masked = z == -np.inf
        scaled: FloatArray = np.where(masked, -np.inf, self.weight * np.where(masked, 0.0, z) + self.bias)
        return scaled


def fit_vector_scaling(logits: ArrayLike, labels: ArrayLike, *, ridge: float = 1.0) -> VectorScaling:
    """Minimise  Σ_i -log softmax(w ⊙ z_i / T + b)_{y_i}  +  ridge/2 (‖w - 1‖² + ‖b‖²),  T = fit_temperature.

    The penalty is that of unit Gaussian priors: it fades as samples accumulate, and keeps the answer finite and
    close to plain temperature scaling on separated data and on classes without samples. The problem is convex. The
    result's weight is w / T, so it applies to the logits as they are.
    """
    if not (np.isfinite(ridge) and ridge > 0):
        raise ValueError(f"ridge must be positive and finite; got {ridge}. Without it separated data has no minimum.")
    z, y = as_logits_and_labels(logits, labels)
    temperature = fit_temperature(z, y)
    n, n_classes = z.shape
    rows = np.arange(n)
    one_hot = np.zeros((n, n_classes))
    one_hot[rows, y] = 1.0
    masked = z == -np.inf
    finite = np.where(masked, 0.0, z) / temperature

    def objective(parameters: FloatArray) -> tuple[float, FloatArray]:
        weight, bias = parameters[:n_classes], parameters[n_classes:]
        log_p = log_softmax(np.where(masked, -np.inf, weight * finite + bias))
        residual = np.exp(log_p) - one_hot
        loss = -log_p[rows, y].sum() + ridge / 2 * (((weight - 1) ** 2).sum() + (bias**2).sum())
        slope_weight = (residual * finite).sum(axis=0) + ridge * (weight - 1)
        slope_bias = residual.sum(axis=0) + ridge * bias
        return float(loss) / n, np.concatenate([slope_weight, slope_bias]) / n

    start = np.concatenate([np.ones(n_classes), np.zeros(n_classes)])
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 2000, "gtol": 1e-9})
    return VectorScaling(weight=found.x[:n_classes] / temperature, bias=found.x[n_classes:])
