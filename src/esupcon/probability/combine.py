"""One posterior from several classifiers (Kittler, Hatef, Duin and Matas, 1998), calibrated after combination."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize  # type: ignore[import-untyped]  # SciPy ships no annotations

from esupcon.probability.posteriors import log_softmax, softmax
from esupcon.probability.temperature import fit_temperature
from esupcon.probability.validation import FloatArray, IntArray, as_labels, as_priors, as_probabilities

Rule = Literal["product", "sum"]


def combine_posteriors(
    posteriors: Sequence[ArrayLike],
    rule: Rule = "product",
    *,
    weights: ArrayLike | None = None,
    priors: ArrayLike | None = None,
    floor: float = 0.0,
) -> FloatArray:
    """Combine R tables of posteriors (n, K) of the same samples into one.

    "sum":      p_k = Σ_r w_r p_rk,   w rescaled to sum to one; equal weights by default.
    "product":  p_k ∝ priors_k^(1 - Σ_r w_r) Π_r p_rk^w_r,   every w_r = 1 by default.

    With w_r = 1 the product is Kittler's rule for classifiers that see independent evidence, whose posteriors each
    contain the prior once; `priors` are taken as equal unless given. Weights summing to one make it a geometric mean.
    A probability of 0 is a veto in a product, and a row in which every class is vetoed is a ValueError; `floor` lifts
    smaller probabilities to it beforehand.
    """
    tables = _as_tables(posteriors, floor)
    return softmax(_combined_logits(tables, rule, _as_weights(weights, len(tables), rule), priors))


def fit_weights(
    posteriors: Sequence[ArrayLike],
    labels: ArrayLike,
    rule: Rule = "product",
    *,
    priors: ArrayLike | None = None,
    floor: float = 1e-12,
) -> FloatArray:
    """The non-negative weights (R,) under which the combined posteriors make `labels` most likely.

    Both problems are convex. For "sum" the weights sum to one. For "product" they need not: their sum is the
    confidence of the combination, so combinations that are too sure are damped at the same time.
    """
    tables = _as_tables(posteriors, floor)
    y = as_labels(labels, n=tables.shape[1], n_classes=tables.shape[2])
    if rule == "sum":
        return _mixture_weights(tables[:, np.arange(len(y)), y])
    _as_weights(None, len(tables), rule)
    return _exponents(_log(tables), y, _log_prior(priors, tables.shape[2]))


@dataclass(frozen=True, eq=False)
class Combination:
    """A rule with its weights and the temperature that calibrates its result; made by `fit_combination`."""

    rule: Rule
    weights: FloatArray
    temperature: float
    priors: FloatArray | None = None
    floor: float = 0.0

    def apply(self, posteriors: Sequence[ArrayLike]) -> FloatArray:
        """Combined, calibrated posteriors (n, K): softmax(log combined / temperature)."""
        if len(posteriors) != len(self.weights):
            raise ValueError(
                f"this combination was fitted on {len(self.weights)} classifiers; got {len(posteriors)} tables of "
                "posteriors. Pass the same classifiers in the same order."
            )
        logits = _combined_logits(_as_tables(posteriors, self.floor), self.rule, self.weights, self.priors)
        return softmax(logits, self.temperature)


def fit_combination(
    posteriors: Sequence[ArrayLike],
    labels: ArrayLike,
    rule: Rule = "product",
    *,
    weights: ArrayLike | Literal["equal", "fitted"] = "equal",
    priors: ArrayLike | None = None,
    floor: float = 1e-12,
) -> Combination:
    """Combine on samples kept aside, then fit the temperature of the combined posteriors on the same samples.

    The product of overlapping evidence is overconfident and the mean of diverse opinions underconfident, however
    well calibrated the parts are: hence calibration after combination. Calibrate the parts as well: a mean of badly
    calibrated ones can have a shape that no temperature mends.
    """
    tables = _as_tables(posteriors, floor)
    if isinstance(weights, str):
        if weights not in ("equal", "fitted"):
            raise ValueError(f"weights must be 'equal', 'fitted' or one number per classifier; got {weights!r}.")
        chosen = None if weights == "equal" else fit_weights(list(tables), labels, rule, priors=priors, floor=floor)
    else:
        chosen = np.asarray(weights)
    w = _as_weights(chosen, len(tables), rule)
    temperature = fit_temperature(_combined_logits(tables, rule, w, priors), labels)
    kept = None if priors is None else as_priors(priors, n_classes=tables.shape[2], name="priors")
    return Combination(rule=rule, weights=w, temperature=temperature, priors=kept, floor=floor)


def _as_tables(posteriors: Sequence[ArrayLike], floor: float) -> NDArray[np.float64]:
    """(R, n, K), rows normalised."""
    tables = [as_probabilities(table, name=f"posteriors[{r}]") for r, table in enumerate(posteriors)]
    if not tables:
        raise ValueError("combining needs the posteriors of at least one classifier; got none. Pass a list of tables.")
    shapes = {table.shape for table in tables}
    if len(shapes) > 1:
        raise ValueError(
            f"posteriors must all have the same samples and classes; got shapes {sorted(shapes)}. "
            "Predict the same rows with every classifier."
        )
    if not 0.0 <= floor < 0.5:
        raise ValueError(f"floor must lie in [0, 0.5); got {floor}. Something like 1e-12 lifts zeros out of a veto.")
    stacked = np.maximum(np.stack(tables), floor)
    normalised: FloatArray = stacked / stacked.sum(axis=2, keepdims=True)
    return normalised


def _as_weights(weights: ArrayLike | None, n: int, rule: Rule) -> FloatArray:
    if rule not in ("product", "sum"):
        raise ValueError(f"rule must be 'product' or 'sum'; got {rule!r}. See combine_posteriors.")
    w = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != (n,) or not np.isfinite(w).all() or (w < 0).any() or w.sum() == 0:
        raise ValueError(
            f"weights must be {n} non-negative numbers, one per classifier, not all zero; got {w.tolist()}. "
            "Leave them out for equal weights."
        )
    return w / w.sum() if rule == "sum" else w


def _log_prior(priors: ArrayLike | None, n_classes: int) -> FloatArray:
    if priors is None:
        return np.zeros(n_classes)
    checked = as_priors(priors, n_classes=n_classes, name="priors")
    if (checked == 0).any():
        raise ValueError(
            f"priors must be positive in a product; class {int((checked == 0).argmax())} has 0. "
            "Leave classes out that cannot occur."
        )
    logged: FloatArray = np.log(checked)
    return logged


def _combined_logits(tables: NDArray[np.float64], rule: Rule, w: FloatArray, priors: ArrayLike | None) -> FloatArray:
    """The logarithm of the combined posteriors up to a constant per row: long products underflow otherwise."""
    if rule == "product":
        return _log_product(_log(tables), w, _log_prior(priors, tables.shape[2]))
    if priors is not None:
        raise ValueError("priors belong to the product rule; the sum rule has no use for them. Leave them out.")
    mixed: FloatArray = np.tensordot(w, tables, axes=1)
    return _log(mixed)


def _log_product(log_tables: NDArray[np.float64], w: FloatArray, log_prior: FloatArray) -> FloatArray:
    vetoed = ((log_tables == -np.inf) & (w > 0)[:, None, None]).any(axis=0)
    if vetoed.all(axis=1).any():
        row = int(vetoed.all(axis=1).argmax())
        raise ValueError(
            f"the product of row {row} is zero for every class: each is given probability 0 by some classifier. "
            "Calibrate the classifiers first, pass floor=1e-12, or use rule='sum'."
        )
    finite = np.where(log_tables == -np.inf, 0.0, log_tables)
    product = np.tensordot(w, finite, axes=1) + (1.0 - w.sum()) * log_prior
    return np.where(vetoed, -np.inf, product)


def _mixture_weights(of_label: FloatArray) -> FloatArray:
    """argmax_w mean_i log Σ_r w_r of_label[r, i] on the simplex, by expectation maximisation."""
    if (of_label.max(axis=0) == 0).any():
        row = int((of_label.max(axis=0) == 0).argmax())
        raise ValueError(f"every classifier gives the label of row {row} probability 0. Pass floor=1e-12.")
    w = np.full(len(of_label), 1.0 / len(of_label))
    for _ in range(10_000):
        gain = (of_label / (w @ of_label)).mean(axis=1)
        if np.log(gain.max()) <= 1e-9:  # the bound on what is left to gain
            break
        w = w * gain / (w @ gain)
    return w


def _exponents(log_tables: NDArray[np.float64], y: IntArray, log_prior: FloatArray) -> FloatArray:
    """argmin over w >= 0 of the mean negative log likelihood of the weighted product; convex in w."""
    if not np.isfinite(log_tables).all():
        raise ValueError("fitting the weights of a product needs positive probabilities; some are 0. Pass floor=1e-12.")
    rows = np.arange(len(y))
    features = log_tables - log_prior  # log-odds against the prior: the product is log_prior + Σ_r w_r feature_r

    def objective(w: FloatArray) -> tuple[float, FloatArray]:
        log_p = log_softmax(np.tensordot(w, features, axes=1) + log_prior)
        expected = np.einsum("nk,rnk->r", np.exp(log_p), features)
        slope = (expected - features[:, rows, y].sum(axis=1)) / len(y)
        return float(-log_p[rows, y].mean()), slope

    n = len(features)
    # Separated data has no finite optimum: past a hundredfold, nothing is gained but overconfidence.
    found = minimize(objective, np.full(n, 1.0 / n), jac=True, method="L-BFGS-B", bounds=[(0.0, 100.0)] * n)
    fitted: FloatArray = found.x
    if fitted.sum() == 0:
        raise ValueError("no classifier helps to tell these labels: every fitted weight is 0. Check the label order.")
    return fitted


def _log(probabilities: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):  # log 0 is -inf, a masked class
        logged: FloatArray = np.log(probabilities)
    return logged
