"""`ContrastiveClassifier`, which follows scikit-learn's contract, and `load`."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from esupcon._console import say
from esupcon._io import first_error
from esupcon._split import stratified_split
from esupcon.classifier.classifier import (
    Classifier,
    Codes,
    Explanation,
    Floats,
    LabelIssues,
    as_labels,
    codes_of,
)
from esupcon.classifier.folder import CUSTOM, ModelInfo, load_classifier
from esupcon.classifier.preprocessing import ImagePreprocessing, Preprocessing, Rows, TablePreprocessing, holds_images
from esupcon.data.augmentations import AUGMENTATIONS
from esupcon.methods import METHODS
from esupcon.models import resolve_encoder
from esupcon.probability import Calibration, Priors, fit_calibration
from esupcon.probability.calibration import FEW_SAMPLES
from esupcon.recipes import Recipe, photo_side, recommend
from esupcon.spec import RunSpec, TrainSpec
from esupcon.training import Fitted, TrainData, fit
from esupcon.training.estimate import announce

__all__ = ["ContrastiveClassifier", "Explanation", "LabelIssues", "load"]

#: Parameters that are training settings of the same name. None: as recommended for the data.
_SETTINGS = (
    *("method", "pretrained", "temperature", "prototype_weight", "epochs", "batch_size", "lr", "optimizer"),
    *("weight_decay", "augmentation", "precision"),
)


class ContrastiveClassifier(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no annotations
    """A classifier whose embedding and class prototypes are trained together by a supervised contrastive loss.

    Network and settings are chosen for the data, as far as they are not given, and probabilities are calibrated.

    Parameters
    ----------
    method : str, default="esupcon"
        Training method: ce, supcon_ce, supcon_ce_n, supcon_tt, spce, spce_m, esupcon, supcon_cosine_ce, or your own.
    encoder : str or nn.Module, default="auto"
        A name (`fast`, `efficientnet-lite0`, `resnet18`, `resnet10-w32`, `mlp-256x2`, `identity`, `timm:NAME`), or a
        module that maps a batch to (n, dim). A module is copied, and training starts from its weights.
    pretrained : bool, default=True
        Start from pretrained weights if the encoder has some; False: from random ones.
    kind : {"auto", "embeddings"}, default="auto"
        Pass "embeddings" for rows that a network has computed: a linear map of them is learnt.
    temperature : float, default=None
        Divides every cosine similarity in training. This and all following settings that are None are chosen for the
        data; `recipe_` shows them.
    prototype_weight : float, default=None
        Weight of the prototype term in the esupcon loss, as in the paper.
    epochs : int, default=None
        Passes over the data.
    batch_size, lr, optimizer, weight_decay : int, float, {"adamw", "sgd", "muon"}, float, default=None
        Settings of the optimiser.
    augmentation : str, default="auto"
        Name of the augmentation that makes the views.
    label_noise : {"auto"}, float or None, default="auto"
        Share of the labels that are wrong, from 0 to 1; None for none. "auto" estimates it for images with five classes
        or more, and changes nothing below 12 %. If labels are wrong, training relies on what the network and the
        neighbours of a sample believe early on.
    class_weight : {"balanced"} or dict, default=None
        "balanced" draws every class equally often in training. A dict {label: weight} multiplies the posterior of a
        class by its weight, which is what training with weighted samples converges to.
    priors : {"training", "balanced"} or dict, default="training"
        Class shares that predictions are for: those that training gave (of the samples; equal ones with
        ``class_weight="balanced"``; halfway between both with ESupCon's mean contrast), equal ones, or {label: share}.
    auto_calibrate : bool, default=True
        Fit a temperature for `predict_proba` on samples held out from training.
    validation_fraction : float, default=0.1
        Share held out for calibration and early stopping. If it is too small to calibrate on, all samples are trained
        on and the temperature is cross-fitted.
    early_stopping : bool, default=False
        Stop after `patience` epochs without better held-out accuracy, and keep the best weights.
    patience : int, default=10
        Epochs without improvement before training stops early.
    image_size : int or (int, int), default=None
        Side, or height and width, that image files are decoded to; None: chosen from the files.
    precision : {"auto", "32", "bf16"}, default="auto"
        Number format of training; "bf16" is mixed precision.
    device : str, default="auto"
        Where to train: "auto", "cpu", "cuda" or "mps". Predictions are made on the CPU.
    warm_start : bool, default=False
        Whether `fit` continues from the last fit.
    verbose : int, default=0
        1 shows the estimated time, progress and findings.
    random_state : int, RandomState or None, default=None
        An int makes fits identical.

    Attributes
    ----------
    classes_ : array of shape (K,)
        Labels, in the order of the columns of `predict_proba`.
    classifier_ : Classifier
        Makes all predictions: network, preprocessing, calibration, training examples.
    prototypes_ : array of shape (K, d) or None
        Unit vectors in the space of `transform`; None for methods with a linear head.
    calibration_ : {"held-out", "cross-fitted", "given", "none"}
        How the temperature was found.
    calibration_temperature_ : float
        Divides the logits in `predict_proba`.
    priors_, target_priors_ : array of shape (K,), array or None
        Class shares that training gave, and those that probabilities are for if they differ.
    recipe_ : Recipe
        Settings of the last fit; print it to see the reason for each.
    history_, findings_ : list of dict, list of Finding
        A record of each epoch, and the findings of the doctor.
    n_iter_ : int
        Number of epochs trained.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from esupcon import ContrastiveClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> classifier = ContrastiveClassifier(epochs=5, random_state=0).fit(X[:300], y[:300])
    >>> classifier.predict_proba(X[300:]).shape
    (1497, 10)
    >>> classifier.score(X[300:], y[300:]) > 0.7
    True
    """

    classifier_: Classifier

    _parameter_constraints = {  # noqa: RUF012 - scikit-learn's name and form
        "method": [StrOptions(METHODS.keys())],  # a view: methods registered later are included
        "encoder": [str, nn.Module],
        "pretrained": ["boolean"],
        "kind": [StrOptions({"auto", "embeddings"})],
        "temperature": [Interval(Real, 0, None, closed="neither"), None],
        "prototype_weight": [Interval(Real, 0, None, closed="left"), None],
        "epochs": [Interval(Integral, 1, None, closed="left"), None],
        "batch_size": [Interval(Integral, 2, None, closed="left"), None],
        "lr": [Interval(Real, 0, None, closed="neither"), None],
        "optimizer": [StrOptions({"adamw", "sgd", "muon"}), None],
        "weight_decay": [Interval(Real, 0, None, closed="left"), None],
        "augmentation": [StrOptions({"auto", *AUGMENTATIONS})],
        "label_noise": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="left"), None],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "priors": [StrOptions({"training", "balanced"}), dict],
        "auto_calibrate": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "early_stopping": ["boolean"],
        "patience": [Interval(Integral, 1, None, closed="left")],
        "image_size": [Interval(Integral, 1, None, closed="left"), tuple, None],
        "precision": [StrOptions({"auto", "32", "bf16"})],
        "device": [str],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        method: str = "esupcon",
        *,
        encoder: str | nn.Module = "auto",
        pretrained: bool = True,
        kind: str = "auto",
        temperature: float | None = None,
        prototype_weight: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        optimizer: str | None = None,
        weight_decay: float | None = None,
        augmentation: str = "auto",
        label_noise: str | float | None = "auto",
        class_weight: str | Mapping[Any, float] | None = None,
        priors: Priors = "training",
        auto_calibrate: bool = True,
        validation_fraction: float = 0.1,
        early_stopping: bool = False,
        patience: int = 10,
        image_size: int | tuple[int, int] | None = None,
        precision: str = "auto",
        device: str = "auto",
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.method = method
        self.encoder = encoder
        self.pretrained = pretrained
        self.kind = kind
        self.temperature = temperature
        self.prototype_weight = prototype_weight
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.augmentation = augmentation
        self.label_noise = label_noise
        self.class_weight = class_weight
        self.priors = priors
        self.auto_calibrate = auto_calibrate
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.patience = patience
        self.image_size = image_size
        self.precision = precision
        self.device = device
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    # --- Training ----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Train, then calibrate.

        Parameters
        ----------
        X : array, data frame or list
            A table (n, d), standardised inside; images (n, H, W), (n, H, W, C) or (n, C, H, W) of any range; PIL images
            or paths of image files; or embeddings (n, d), see `kind`.
        y : array of shape (n,)
            Labels: text, whole numbers or booleans. Samples cannot be weighted; see `class_weight`.

        Returns
        -------
        self : ContrastiveClassifier
            The fitted estimator.
        """
        previous, preprocessing, rows, labels = self._begin(X, y, resume=self.warm_start)
        classes = np.unique(labels)
        if len(classes) < 2:
            raise ValueError(
                "ContrastiveClassifier needs samples of at least 2 classes in the data, but the data contains only one "
                f"class: {classes.tolist()[0]!r}."
            )
        if previous is not None and classes.tolist() != previous.classes_.tolist():
            raise ValueError(
                "warm_start can only be used where `self.classes_` is the same as in the previous call to fit. "
                f"Previously got {previous.classes_}, `y` has {classes}."
            )
        codes = codes_of(labels, classes)
        calibration = self._uncalibrated(classes, np.bincount(codes, minlength=len(classes)))
        task = _Task(self, rows, codes, classes, preprocessing, calibration, self._seed(), previous)
        trained, self.recipe_ = task.train_and_calibrate()
        self._keep(trained, [])
        return self

    def partial_fit(self, X: Any, y: Any, classes: ArrayLike | None = None) -> Self:
        """Make one pass over these samples, from the current state.

        `classes`, all labels that will ever occur, is needed in the first call. Nothing is held out, so probabilities
        are not calibrated: call ``calibrate(X, y)`` at the end. Training examples are not remembered.
        """
        if classes is None and not hasattr(self, "classifier_"):
            raise ValueError("classes must be passed on the first call to partial_fit.")
        previous, preprocessing, rows, labels = self._begin(X, y, resume=True, min_samples=1)
        known = self.classes_ if classes is None else np.unique(as_labels(classes, classes))
        if previous is not None and known.tolist() != previous.classes_.tolist():
            raise ValueError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: {previous.classes_!r}"
            )
        codes = codes_of(labels, known)
        if len(rows) == 1:  # a batch has at least two samples
            rows, codes = np.repeat(rows, 2, axis=0), np.repeat(codes, 2)
        counts = np.bincount(codes, minlength=len(known))
        if previous is not None:
            if isinstance(preprocessing, TablePreprocessing):
                preprocessing = preprocessing.updated(rows)
            counts += np.array(previous.calibration.class_counts)
        calibration = self._uncalibrated(known, counts)
        # The seed depends on the samples so far, so that no two calls repeat the same draws.
        seed = int(np.random.SeedSequence([self._seed(), int(counts.sum())]).generate_state(1)[0])
        task = _Task(self, rows, codes, known, preprocessing, calibration, seed, previous)
        self.recipe_ = task.recipe(len(rows), epochs=1)
        self._keep(task.train(np.ones(len(rows), bool), self.recipe_.train), getattr(self, "history_", []))
        return self

    def _begin(
        self, X: Any, y: Any, *, resume: bool, min_samples: int = 2
    ) -> tuple[Classifier | None, Preprocessing, Rows, NDArray[Any]]:
        """Return the classifier to continue from, if any, the preprocessing, X as rows, and y as labels."""
        self._validate_params()
        previous: Classifier | None = getattr(self, "classifier_", None) if resume else None
        if previous is not None:
            preprocessing: Preprocessing = previous.preprocessing
            rows = preprocessing.rows(self._checked(X))
        elif holds_images(X):
            for name in ("n_features_in_", "feature_names_in_"):  # of a table that was fitted before
                self.__dict__.pop(name, None)
            side = photo_side(self.encoder if isinstance(self.encoder, str) else "auto", pretrained=self.pretrained)
            preprocessing, rows = ImagePreprocessing.fit(X, self.image_size, photo_side=side)
        else:
            table = validate_data(self, X, dtype=np.float64, ensure_min_samples=min_samples)
            standardise = not isinstance(self.encoder, str) or self.encoder != "identity"
            names = getattr(self, "feature_names_in_", None)
            preprocessing, rows = TablePreprocessing.fit(table, standardise=standardise, feature_names=names)
        return previous, preprocessing, rows, as_labels(y, rows)

    def _uncalibrated(self, classes: NDArray[Any], counts: Codes) -> Calibration:
        """Return the calibration at temperature 1, with class counts and the weights of the posteriors."""
        weights = None
        if isinstance(self.class_weight, Mapping):
            labels = classes.tolist()
            unknown = [label for label in self.class_weight if label not in labels]
            if unknown:
                raise ValueError(f"The classes, {unknown}, are not in class_weight's data; the classes are {labels}.")
            weights = tuple(float(self.class_weight.get(label, 1.0)) for label in labels)
            if not all(0 < weight < math.inf for weight in weights):
                raise ValueError(f"class_weight must hold finite numbers above 0; got {dict(self.class_weight)}.")
        calibration = Calibration(class_counts=tuple(counts.tolist()), class_weight=weights)
        return calibration.with_priors(self.priors, classes.tolist())

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)  # as `esupcon train --seed`
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _keep(self, trained: Fitted, history: list[dict[str, Any]]) -> None:
        self.classifier_, self.findings_ = trained.classifier, trained.findings
        self.history_ = [*history, *trained.history]
        self.n_iter_ = len(self.history_)

    # --- Prediction: everything is delegated to classifier_ ----------------------------------------------------------

    def predict(self, X: Any, *, unknown: Any = None) -> NDArray[Any]:
        """Return the most probable class of each sample.

        Parameters
        ----------
        X : array, data frame or list
            Samples, in a form that `fit` accepts.
        unknown : object, default=None
            If given, a value that is not a class, returned for outliers: samples whose `ood_score` is above that of
            99 % of the samples that calibration used.

        Returns
        -------
        labels : array of shape (n,)
            Elements of `classes_`, or `unknown`.
        """
        return self._fitted().predict(self._checked(X), unknown=unknown)

    def predict_proba(self, X: Any) -> Floats:
        """Return calibrated probabilities (n, K) for the class shares of `priors` or of `adapt_priors`.

        Columns are in the order of `classes_`.
        """
        return self._fitted().predict_proba(self._checked(X))

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return the embeddings (n, d) as the encoder gives them: not normalised."""
        return self._fitted().transform(self._checked(X))

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy on X with labels y."""
        predicted = self.predict(X)
        right = [a == b for a, b in zip(predicted.tolist(), as_labels(y, predicted).tolist(), strict=True)]
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        return float(np.average(right, weights=weights))

    def calibrate(self, X: Any, y: Any) -> Self:
        """Fit the temperature, and the threshold for outliers, on samples that were not trained on; return self."""
        self._fitted().calibrate(self._checked(X), y)
        return self

    def adapt_priors(self, X: Any = None, *, priors: Priors | ArrayLike | None = None) -> Self:
        """Predict for other class shares, given or estimated from unlabelled X; see `Classifier.adapt_priors`."""
        self._fitted().adapt_priors(None if X is None else self._checked(X), priors=priors)
        return self

    def add_class(self, X: Any, y: Any) -> Self:
        """Add classes without retraining; see `Classifier.add_class`."""
        self._fitted().add_class(self._checked(X), y)
        return self

    def explain(self, X: Any, n_neighbors: int = 5) -> Explanation:
        """Return the nearest training samples of each sample, and its similarity to the prototype of every class."""
        return self._fitted().explain(self._checked(X), n_neighbors)

    def label_issues(self, *, return_details: bool = False) -> Codes | LabelIssues:
        """Return rows of the training data, the least likely label first; see `Classifier.label_issues`."""
        return self._fitted().label_issues(return_details=return_details)

    def ood_score(self, X: Any, method: str = "auto") -> Floats:
        """Return how far each sample lies from the training data; see `Classifier.ood_score`."""
        return self._fitted().ood_score(self._checked(X), method)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, examples: bool = True) -> Path:
        """Write the classifier to a folder; `esupcon.load(path)` returns it. See `Classifier.save`."""
        classifier = copy.copy(self._fitted())
        parameters: dict[str, Any] = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if value is None or isinstance(value, bool | int | float | str | tuple)
        }
        for name in ("class_weight", "priors"):
            if isinstance(given := getattr(self, name), Mapping):
                parameters[name] = [[label, float(value)] for label, value in given.items()]
        record = json.loads(json.dumps({"parameters": parameters, "history": self.history_}))  # tuples become lists
        classifier.about = ModelInfo(**{**dict(classifier.about or {}), **record})
        return classifier.save(path, overwrite=overwrite, examples=examples)

    @property
    def classes_(self) -> NDArray[Any]:
        return self.classifier_.classes_

    @property
    def prototypes_(self) -> Floats | None:
        return self._fitted().prototypes_

    @property
    def calibration_(self) -> str:
        return self.classifier_.calibration.how

    @property
    def calibration_temperature_(self) -> float:
        return self.classifier_.calibration.temperature

    @property
    def priors_(self) -> Floats:
        return self.classifier_.calibration.source_priors

    @property
    def target_priors_(self) -> Floats | None:
        target = self.classifier_.calibration.target_priors
        return None if target is None else np.array(target)

    @property
    def _n_features_out(self) -> int:
        return int(self.classifier_.network.head.weight.shape[1])  # type: ignore[index]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []  # embeddings are float32 for every X
        return tags

    def _fitted(self) -> Classifier:
        check_is_fitted(self)
        return self.classifier_

    def _checked(self, X: Any) -> Any:
        """Return X for `classifier_`: a table checked by scikit-learn, with its messages; images unchanged."""
        if isinstance(self._fitted().preprocessing, TablePreprocessing):
            return validate_data(self, X, reset=False, dtype=np.float64)
        return X


@dataclass(frozen=True, eq=False)
class _Task:
    """The rows of one call of `fit`, on parts of which networks are trained."""

    estimator: ContrastiveClassifier
    rows: Rows
    codes: Codes
    classes: NDArray[Any]
    preprocessing: Preprocessing
    calibration: Calibration
    seed: int
    previous: Classifier | None

    def train_and_calibrate(self) -> tuple[Fitted, Recipe]:
        """Train on all samples but those that calibration or early stopping need, and remember the samples."""
        estimator, all_rows = self.estimator, np.ones(len(self.rows), bool)
        held = ~all_rows
        held[stratified_split(self.codes, estimator.validation_fraction, self.seed)[1]] = True
        hold_out = held.any() and (estimator.early_stopping or (estimator.auto_calibrate and held.sum() >= FEW_SAMPLES))
        part = ~held if hold_out else all_rows
        recipe = self.recipe(int(part.sum()))
        trained = self.train(part, recipe.train, held=held if hold_out else None, announced=True)
        classifier = trained.classifier.remember(self.rows, self.codes, fit_on=~held if hold_out else None)
        scores: list[Floats] = []

        def logits_of(part: NDArray[np.bool_]) -> Floats:
            other = classifier
            if not hold_out:  # cross-fitting
                rest = ~part
                other = self.train(rest, trained.spec_of_folds).classifier.remember(self.rows[rest], self.codes[rest])
            if other.outlier_method == classifier.outlier_method:
                scores.append(other.outlier_scores(self.rows[part]))
            return other.arrays(self.rows[part], "logits")[0]

        if estimator.auto_calibrate:
            rng, held_part = np.random.default_rng(self.seed), held if hold_out else None
            classifier.calibration = fit_calibration(classifier.calibration, self.codes, held_part, logits_of, rng)
            if scores:
                classifier.set_outlier_threshold(scores=np.concatenate(scores))
        return trained, recipe

    def train(
        self,
        part: NDArray[np.bool_],
        spec: TrainSpec,
        *,
        held: NDArray[np.bool_] | None = None,
        announced: bool = False,
    ) -> Fitted:
        """Train a network on a part of the rows; with `held`, measure it on these after every epoch."""
        estimator, preprocessing = self.estimator, self.preprocessing
        if isinstance(preprocessing, ImagePreprocessing) and self.previous is None:
            preprocessing = preprocessing.with_statistics_of(self.rows[part])
        encoder = self._encoder()
        held_out = {} if held is None else {"x_held": self.rows[held], "y_held": self.codes[held]}
        data = TrainData(
            self.rows[part],
            self.codes[part],
            len(self.classes),
            preprocessing=preprocessing,
            classes=self.classes.tolist(),
            **held_out,
        )
        cross_fit = announced and held is None and estimator.auto_calibrate  # counts in the estimate of the time
        fitted = fit(
            RunSpec.model_validate(
                {"source": "arrays", "content": data.fingerprint, "cross_fit": cross_fit, "train": spec}
            ),
            data,
            encoder=copy.deepcopy(encoder) if isinstance(encoder, nn.Module) else None,
            initial=None if self.previous is None else self.previous.network.state_dict(),
            accelerator=estimator.device,
            log=say if estimator.verbose else lambda line: None,
            progress=bool(estimator.verbose),
            announce=announce if announced and estimator.verbose else None,
        )
        classifier, name = fitted.classifier, CUSTOM
        if not isinstance(encoder, nn.Module):
            name = resolve_encoder(spec.encoder, preprocessing.input_shape)
            if data.is_table:  # cheap in float64, and then the outputs of a row do not depend on the rest of its batch
                classifier.network.double()
        classifier.classes_ = self.classes
        update = {"prior_correction": spec.prior_correction, "noise_rate": fitted.noise_rate}
        classifier.calibration = self.calibration.model_copy(update=update)
        classifier.about = ModelInfo(encoder=name, method=spec.method, settings=spec.model_dump())
        return fitted

    def _encoder(self) -> str | nn.Module:
        """Return the encoder; to continue, the one of before, which "auto" might not choose again for other data."""
        encoder, method = self.estimator.encoder, self.estimator.method
        if isinstance(encoder, nn.Module) or self.previous is None:
            return encoder
        before = self.previous.about
        assert before is not None
        if method != before.method or encoder not in ("auto", before.encoder):
            raise ValueError(
                f"training can only continue with the method and encoder it began with, {before.method!r} and "
                f"{before.encoder!r}; they are {method!r} and {encoder!r} now. Fit with warm_start=False."
            )
        return before.encoder

    def recipe(self, n: int, **named: Any) -> Recipe:
        """Return the settings of training for n samples: those that are parameters of the estimator, else recommended.

        `named` overrides the parameters.
        """
        estimator, encoder = self.estimator, self._encoder()
        named = {**{key: getattr(estimator, key) for key in _SETTINGS}, "encoder": encoder, **named}
        named = {key: value for key, value in named.items() if value is not None and not isinstance(value, nn.Module)}
        named["class_weight"] = "balanced" if estimator.class_weight == "balanced" else None
        named["patience"] = estimator.patience if estimator.early_stopping else None
        if estimator.label_noise != "auto":
            named["label_noise"] = estimator.label_noise or 0.0
        options = {"embeddings": estimator.kind == "embeddings", "module": isinstance(encoder, nn.Module)}
        n_classes = len(self.classes)
        try:
            asked = TrainSpec.model_validate({**named, "seed": self.seed})
            return recommend(asked, self.preprocessing.input_shape, n, n_classes=n_classes, **options)
        except ValidationError as error:
            raise ValueError(f"{first_error(error)}. Change this parameter of ContrastiveClassifier.") from error


def load(path: str | os.PathLike[str], *, encoder: nn.Module | None = None) -> ContrastiveClassifier | Classifier:
    """Load a trained classifier from the folder it was saved to, or from the folder of a run.

    Nothing in the folder is executed.

    Parameters
    ----------
    path : str or path
        Folder that `ContrastiveClassifier.save`, `Classifier.save` or `esupcon train` wrote.
    encoder : nn.Module, default=None
        Needed if the model was trained with a module of your own: pass the same architecture.

    Returns
    -------
    classifier : ContrastiveClassifier or Classifier
        A fitted estimator if one was saved, else a `Classifier`; both have the same methods for prediction.
    """
    classifier = load_classifier(path, encoder=encoder)
    if classifier.about is None or classifier.about.parameters is None:
        return classifier
    parameters: dict[str, Any] = dict(classifier.about.parameters)
    try:
        for name in ("class_weight", "priors"):
            if isinstance(parameters.get(name), list):
                parameters[name] = dict(parameters[name])
        if isinstance(parameters.get("image_size"), list):
            parameters["image_size"] = tuple(parameters["image_size"])
        if encoder is not None:
            parameters["encoder"] = encoder
        estimator = ContrastiveClassifier(**parameters)
        estimator._validate_params()
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} holds parameters that ContrastiveClassifier does not take ({reason}).") from error
    estimator.classifier_ = classifier
    estimator.history_, estimator.findings_ = [dict(line) for line in classifier.about.history], []
    estimator.n_iter_ = len(estimator.history_)
    if isinstance(classifier.preprocessing, TablePreprocessing):
        estimator.n_features_in_ = len(classifier.preprocessing.mean)
        if classifier.preprocessing.feature_names is not None:
            estimator.feature_names_in_ = np.array(classifier.preprocessing.feature_names, dtype=object)
    return estimator
