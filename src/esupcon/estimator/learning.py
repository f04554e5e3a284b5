"""What `fit` and `partial_fit` do to an estimator."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor, nn

from esupcon.engine import Fitted, TrainData
from esupcon.engine import fit as train
from esupcon.estimator.calibration import draw_held_out, folds, smoothed_temperature
from esupcon.estimator.inference import outputs
from esupcon.estimator.inputs import Form, TableForm, holds_images, images_form
from esupcon.estimator.insight import Examples, unit
from esupcon.estimator.labels import as_labels, class_array, codes_of, distinct
from esupcon.estimator.priors import posterior_weights, set_priors
from esupcon.estimator.settings import train_spec

__all__ = ["fit", "partial_fit"]

#: Fewer held-out samples make a poor thermometer: then every sample serves, by cross-fitting, for four times the work.
#: From the 38 that breast cancer's 379 rows can spare came temperatures of 2 to 3 where all the rows say 1.5, and a
#: calibration error of 4.0 % where cross-fitting leaves 0.6.
FEWEST_HELD_OUT = 100
FOLDS = 3
#: Below this nothing can be spared, and the probabilities stay as training leaves them.
FEWEST_TO_CALIBRATE = 20

Rows = NDArray[Any]
Codes = NDArray[np.int64]


def fit(estimator: Any, X: Any, y: Any, *, keep: bool) -> None:
    """Learn everything, or with `keep` go on from the last fit: same classes, same form of X."""
    if keep:
        rows, form = estimator._rows(X), estimator.form_
        labels = as_labels(y, rows)
        classes = distinct(labels)
        if classes.tolist() != estimator.classes_.tolist():
            raise ValueError(
                "warm_start can only be used where `self.classes_` is the same as in the previous call to fit. "
                f"Previously got {estimator.classes_}, `y` has {classes}."
            )
    else:
        rows, form = _learn_form(estimator, X)
        labels = as_labels(y, rows)
        classes = distinct(labels)
    if len(classes) < 2:
        raise ValueError(
            "ContrastiveClassifier needs samples of at least 2 classes in the data, but the data contains only one "
            f"class: {classes.tolist()[0]!r}."
        )
    codes = codes_of(labels, classes)
    weights = posterior_weights(estimator.class_weight, classes)
    seed = _seed(estimator)
    initial = estimator.network_.state_dict() if keep else None
    run = _Training(estimator, form, rows, codes, len(classes), seed, initial)
    fitted, calibration, temperature = run.calibrated()

    estimator.classes_, estimator.form_, estimator.class_weight_ = classes, form, weights
    _take(estimator, fitted)
    estimator.calibration_, estimator.calibration_temperature_ = calibration, temperature
    set_priors(estimator, np.bincount(codes, minlength=len(classes)))
    z = outputs(estimator.network_, form, rows)[0]
    estimator.examples_ = Examples(unit(z).astype(np.float32), codes)


def partial_fit(estimator: Any, X: Any, y: Any, classes: Any) -> None:
    """One pass over these samples; the moments of a table's columns are kept up to date on the way."""
    first = not hasattr(estimator, "network_")
    if first:
        if classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        rows, form = _learn_form(estimator, X, fewest=1)
    else:
        rows, form = estimator._rows(X), estimator.form_
    labels = as_labels(y, rows)
    if classes is not None:
        known = class_array(np.asarray(classes).tolist() if isinstance(classes, np.ndarray) else classes)
        if not first and known.tolist() != estimator.classes_.tolist():
            raise ValueError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: {estimator.classes_!r}"
            )
    known = known if first else estimator.classes_
    codes = codes_of(labels, known)
    weights = posterior_weights(estimator.class_weight, known)
    if len(rows) == 1:  # a batch is two samples or more
        rows, codes = np.repeat(rows, 2, axis=0), np.repeat(codes, 2)
    if not first and isinstance(form, TableForm):
        form.update(rows)
    initial = None if first else estimator.network_.state_dict()
    counts = np.bincount(codes, minlength=len(known)) + (0 if first else estimator._class_counts)
    run = _Training(estimator, form, rows, codes, len(known), _seed(estimator, int(counts.sum())), initial)
    fitted = run.train(np.ones(len(rows), bool), epochs=1)
    estimator.classes_, estimator.form_, estimator.class_weight_ = known, form, weights
    _take(estimator, fitted, more=not first)
    estimator.calibration_, estimator.calibration_temperature_ = "none", 1.0
    estimator.examples_ = None
    set_priors(estimator, counts)


class _Training:
    """Runs of the engine on parts of the same rows."""

    def __init__(
        self,
        estimator: Any,
        form: Form,
        rows: Rows,
        codes: Codes,
        n_classes: int,
        seed: int,
        initial: Mapping[str, Tensor] | None,
    ) -> None:
        self.parameters: dict[str, Any] = estimator.get_params(deep=False)
        if initial is not None:
            self.parameters["encoder"] = _same_architecture(estimator)
        self.form, self.codes, self.n_classes, self.seed, self.initial = form, codes, n_classes, seed, initial
        self.rows, self.x = rows, form.for_training(rows)

    def calibrated(self) -> tuple[Fitted, str, float]:
        """The trained network, how its temperature was found, and the temperature."""
        calibrate, fraction = self.parameters["calibrate"], self.parameters["validation_fraction"]
        rng = np.random.default_rng(self.seed)
        everything = np.ones(len(self.x), bool)
        held = draw_held_out(self.codes, fraction, rng)
        enough = held.sum() >= FEWEST_HELD_OUT
        if self.parameters["early_stopping"] and held.any():
            fitted = self.train(~held, held=held)
            return self._on_held_out(fitted, held) if calibrate else (fitted, "none", 1.0)
        if calibrate and enough:
            return self._on_held_out(self.train(~held), held)
        fitted = self.train(everything)
        if calibrate and len(self.x) >= FEWEST_TO_CALIBRATE:
            logits, tested = self._cross_fitted(folds(self.codes, FOLDS, rng))
            if tested.any():
                return fitted, "cross-fitted", self._temperature(logits[tested], self.codes[tested])
        return fitted, "none", 1.0

    def train(
        self, part: NDArray[np.bool_], *, held: NDArray[np.bool_] | None = None, epochs: int | None = None
    ) -> Fitted:
        encoder, verbose = self.parameters["encoder"], self.parameters["verbose"]
        data = TrainData(
            self.x[part],
            self.codes[part],
            self.n_classes,
            None if held is None else self.x[held],
            None if held is None else self.codes[held],
        )
        spec = train_spec(
            self.parameters, n=len(data.x), is_table=isinstance(self.form, TableForm), seed=self.seed, epochs=epochs
        )
        return train(
            spec,
            data,
            encoder=copy.deepcopy(encoder) if isinstance(encoder, nn.Module) else None,
            initial=self.initial,
            accelerator=self.parameters["device"],
            log=(lambda line: print(line, file=sys.stderr)) if verbose else lambda line: None,
            progress=bool(verbose),
        )

    def _on_held_out(self, fitted: Fitted, held: NDArray[np.bool_]) -> tuple[Fitted, str, float]:
        logits = outputs(fitted.network, self.form, self.rows[held])[1]
        return fitted, "held-out", self._temperature(logits, self.codes[held])

    def _cross_fitted(self, fold: Codes) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Logits of every sample from a network that was trained without it."""
        logits, tested = np.zeros((len(self.x), self.n_classes)), fold >= 0
        for number in range(FOLDS):
            test = fold == number
            if test.any() and (~test).sum() >= 2:
                network = self.train(~test).network
                logits[test] = outputs(network, self.form, self.rows[test])[1]
        return logits, tested

    def _temperature(self, logits: NDArray[np.float64], codes: Codes) -> float:
        return smoothed_temperature(logits, codes, balance=self.parameters["class_weight"] == "balanced")


def _learn_form(estimator: Any, X: Any, *, fewest: int = 2) -> tuple[Rows, Form]:
    if holds_images(X):
        for name in ("n_features_in_", "feature_names_in_"):  # of a table that was fitted before
            estimator.__dict__.pop(name, None)
        form, images = images_form(X, estimator.image_size)
        return images, form
    rows = validate_data(estimator, X, dtype=np.float64, ensure_min_samples=fewest)
    return rows, TableForm.of(rows, standardise=estimator.encoder != "identity")


def _same_architecture(estimator: Any) -> str | nn.Module:
    """The encoder to go on with, which "auto" might not choose again for other data."""
    before, encoder = estimator.spec_, estimator.encoder
    if isinstance(encoder, nn.Module):
        return encoder
    if estimator.method != before.method or encoder not in ("auto", before.encoder):
        raise ValueError(
            f"training can only go on with the method and encoder it began with, {before.method!r} and "
            f"{before.encoder!r}; they are {estimator.method!r} and {encoder!r} now. Fit with warm_start=False."
        )
    return str(before.encoder)


def _seed(estimator: Any, place: int | None = None) -> int:
    """Of a whole run, or of the instalment that begins after `place` samples, which must not repeat the last one's."""
    drawn = int(check_random_state(estimator.random_state).randint(np.iinfo(np.int32).max))
    return drawn if place is None else int(np.random.SeedSequence([drawn, place]).generate_state(1)[0])


def _take(estimator: Any, fitted: Fitted, *, more: bool = False) -> None:
    named = not isinstance(estimator.encoder, nn.Module)
    network = fitted.network
    if named and isinstance(estimator.form_, TableForm):
        # Rows of a table are cheap: in float64 an answer does not depend on what else is asked in the same call.
        network = network.double()
    estimator.network_ = network
    estimator.spec_ = fitted.spec
    estimator.findings_ = fitted.findings
    estimator.history_ = [*(estimator.history_ if more else []), *fitted.history]
    estimator.n_iter_ = len(estimator.history_)
