"""Two marks to read a loss by: what the best embedding would reach, and what one that tells nothing apart has.

The best embedding puts every class on one point and the K points as far apart as they go, at the corners of a
simplex: cosine 1 within a class, -1/(K-1) between classes. With temperature t a pair of different classes then
weighs r = exp(-K/((K-1) t)) against one of the same class. The worst one worth naming has all samples on one point,
the prototypes there too. For n rows, K classes of which K_b are in a batch, m_i positives of row i:

    loss        best                                        collapsed
    supcon      mean_i log(m_i + (n-1-m_i) r)               log(n-1)
    spce        log(1 + (K_b-1) r)                          log K_b
    ce          log(1 + (K-1) r), or 0 for a linear head    entropy of the class shares
    tightness   -1                                          -1
    esupcon     (w K_b l + n best_supcon) / (n+K)           (w K_b log(n-1+K) + n log(n-1)) / (n+K)
                with l = log(1 + m + (n-1-m+K-1) r)

m_i and K_b are taken at their expectation, and classes of unequal size as if they were corners of the simplex too:
marks to judge by, not bounds to prove. For balanced batches they are exact; only esupcon, whose prototype term pushes
the samples of a class a little apart, can be better than its best, by less than a thousandth of the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from esupcon.doctor.batches import absent_share
from esupcon.doctor.setting import CONTRASTIVE, Setting
from esupcon.probability.validation import FloatArray


@dataclass(frozen=True)
class Yardstick:
    best: float
    collapsed: float
    unsettled: float  # what prototypes that have not yet moved may add to `collapsed`
    contrastive: bool  # a collapsed embedding, and hardly anything else, gives the value `collapsed`
    reach: float | None  # (collapsed - best) over the same at temperature 0; None where no temperature takes part

    @property
    def span(self) -> float:
        return self.collapsed - self.best


def yardstick(setting: Setting) -> Yardstick:
    best, collapsed, unsettled = _marks(setting, setting.temperature)
    sharp_best, *_ = _marks(setting, 0.0)
    reach = (collapsed - best) / (collapsed - sharp_best) if collapsed - sharp_best > 1e-9 else None
    contrastive = any(name in CONTRASTIVE for name in setting.losses)
    return Yardstick(best, collapsed, unsettled, contrastive, reach if setting.has_temperature else None)


def best_posterior(n_classes: int, temperature: float) -> float:
    """The probability that a perfect embedding gives to the right class: 1 / (1 + (K-1) r)."""
    return 1 / (1 + (n_classes - 1) * _apart(n_classes, temperature))


def temperature_for(n_classes: int, posterior: float = 0.99) -> float:
    """The temperature at which `best_posterior` is this: t = K / ((K-1) log((K-1) p / (1-p)))."""
    assert n_classes > 1, "one class has no probability to reach"
    odds = (n_classes - 1) * posterior / (1 - posterior)
    return n_classes / ((n_classes - 1) * math.log(odds))


def _apart(n_classes: int, temperature: float) -> float:
    """r: what a pair of different classes weighs against one of the same, in the best embedding."""
    if n_classes < 2 or temperature == 0:
        return 0.0
    return math.exp(-n_classes / ((n_classes - 1) * temperature))


def _marks(setting: Setting, temperature: float) -> tuple[float, float, float]:
    """best, collapsed and unsettled of the weighted sum of losses."""
    marks = [
        np.multiply(weight, _MARKS[name](setting, temperature)) for name, weight in setting.losses.items() if weight
    ]
    best, collapsed, unsettled = np.sum(marks, axis=0) if marks else (0.0, 0.0, 0.0)
    return float(best), float(collapsed), float(unsettled)


def _positives(setting: Setting) -> FloatArray:
    """m_i expected for a row of each class: its image's other views, and all views of its class's other images."""
    shares = setting.class_shares
    if setting.class_counts is not None:
        n = int(setting.class_counts.sum())
        counts = setting.class_counts[setting.class_counts > 0]
        shares = (counts - 1) / max(1, n - 1)
    positives: FloatArray = setting.n_views - 1 + setting.n_views * (setting.n_batch - 1) * shares
    return positives


def _present(setting: Setting) -> float:
    if setting.n_classes == 1:
        return 1.0
    if setting.class_counts is None:
        return setting.n_classes * -math.expm1(setting.n_batch * math.log1p(-1 / setting.n_classes))
    batch = min(setting.n_batch, int(setting.class_counts.sum()))
    return float(np.count_nonzero(setting.class_counts)) * (1 - absent_share(setting.class_counts, batch))


def _supcon(setting: Setting, temperature: float) -> tuple[float, float, float]:
    n, m, r = setting.n_rows, _positives(setting), _apart(setting.n_classes, temperature)
    # A class whose rows expect less than one positive has, where it takes part at all, one.
    m = np.clip(m, 1, n - 1)
    return float(setting.class_shares @ np.log(m + (n - 1 - m) * r)), math.log(n - 1), 0.0


def _esupcon(setting: Setting, temperature: float) -> tuple[float, float, float]:
    n, K, present = setting.n_rows, setting.n_classes, setting.prototype_weight * _present(setting)
    m, r = _positives(setting), _apart(setting.n_classes, temperature)
    prototype = float(np.mean(np.log(1 + m + (n - 1 - m + K - 1) * r)))
    best, collapsed, _ = _supcon(setting, temperature)
    return (
        (present * prototype + n * best) / (n + K),
        (present * math.log(n - 1 + K) + n * collapsed) / (n + K),
        present / (n + K) / setting.temperature,
    )


def _spce(setting: Setting, temperature: float) -> tuple[float, float, float]:
    K, shares = setting.n_classes, setting.class_shares
    if setting.spce_average == "class":
        present = max(1.0, _present(setting))
        return math.log1p((present - 1) * _apart(K, temperature)), math.log(present), 0.0
    # The sum over a class is divided by the batch: logits are smaller by the share of the class.
    logits = shares / setting.temperature
    collapsed = np.log(np.exp(logits - logits.max()).sum()) + logits.max() - shares @ logits
    best = math.log1p((K - 1) * _apart(K, temperature * K)) if K > 1 else 0.0
    return best, max(float(collapsed), best), 0.0


def _cross_entropy(setting: Setting, temperature: float) -> tuple[float, float, float]:
    K, shares = setting.n_classes, setting.class_shares
    best = 0.0 if setting.head == "linear" else math.log1p((K - 1) * _apart(K, temperature))
    return best, float(-(shares @ np.log(shares))), 0.0


def _tightness(_: Setting, __: float) -> tuple[float, float, float]:
    return -1.0, -1.0, 1.0


_MARKS = {"supcon": _supcon, "spce": _spce, "esupcon": _esupcon, "ce": _cross_entropy, "tightness": _tightness}
