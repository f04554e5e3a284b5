"""`Classifier`: a trained network with its preprocessing and calibration, and everything that can be asked of it."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d
from torch import Tensor, nn

from esupcon._console import check_choice
from esupcon.classifier.preprocessing import Preprocessing, Rows, TablePreprocessing
from esupcon.heads import PrototypeHead
from esupcon.models import Network
from esupcon.probability import (
    Calibration,
    Mahalanobis,
    Priors,
    energy_score,
    fit_mahalanobis,
    knn_score,
    max_softmax_score,
    prototype_distance_score,
    softmax,
)

if TYPE_CHECKING:
    from esupcon.classifier.folder import ModelInfo

Floats = NDArray[np.float64]
#: Labels as columns of the logits: classes_[codes] are the labels.
Codes = NDArray[np.int64]

#: Rows per batch. On CPUs 128 images take half as long as 512, whose activations are returned to the system each time.
CPU_BATCH, GPU_BATCH = 128, 512
#: Values per batch, so that large images come in small batches: 9 of 192 pixels take two thirds of the time of 37.
BATCH_VALUES = 2**20
#: Neighbours that vote on a label; the score `knn` of an outlier is the distance to the last of them.
N_NEIGHBORS = 10
#: Widest features of tables that the Mahalanobis score is fitted on: its matrix has this number squared of entries.
MAX_MAHALANOBIS = 2048
OOD_METHODS = ("auto", "class_mean", "mahalanobis", "knn", "prototype", "energy", "softmax")
#: Share of held-out samples that `predict(X, unknown=...)` still gives a class.
KNOWN_SHARE = 0.99


@dataclass(frozen=True, eq=False)
class Examples:
    """Training samples as a classifier remembers them: unit embeddings (n, dim), label columns, row numbers.

    For outliers, without samples held out from training: `class_means` (K, dim), the directions of the means of the
    unit embeddings, and for tables `mahalanobis`, the embedding with the columns, None if it could not be fitted.
    """

    embedding: NDArray[np.float32]
    codes: Codes
    rows: Codes
    class_means: NDArray[np.float32]
    mahalanobis: Mahalanobis | None = None


@dataclass(frozen=True, eq=False)
class Explanation:
    """Reasons for the predictions of n samples, with k neighbours and K classes.

    `neighbours` (n, k) are rows of the training data, nearest first, `neighbour_labels` their labels and
    `neighbour_similarity` the cosines of the embeddings. `prototype_similarity` (n, K) are the cosines with the
    prototype of each class, or with the mean of its training samples if the head is linear.
    """

    predicted: NDArray[Any]
    probability: Floats
    classes: NDArray[Any]
    prototype_similarity: Floats
    neighbours: Codes
    neighbour_labels: NDArray[Any]
    neighbour_similarity: Floats

    def __str__(self) -> str:
        lines = []
        for i, label in enumerate(self.predicted):
            found = zip(self.neighbours[i], self.neighbour_labels[i], self.neighbour_similarity[i], strict=True)
            near = ", ".join(f"#{row} {name} ({cosine:.2f})" for row, name, cosine in found)
            second = int(np.argsort(self.prototype_similarity[i])[-2])
            lines.append(
                f"{label} ({100 * self.probability[i].max():.1f} %): cosine {self.prototype_similarity[i].max():.2f} "
                f"with its class, {self.prototype_similarity[i, second]:.2f} with {self.classes[second]}; near {near}"
            )
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class LabelIssues:
    """Training samples, the most doubtful label first: `indices` into the training data, the label `given`, the label
    `suggested`, and the `likelihood` of the given one in 0 .. 1."""

    indices: Codes
    given: NDArray[Any]
    suggested: NDArray[Any]
    likelihood: Floats


class Classifier:
    """A trained network that maps raw inputs to classes and probabilities.

    X is what the network was trained on: images as an array, as paths of files or as PIL images, or a table (an array
    or a data frame). Columns of logits and probabilities are in the order of `classes_`.
    """

    def __init__(
        self,
        network: Network,
        preprocessing: Preprocessing,
        classes: Sequence[Any] | NDArray[Any],
        *,
        calibration: Calibration | None = None,
        examples: Examples | None = None,
        about: ModelInfo | None = None,
    ) -> None:
        self.network = network
        self.preprocessing = preprocessing
        self.classes_ = classes if isinstance(classes, np.ndarray) else class_array(classes)
        self.calibration = calibration or Calibration()
        self.examples = examples
        self.about = about
        #: Called between batches of `outputs` with the rows done and those there are; it may raise to stop.
        self.between_batches: Callable[[int, int], None] | None = None

    @property
    def device(self) -> torch.device:
        return next(self.network.head.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.network.head.parameters()).dtype

    @property
    def n_classes(self) -> int:
        return len(self.classes_)

    @property
    def prototypes_(self) -> Floats | None:
        """Unit vectors (K, dim), one for each class, in the space of `transform`; None if the head is linear."""
        head = self.network.head
        return unit(head.weight.detach().cpu().numpy()) if isinstance(head, PrototypeHead) else None

    # --- From X to outputs -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, rows: Rows, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Return the named outputs (embedding, projection, logits) of rows that `preprocessing.rows` returned.

        This is the only loop over batches of un-augmented samples. Raise ValueError if an output is not finite.
        """
        most = CPU_BATCH if self.device.type == "cpu" else GPU_BATCH
        step = max(1, min(most, BATCH_VALUES // math.prod(self.preprocessing.input_shape)))
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        with evaluating(self.network):
            for start in range(0, len(rows), step):
                if start and self.between_batches is not None:
                    self.between_batches(start, len(rows))
                batch = self.preprocessing.tensor(rows[start : start + step], self.device).to(self.dtype)
                if batch.ndim == 4:
                    batch = batch.contiguous(memory_format=torch.channels_last)
                for name, value in self.network.outputs(batch, names).items():
                    parts[name].append(value)
            if not len(rows):  # one row of zeros gives the widths
                batch = torch.zeros(1, *self.preprocessing.input_shape, device=self.device, dtype=self.dtype)
                parts = {name: [value[:0]] for name, value in self.network.outputs(batch, names).items()}
        outputs = {name: torch.cat(values) for name, values in parts.items()}
        for name, value in outputs.items():
            broken = ~value.isfinite().all(dim=1)
            if broken.any():
                raise ValueError(
                    f"the network gave a {name} with NaN or infinity for {int(broken.sum())} of {len(rows)} rows, "
                    f"first row {int(broken.int().argmax())}. Look for values far outside those of training."
                )
        return outputs

    def arrays(self, rows: Rows, *names: str) -> list[Floats]:
        """Return some of `outputs` as float64 arrays."""
        found = self.outputs(rows, names)
        return [found[name].cpu().double().numpy() for name in names]

    def logits(self, X: Any) -> Floats:
        """Return the logits (n, K), before calibration."""
        return self.arrays(self.preprocessing.rows(X), "logits")[0]

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return the embeddings (n, dim) as the encoder gives them: not normalised."""
        return self.outputs(self.preprocessing.rows(X), ("embedding",))["embedding"].float().cpu().numpy()

    def predict_proba(self, X: Any) -> Floats:
        """Return probabilities (n, K): softmax(logits / temperature + bias), see `Calibration`."""
        return self.probabilities(self.logits(X))

    def probabilities(self, logits: Floats) -> Floats:
        """Return the probabilities (n, K) that belong to logits of this classifier."""
        return self.calibration.probabilities(logits) if len(logits) else logits

    def predict(self, X: Any, *, unknown: Any = None) -> NDArray[Any]:
        """Return the most probable class of each sample, one of `classes_`.

        With `unknown`, a value that is not a class, return that value for outliers: samples whose `ood_score` is above
        that of 99 % of the samples that calibration used.
        """
        rows, answers = self.preprocessing.rows(X), self.classes_
        z, logits = self.arrays(rows, "embedding", "logits")
        best = self.probabilities(logits).argmax(axis=1)
        if unknown is not None:
            best[self._are_outliers(rows, z, logits)] = self.n_classes
            answers = self._answers_with(unknown)
        predicted: NDArray[Any] = answers[best]
        return predicted

    def _answers_with(self, unknown: Any) -> NDArray[Any]:
        """Return `classes_` and one more value, in a type that holds all of them."""
        if unknown in self.classes_.tolist():
            raise ValueError(f"unknown must not be one of the classes; got {unknown!r}. Pass another value.")
        answers = class_array([*self.classes_.tolist(), unknown.item() if isinstance(unknown, np.generic) else unknown])
        return answers.astype(object) if self.classes_.dtype == object else answers

    # --- Calibration and class priors --------------------------------------------------------------------------------

    def calibrate(self, X: Any, y: Any) -> Self:
        """Fit the temperature on labelled samples that were not trained on, and find the threshold for outliers.

        Both replace those so far.
        """
        rows = self.preprocessing.rows(X)
        (logits,) = self.arrays(rows, "logits")
        self.calibration = self.calibration.fit(logits, codes_of(as_labels(y, logits), self.classes_), how="given")
        self.set_outlier_threshold(rows)
        return self

    def adapt_priors(self, X: Any = None, *, priors: Priors | ArrayLike | None = None) -> Self:
        """Predict for other class priors: for `priors`, or for those estimated from unlabelled X.

        `priors` holds a share for each of `classes_`, or is a dict by label, in which absent classes have share 0, or
        "balanced" for equal shares. "training", or no argument, restores the priors of training.
        """
        if X is not None and priors is not None:
            raise ValueError("adapt_priors takes samples or priors; got both. Pass one of them.")
        before = self.calibration
        adapted = before.with_priors(priors, self.classes_.tolist()) if X is None else before.adapt(self.logits(X))
        self.calibration = adapted
        return self

    # --- What the training samples tell ------------------------------------------------------------------------------

    def remember(
        self, rows: Rows, codes: Codes, *, fit_on: NDArray[np.bool_] | None = None, most_values: int | None = None
    ) -> Self:
        """Keep the embeddings of training rows, for `explain`, `label_issues` and `ood_score`.

        With `fit_on`, only these rows describe what is not an outlier: all but those held out from training. With
        `most_values`, keep only as many rows, spread evenly, as have that many values in all.
        """
        (z,), mahalanobis = self.arrays(rows, "embedding"), None
        part = slice(None) if fit_on is None else fit_on
        if isinstance(self.preprocessing, TablePreprocessing):
            features = self._table_features(rows, z)
            if features.shape[1] <= MAX_MAHALANOBIS:
                with suppress(ValueError):  # the classes do not vary
                    mahalanobis = fit_mahalanobis(features[part], codes[part])
        kept, z = np.arange(len(codes)), unit(z)
        if most_values is not None and z.size > most_values:
            kept = np.unique(np.linspace(0, len(z) - 1, max(1, most_values // z.shape[1])).astype(np.int64))
        present, index = np.unique(codes[part], return_inverse=True)
        means = unit(_class_sums(z[part], index, len(present))).astype(np.float32)
        self.examples = Examples(z[kept].astype(np.float32), codes[kept], kept, means, mahalanobis)
        return self

    def explain(self, X: Any, n_neighbors: int = 5) -> Explanation:
        """Return the nearest training samples of each sample, and its similarity to the prototype of every class."""
        examples = self._examples("explain")
        if not 1 <= n_neighbors <= len(examples.codes):
            raise ValueError(f"n_neighbors must be 1 to the {len(examples.codes)} training samples; got {n_neighbors}.")
        z, logits = self.arrays(self.preprocessing.rows(X), "embedding", "logits")
        z, probabilities = unit(z), self.probabilities(logits)
        places, cosines = nearest(z, examples.embedding, n_neighbors)
        return Explanation(
            predicted=self.classes_[probabilities.argmax(axis=1)],
            probability=probabilities,
            classes=self.classes_,
            prototype_similarity=z @ self._class_vectors().T,
            neighbours=examples.rows[places],
            neighbour_labels=self.classes_[examples.codes[places]],
            neighbour_similarity=cosines,
        )

    def label_issues(self, *, return_details: bool = False) -> Codes | LabelIssues:
        """Return rows of the training data, the one whose label is least likely first.

        With `return_details`, also the label suggested instead, and how likely the given one is. For each sample two
        estimates of its label, made without its own label, are averaged: the labels of its ten nearest neighbours, and
        the softmax of its cosines with the class means at temperature 0.1. The order is that of the estimate for the
        given label minus the largest one for another label.
        """
        examples = self._examples("label_issues")
        z, codes, here = examples.embedding.astype(np.float64), examples.codes, np.arange(len(examples.codes))
        k = min(N_NEIGHBORS, len(codes) - 1)
        votes = np.zeros((len(codes), self.n_classes))
        np.add.at(votes, (np.repeat(here, k), codes[nearest(None, z, k)[0]].ravel()), 1 / k)
        sums = _class_sums(z, codes, self.n_classes)
        cosines = z @ unit(sums).T
        cosines[here, codes] = np.einsum("nd,nd->n", z, unit(sums[codes] - z))  # the own class without the sample
        present = np.bincount(codes, minlength=self.n_classes) > 0
        belief = (votes + softmax(np.where(present, cosines / 0.1, -np.inf))) / 2
        given = belief[here, codes].copy()
        belief[here, codes] = -np.inf
        order = np.argsort(given - belief.max(axis=1), kind="stable")
        if not return_details:
            return examples.rows[order]
        suggested = self.classes_[belief.argmax(axis=1)[order]]
        return LabelIssues(examples.rows[order], self.classes_[codes[order]], suggested, given[order])

    def ood_score(self, X: Any, method: str = "auto") -> Floats:
        """Return how far each sample lies from the training data; higher is further out.

        `method`: class_mean (cosine distance to the nearest class mean of the training embeddings), mahalanobis
        (distance to the nearest class in the covariance of the training embeddings, for tables with the standardised
        columns), knn (distance to the tenth nearest training embedding), prototype (cosine distance to the nearest
        prototype), energy, softmax. "auto" is class_mean for images, mahalanobis for tables (class_mean if columns and
        embedding have over 2,048 values together), and prototype without training embeddings.
        """
        return self.outlier_scores(self.preprocessing.rows(X), method)

    def outlier_scores(self, rows: Rows, method: str = "auto") -> Floats:
        """Return `ood_score` of rows that `preprocessing.rows` returned."""
        return self._outlier_scores(method, rows, *self.arrays(rows, "embedding", "logits"))

    def scores_and_logits(self, rows: Rows) -> tuple[Floats, Floats]:
        """Return outlier scores, those that the threshold is for, and logits; NaN without anything to compare with."""
        z, logits = self.arrays(rows, "embedding", "logits")
        method = self.calibration.outlier_score or self.outlier_method
        if method == "prototype" and self.prototypes_ is None:
            return np.full(len(z), np.nan), logits
        return self._outlier_scores(method, rows, z, logits), logits

    def set_outlier_threshold(self, rows: Rows | None = None, *, scores: Floats | None = None) -> None:
        """Let `predict(X, unknown=...)` call 1 % of samples like these unknown: rows held out, or scores of such."""
        if self.outlier_method == "prototype" and self.prototypes_ is None:
            return  # nothing to compare samples with
        if rows is not None:
            scores = self.outlier_scores(rows)
        assert scores is not None
        threshold = float(np.quantile(scores, KNOWN_SHARE, method="higher"))
        update = {"outlier_score": self.outlier_method, "outlier_threshold": threshold}
        self.calibration = self.calibration.model_copy(update=update)

    def _are_outliers(self, rows: Rows, z: Floats, logits: Floats) -> NDArray[np.bool_]:
        method, threshold = self.calibration.outlier_score, self.calibration.outlier_threshold
        if method is None or threshold is None:
            raise ValueError(
                "unknown needs a threshold, which calibration finds; this classifier has none. Call calibrate(X, y) "
                "with samples that were not trained on."
            )
        return self._outlier_scores(method, rows, z, logits) > threshold

    @property
    def outlier_method(self) -> str:
        """The method of `ood_score` that "auto" stands for."""
        if self.examples is None:
            return "prototype"
        return "class_mean" if self.examples.mahalanobis is None else "mahalanobis"

    def _outlier_scores(self, method: str, rows: Rows, z: Floats, logits: Floats) -> Floats:
        check_choice("method", method, OOD_METHODS)
        method = self.outlier_method if method == "auto" else method
        if method in ("energy", "softmax"):
            return (energy_score if method == "energy" else max_softmax_score)(logits, self.calibration.temperature)
        if method == "mahalanobis":
            examples = self._examples("ood_score(method='mahalanobis')")
            if examples.mahalanobis is None:
                return fit_mahalanobis(examples.embedding, examples.codes).score(unit(z))
            return examples.mahalanobis.score(self._table_features(rows, z))
        z = _with_direction(z)
        if method == "prototype":
            return prototype_distance_score(z, self._class_vectors())
        examples = self._examples(f"ood_score(method={method!r})")
        if method == "class_mean":
            return prototype_distance_score(z, _with_direction(examples.class_means))
        return knn_score(z, examples.embedding, k=min(N_NEIGHBORS, len(examples.embedding)))

    def add_class(self, X: Any, y: Any) -> Self:
        """Add classes without retraining: the mean embedding of its samples becomes the prototype of each.

        y is one new label for all of X, or one label per sample. The encoder was trained to separate other classes, so
        expect less than training would give; with ``encoder="identity"`` and good embeddings expect more. Predictions
        for the known classes hardly change.
        """
        head = self.network.head
        if not isinstance(head, PrototypeHead):
            raise ValueError(  # noqa: TRY004 - the method chosen for training is wrong, not a type
                "add_class needs a classifier with prototypes; this one has a linear head. Train with method='esupcon'."
            )
        rows = self.preprocessing.rows(X)
        single = isinstance(y, str | bytes) or np.ndim(y) == 0
        labels = as_labels([y] * len(rows) if single else y, rows)
        new, known = np.unique(labels), self.classes_.tolist()
        if again := [label for label in new.tolist() if label in known]:
            raise ValueError(f"add_class is for new classes; {again[0]!r} is known already. Use partial_fit for it.")
        codes = codes_of(labels, new)
        (embedding,) = self.arrays(rows, "embedding")
        z = unit(embedding)
        means = unit(_class_sums(z, codes, len(new)))
        if not means.any(axis=1).all():
            raise ValueError("samples of a new class must have a common direction in the embedding; they have none.")
        extended = np.concatenate([self.classes_, new])
        if extended.tolist() != [*known, *new.tolist()]:
            raise ValueError(f"new labels must be of the type of the classes; got {new.tolist()[0]!r}. Convert them.")
        self.classes_ = np.unique(extended)
        # Sorting may move the columns of the known classes.
        order, column = codes_of(self.classes_, extended), codes_of(extended, self.classes_)
        larger = PrototypeHead(head.weight.shape[1], len(order), head.temperature).to(head.weight)
        added = torch.from_numpy(means).float().to(head.weight)  # float32 is the precision of saved weights
        with torch.no_grad():
            larger.weight.copy_(torch.cat([head.weight, added])[torch.from_numpy(order)])
        self.network = copy.deepcopy(self.network)  # others may use the one before
        self.network.head = larger.eval()
        update: dict[str, Any] = {"target_priors": None}
        for name, of_new in (("class_counts", np.bincount(codes)), ("class_weight", np.ones(len(new)))):
            if (of_known := getattr(self.calibration, name)) is not None:
                update[name] = tuple(np.array([*of_known, *of_new])[order].tolist())
        equal = len(set(self.calibration.target_priors or (0, 1))) == 1
        self.calibration = self.calibration.model_copy(update=update).with_priors("balanced" if equal else "training")
        if (before := self.examples) is not None:
            mahalanobis = before.mahalanobis
            if mahalanobis is not None:
                features = self._table_features(rows, embedding)
                centres = _class_sums(features, codes, len(new)) / np.bincount(codes)[:, None]
                mahalanobis = replace(mahalanobis, means=np.vstack([mahalanobis.means, centres]))
            self.examples = Examples(
                np.concatenate([before.embedding, z.astype(np.float32)]),
                column[np.concatenate([before.codes, len(known) + codes])],
                np.concatenate([before.rows, before.rows.max() + 1 + np.arange(len(codes))]),
                np.concatenate([before.class_means, means.astype(np.float32)]),
                mahalanobis,
            )
        return self

    # --- Saving ------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, examples: bool = True) -> Path:
        """Write the classifier to a folder of safetensors and JSON; `esupcon.load(path)` reads it.

        With `examples`, the embeddings of the training samples are stored too, for `explain`, `label_issues` and
        `ood_score`; the samples themselves never are. Without them the threshold for outliers is left out as well, if
        its score needs them.
        """
        from esupcon.classifier.folder import save_classifier  # noqa: PLC0415 - that module reads classifiers too

        return save_classifier(self, path, overwrite=overwrite, examples=examples)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.preprocessing.input_shape))
        about = "" if self.about is None else f"{self.about.encoder}, {self.about.method}, "
        return f"Classifier({about}input {shape}, {self.n_classes} classes)"

    def _examples(self, purpose: str) -> Examples:
        if self.examples is None:
            raise ValueError(
                f"{purpose} needs the embeddings of the training samples, which this classifier does not have: it was "
                "trained by partial_fit or saved without them. Use fit, and save(path, examples=True)."
            )
        return self.examples

    def _class_vectors(self) -> Floats:
        """Return the prototypes, or the directions of the class means of the training samples if there are none."""
        if (prototypes := self.prototypes_) is not None:
            return prototypes
        examples = self._examples("a linear head")
        return unit(_class_sums(examples.embedding, examples.codes, self.n_classes))

    def _table_features(self, rows: Rows, embedding: Floats) -> Floats:
        """Return the embedding and the standardised columns: layer norms hide that a row is 1,000 times as large."""
        return np.hstack([embedding, self.preprocessing.tensor(rows).numpy()])


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode inside, and restore each one's mode afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def unit(z: NDArray[Any]) -> Floats:
    """Return z / |z| row by row; a row of zeros, which has no direction, stays zero."""
    length = np.linalg.norm(z.astype(np.float64), axis=1, keepdims=True)
    rows: Floats = z / np.where(length > 0, length, 1.0)
    return rows


def _with_direction(z: NDArray[Any]) -> NDArray[Any]:
    """Return z with ones for rows of zeros, as a ReLU gives: they have no direction, and any will do."""
    return np.where(z.any(axis=1, keepdims=True), z, 1.0)


def _class_sums(z: NDArray[Any], codes: Codes, n_classes: int) -> Floats:
    sums = np.zeros((n_classes, z.shape[1]))
    np.add.at(sums, codes, z)
    return sums


def nearest(z: Floats | None, stored: NDArray[Any], k: int) -> tuple[Codes, Floats]:
    """Return the places of the k stored unit rows with the largest cosine, and the cosines, nearest first.

    If z is None, search the neighbours of the stored rows themselves; none is its own neighbour.
    """
    index = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(np.asarray(stored, np.float64))
    distances, places = index.kneighbors(z)
    return places, 1 - distances


# --- Labels ----------------------------------------------------------------------------------------------------------


def as_labels(y: Any, X: Any) -> NDArray[Any]:
    """Return y as a vector with one class label per row of X; raise scikit-learn's own errors otherwise."""
    if y is None:
        raise ValueError("This ContrastiveClassifier estimator requires y to be passed, but the target y is None.")
    labels: NDArray[Any] = column_or_1d(y, warn=True)
    check_consistent_length(X, labels)
    assert_all_finite(labels, input_name="y")
    if labels.dtype.kind == "O" and any(label is None for label in labels):
        raise ValueError("Input y contains None. Leave unlabelled samples out.")
    check_classification_targets(labels)
    return labels


def class_array(classes: Sequence[Any]) -> NDArray[Any]:
    """Return the classes as an array of their type, or of objects if they are of several types."""
    return np.array(classes, dtype=None if len(set(map(type, classes))) == 1 else object)


def codes_of(labels: NDArray[Any], classes: NDArray[Any]) -> Codes:
    """Return the column of each label; raise ValueError for a label that is not a class."""
    column: dict[Hashable, int] = {label: k for k, label in enumerate(classes.tolist())}
    try:
        return np.array([column[label] for label in labels.tolist()], dtype=np.int64)
    except KeyError as error:
        raise ValueError(
            f"y contains the label {error.args[0]!r}, which is not one of the {len(classes)} classes of training. "
            "Add it with add_class(X, y), or fit again."
        ) from None
