"""The words for what `Watch` sees."""

from __future__ import annotations

import math

from esupcon.doctor.finding import Finding, Severity, percent
from esupcon.doctor.loss_curve import LossCurve
from esupcon.doctor.setting import Setting
from esupcon.doctor.yardstick import Yardstick, best_posterior, temperature_for


def loss_not_finite(
    loss: float, step: int, lr: float, first: float | None, recent: list[float], *, risen: bool
) -> Finding:
    seen = "it was the first" if first is None else f"the first was {first:.4g}, the last finite one {recent[-1]:.4g}"
    lower = f"ower the learning rate to {lr / 10:.2g}"
    remedy = (
        f"The loss had been growing: l{lower}, or lengthen the warm-up."
        if risen
        else f"Look for NaN in the data, train in full precision (precision 32), and l{lower}."
    )
    return Finding(
        "loss-not-finite",
        "error",
        f"the loss became {loss} at step {step:,}, at learning rate {lr:.3g} ({seen}): every weight it reaches becomes "
        "NaN as well.",
        remedy,
    )


def epoch_not_finite(loss: float, n_bad: int, n: int, epoch: int) -> Finding:
    return Finding(
        "loss-not-finite",
        "error",
        f"at the end of epoch {epoch + 1} the mean loss is {loss:.4g} and {n_bad} of {n} embeddings hold NaN or "
        "infinite values.",
        "Go back to the last good checkpoint; lower the learning rate, and look for NaN in the data.",
    )


def lr_too_high(curve: LossCurve, lr: float, swing: float | None) -> Finding:
    now = max(curve.now, curve.recent[-1]) if swing is None else curve.now
    how = (
        f"the loss rose from {curve.first:.4g} to {now:.4g} within {curve.steps:,} steps"
        if swing is None
        else f"after {curve.steps:,} steps the loss swings by {swing:.3g} from step to step, around {now:.4g} (the "
        f"first was {curve.first:.4g})"
    )
    return Finding(
        "lr-too-high",
        "warning",
        f"{how}, at learning rate {lr:.3g}: steps are so long that they undo what was learnt.",
        f"Lower the learning rate to {lr / 10:.2g}, or lengthen the warm-up.",
    )


def collapse(
    curve: LossCurve,
    lr: float,
    marks: Yardstick,
    setting: Setting,
    cosine: float | None,
    *,
    by_loss: bool,
    cold: bool,
) -> Finding:
    signs = []
    if cosine is not None:
        signs.append(f"the mean cosine between samples is {cosine:.4f} (1: all alike)")
    if by_loss:
        formula = f", log(n - 1) for {setting.n_rows} rows" if set(setting.losses) == {"supcon"} else ""
        signs.append(
            f"the loss stays at {curve.now:.4g}, where an embedding that tells nothing apart has "
            f"{marks.collapsed:.4g}{formula}"
        )
    first_remedy = (
        f"Raise the temperature (now {setting.temperature:g}) to {temperature_for(setting.n_classes):.2g}"
        if cold
        else f"Lower the learning rate (now {lr:.3g}) to {lr / 10:.2g} and lengthen the warm-up"
    )
    return Finding(
        "collapse",
        "warning",
        f"the embedding has collapsed: after {curve.steps:,} steps {', and '.join(signs)}.",
        f"{first_remedy}; check that labels belong to their images and that augmented images can still be recognised.",
    )


def dimensional_collapse(rank: float, n_classes: int, dim: int) -> Finding:
    return Finding(
        "dimensional-collapse",
        "note",
        f"the embedding spreads in about {rank:.1f} of its {dim} directions; to keep {n_classes} classes evenly apart "
        f"takes {n_classes - 1}.",
        "Train longer or with a lower learning rate, and weaken augmentation that hides what tells classes apart.",
    )


def stuck(curve: LossCurve, n_steps: int, lr: float, marks: Yardstick, accuracy: float | None) -> Finding:
    at = "" if accuracy is None else f"; accuracy is {percent(accuracy)}"
    return Finding(
        "stuck",
        "warning",
        f"nothing was learnt in the last {curve.idle:,} of {curve.steps:,} steps ({n_steps:,} planned): the loss stays "
        f"at {curve.now:.4g}, where an embedding that tells nothing apart has {marks.collapsed:.4g} and a perfect one "
        f"{marks.best:.4g}{at}.",
        f"Try a learning rate of {lr * 10:.2g} instead of {lr:.3g} or, where that diverges, of {lr / 10:.2g}; check "
        "that labels belong to their images and that the encoder is not frozen.",
    )


def temperature_too_low_at_start(setting: Setting, marks: Yardstick, loss: float) -> Finding:
    return _too_low(
        setting,
        f"the loss begins at {loss:.4g}, where an embedding that tells nothing apart has {marks.collapsed:.4g}",
    )


def temperature_too_low(setting: Setting, sure: float, accuracy: float) -> Finding:
    return _too_low(
        setting, f"half of the answers are more than {100 * sure:g} % sure while {percent(accuracy)} are right"
    )


def _too_low(setting: Setting, sign: str) -> Finding:
    return Finding(
        "temperature-too-low",
        "warning",
        f"temperature {setting.temperature:g} saturates the softmax: a difference of "
        f"{setting.temperature * math.log(999):.2g} between cosines already weighs 999 to 1, and {sign}.",
        f"Raise the temperature to about {temperature_for(setting.n_classes):.2g}.",
    )


def temperature_too_high(setting: Setting, marks: Yardstick, severity: Severity) -> Finding:
    assert marks.reach is not None
    posterior = best_posterior(setting.n_classes, setting.temperature)
    return Finding(
        "temperature-too-high",
        severity,
        f"temperature {setting.temperature:g} flattens the softmax: the loss can fall from {marks.collapsed:.4g} to "
        f"{marks.best:.4g} at best, {percent(marks.reach)} of what a sharp softmax has to win, and cosine logits give "
        f"the right one of {setting.n_classes} classes a probability of {posterior:.2g} at most.",
        f"Lower the temperature to about {temperature_for(setting.n_classes):.2g}.",
    )


def overfitting(train: float, held_out: float, epoch: int) -> Finding:
    return Finding(
        "overfitting",
        "note",
        f"{percent(train)} of the training samples but {percent(held_out)} of the held-out ones are classified "
        f"correctly at the end of epoch {epoch + 1}.",
        "Judge by the held-out samples; more data, stronger augmentation or fewer epochs narrow the gap.",
    )
