"""`ContrastiveClassifier`: the scikit-learn contract on top of the training engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from esupcon.estimator import growth, insight, learning
from esupcon.estimator.calibration import CalibrateParameter, smoothed_temperature
from esupcon.estimator.inference import class_vectors, outputs
from esupcon.estimator.inputs import TableForm
from esupcon.estimator.labels import as_labels, codes_of
from esupcon.estimator.persistence import save_estimator
from esupcon.estimator.priors import given_priors
from esupcon.estimator.settings import CONSTRAINTS
from esupcon.probability import adapt_to_priors, estimate_priors, softmax

__all__ = ["ContrastiveClassifier"]

Floats = NDArray[np.float64]


class ContrastiveClassifier(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no annotations
    """A classifier whose embedding and class prototypes are trained together by a supervised contrastive loss.

    X is one of

    - a table (n, d) of numbers, an array or a pandas frame: standardised inside; its views are made by noise and
      by values borrowed from other rows;
    - images (n, H, W), (n, H, W, C) or (n, C, H, W), uint8 or other numbers, whose range is learnt;
    - a list of paths of image files, decoded to `image_size`;
    - embeddings (n, d) computed before. As a table they get a small network of their own, which reshapes the space
      to your classes; with ``encoder="identity"`` they are kept as they are and only prototypes are learnt.

    Samples cannot be weighted: `fit` has no `sample_weight`. See `class_weight`.

    Parameters
    ----------
    method : one of ce, supcon_ce, supcon_ce_n, supcon_tt, spce, spce_m, esupcon
    encoder : "auto", a name (`resnet18`, `resnet10-w32`, `mlp-256x2`, `identity`, `timm:NAME`), or an `nn.Module`,
        which is copied, its weights being the start
    temperature : divides every cosine similarity in training
    prototype_weight : weight of the prototypes' own term in the esupcon loss
    epochs : passes over the data; None: as many as data of this size needs
    batch_size, lr, optimizer, weight_decay : of the optimiser; None: by the data
    augmentation : how views are made: auto, or the name of a recipe
    class_weight : "balanced" draws every class equally often in training. A dict {label: weight} multiplies the
        posterior of a class by its weight, which is what training with samples weighted so converges to
    calibrate : find a temperature for `predict_proba` on samples held out from training. On a fitted classifier
        ``calibrate(X, y)`` finds it on other samples
    validation_fraction : the share held out for calibration and early stopping; where it would be too few samples
        to calibrate on, all are trained on and the temperature comes from cross-fitting
    early_stopping, patience : stop after so many epochs without a better accuracy on the held-out part, keep the best
    image_size : side, or (height, width), that image files are decoded to; None: 32
    precision : "32", or "bf16" for mixed precision
    device : "auto", "cpu", "cuda", ...: where to train; prediction is on the CPU
    warm_start : `fit` goes on from the last fit
    verbose : 1 shows progress and what the doctor finds
    random_state : an int makes fits identical

    Attributes
    ----------
    classes_ : the labels, in the order of the columns of `predict_proba`
    prototypes_ : unit vectors (K, d) in the space of `transform`; None for methods with a linear head
    calibration_ : how the temperature was found: "held-out", "cross-fitted", "given" or "none"
    calibration_temperature_ : divides the logits in `predict_proba`
    priors_ : class shares that the probabilities are for; `target_priors_` after `adapt_priors`
    history_, findings_ : a record of each epoch, and what the doctor had to say
    n_iter_ : epochs trained
    """

    _parameter_constraints = CONSTRAINTS
    calibrate = CalibrateParameter()

    def __init__(
        self,
        method: str = "esupcon",
        *,
        encoder: str | nn.Module = "auto",
        temperature: float = 0.1,
        prototype_weight: float = 1.0,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        optimizer: str = "adamw",
        weight_decay: float = 5e-4,
        augmentation: str = "auto",
        class_weight: str | Mapping[Any, float] | None = None,
        calibrate: bool = True,
        validation_fraction: float = 0.1,
        early_stopping: bool = False,
        patience: int = 10,
        image_size: int | tuple[int, int] | None = None,
        precision: str = "32",
        device: str = "auto",
        warm_start: bool = False,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.method = method
        self.encoder = encoder
        self.temperature = temperature
        self.prototype_weight = prototype_weight
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.augmentation = augmentation
        self.class_weight = class_weight
        self.calibrate = calibrate
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.patience = patience
        self.image_size = image_size
        self.precision = precision
        self.device = device
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters as they were given."""
        parameters: dict[str, Any] = super().get_params(deep=deep)
        return {**parameters, "calibrate": self.__dict__["calibrate"]}

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X with labels y, then calibrate."""
        self._validate_params()
        learning.fit(self, X, y, keep=self.warm_start and hasattr(self, "network_"))
        return self

    def partial_fit(self, X: Any, y: Any, classes: ArrayLike | None = None) -> Self:
        """One pass over these samples, going on from where the classifier stands.

        `classes`, all labels that will ever come, is needed in the first call. Probabilities are not calibrated,
        since nothing is held out: call ``calibrate(X, y)`` when done. Training examples are not remembered.
        """
        self._validate_params()
        learning.partial_fit(self, X, y, classes)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each sample, one of `classes_`."""
        probabilities = self.predict_proba(X)
        predicted: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return predicted

    def predict_proba(self, X: Any) -> Floats:
        """(n, K): softmax(logits / calibration_temperature_), for the class shares of training or of `adapt_priors`."""
        return self._probabilities(outputs(*self._ready(X))[1], adapt=True)

    def predict_log_proba(self, X: Any) -> Floats:
        """The logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def transform(self, X: Any) -> NDArray[np.float32]:
        """The embeddings (n, d), as the encoder gives them: not normalised."""
        return outputs(*self._ready(X))[0].astype(np.float32)

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy, for labels of any type."""
        predicted = self.predict(X)
        right = [a == b for a, b in zip(predicted.tolist(), as_labels(y, predicted).tolist(), strict=True)]
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        return float(np.average(right, weights=weights))

    def add_class(self, X: Any, y: Any) -> Self:
        """Know more classes without training: the mean embedding of its samples becomes the prototype of each.

        y is one new label for all of X, or one for each sample. An encoder trained on other classes tells them apart
        and little else, so expect part of what training would give, and more where the embedding was made for more
        than these classes, as with ``encoder="identity"``. What was known before stays as good as it was.
        """
        rows = self._rows(X)
        growth.add_class(self, rows, y)
        return self

    def explain(self, X: Any, n_neighbors: int = 5) -> insight.Explanation:
        """The nearest training samples of each sample, and how similar it is to the prototype of every class."""
        z, logits = outputs(*self._ready(X))
        examples = self._examples("explain")
        if not 1 <= n_neighbors <= len(examples.codes):
            raise ValueError(f"n_neighbors must be 1 to the {len(examples.codes)} training samples; got {n_neighbors}.")
        rows, cosines = insight.nearest(insight.unit(z), examples, n_neighbors)
        probabilities = self._probabilities(logits, adapt=True)
        return insight.Explanation(
            predicted=self.classes_[probabilities.argmax(axis=1)],
            probability=probabilities,
            classes=self.classes_,
            prototype_similarity=insight.unit(z) @ self._class_vectors().T,
            neighbours=rows,
            neighbour_labels=self.classes_[examples.codes[rows]],
            neighbour_similarity=cosines,
        )

    def label_issues(self, *, return_details: bool = False) -> NDArray[np.int64] | insight.LabelIssues:
        """Rows of the training data from the one whose given label is least likely to the most likely one.

        With `return_details` also what label is suggested instead, and how likely the given one is.
        """
        check_is_fitted(self)
        found = insight.doubtful_labels(self._examples("label_issues"), self.classes_)
        return found if return_details else found.indices

    def ood_score(self, X: Any, method: str = "auto") -> Floats:
        """How foreign each sample is; higher is further from the training data.

        `method`: knn (distance to the tenth nearest training embedding; the default where they are remembered),
        prototype (cosine distance to the nearest prototype), energy, softmax.
        """
        if method not in insight.OOD_METHODS:
            raise ValueError(f"method must be one of {', '.join(insight.OOD_METHODS)}; got {method!r}.")
        z, logits = outputs(*self._ready(X))
        examples = self._examples("ood_score(method='knn')") if method == "knn" else self.examples_
        vectors = self._class_vectors() if method in ("auto", "prototype") else np.empty(0)
        return insight.ood_scores(method, z, logits, self.calibration_temperature_, vectors, examples)

    def adapt_priors(self, X: Any = None, *, priors: ArrayLike | Mapping[Any, float] | None = None) -> Self:
        """Predict for other class shares from now on: for `priors`, or for those estimated from unlabelled X.

        `priors` holds a share for each of `classes_`, or is a dict by label. With neither the shares of training are
        gone back to.
        """
        check_is_fitted(self)
        if X is not None and priors is not None:
            raise ValueError("adapt_priors takes samples or priors; got both. Pass one of them.")
        if X is not None:
            p = self._probabilities(outputs(*self._ready(X))[1], adapt=False)
            target: Floats | None = estimate_priors(p, self.priors_).priors
        else:
            target = None if priors is None else given_priors(priors, self.classes_)
        self.target_priors_ = target
        return self

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, examples: bool = True) -> Path:
        """Write the classifier to a folder of safetensors and JSON; `esupcon.load(path)` gives it back.

        With `examples` the embeddings of the training samples go with it, for `explain`, `label_issues` and
        `ood_score`; the samples themselves never do.
        """
        check_is_fitted(self)
        return save_estimator(self, path, overwrite=overwrite, examples=examples)

    @property
    def prototypes_(self) -> Floats | None:
        """Unit vectors (K, d) in the space of `transform`; None for methods with a linear head."""
        check_is_fitted(self)
        return class_vectors(self.network_)

    @property
    def _n_features_out(self) -> int:
        return int(self.network_.head.weight.shape[1])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []  # embeddings are float32 whatever comes in
        return tags

    def _rows(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        if isinstance(self.form_, TableForm):
            rows: NDArray[Any] = validate_data(self, X, reset=False, dtype=np.float64)
            return rows
        images: NDArray[Any] = self.form_.arrays(X)
        return images

    def _ready(self, X: Any) -> tuple[Any, Any, NDArray[Any]]:
        rows = self._rows(X)
        return self.network_, self.form_, rows

    def _probabilities(self, logits: Floats, *, adapt: bool) -> Floats:
        p = softmax(logits / self.calibration_temperature_ + np.log(self.class_weight_))
        if adapt and self.target_priors_ is not None:
            return adapt_to_priors(p, self.priors_, self.target_priors_)
        return p

    def _calibrate_on(self, X: Any, y: Any) -> Self:
        rows = self._rows(X)
        codes = codes_of(as_labels(y, rows), self.classes_)
        logits = outputs(self.network_, self.form_, rows)[1]
        self.calibration_temperature_ = smoothed_temperature(logits, codes, balance=self.class_weight == "balanced")
        self.calibration_ = "given"
        return self

    def _examples(self, purpose: str) -> insight.Examples:
        examples: insight.Examples | None = self.examples_
        if examples is None:
            raise ValueError(
                f"{purpose} needs the embeddings of the training samples, which this classifier does not have: it was "
                "trained by partial_fit or saved without them. Use fit, and save(path, examples=True)."
            )
        return examples

    def _class_vectors(self) -> Floats:
        """What stands for each class in the embedding: prototypes, or the means of the training samples."""
        prototypes = class_vectors(self.network_)
        return insight.class_means(self._examples("this"), len(self.classes_)) if prototypes is None else prototypes
