"""Measure the embedding of a trained classifier: among its own test images, and on a second data set.

The figures are shares and become `extra` of the result. Those of the data set itself:

    knn_accuracy     test images classified by their 20 nearest training images (cosine), by the labels trained on
    recall_at_1      test images whose nearest other test image has their class
    map_at_r         mean average precision of the R nearest test images; R: the other images of the same class

and those of a second data set, whose classes are other ones:

    unknown_auroc    test images against those of the second set, by `Classifier.ood_score`
    new_old, new_new accuracy on the test images of the old and of ten new classes after `Classifier.add_class` with 50
                     images of each; a linear head has no prototypes to add to, so there all classes are their means
    transfer         logistic regression on the embeddings of 5,000 training images of the second set; its strength is
                     chosen on a fifth of them
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from esupcon.classifier.classifier import Classifier, unit
from esupcon.data import Dataset, load
from esupcon.heads import PrototypeHead

if TYPE_CHECKING:
    from esupcon.training import Fitted

N_NEIGHBOURS = 20
NEW_CLASSES, NEW_IMAGES = 10, 50
TRANSFER_IMAGES = 5000
STRENGTHS = (0.01, 0.1, 1.0)
_BLOCK_VALUES = 2**23  # of a block of similarities: 32 MB
Floats = NDArray[Any]
Labels = NDArray[np.int64]


def figures(
    fitted: Fitted, dataset: Dataset, second: str | None = None, data_dir: str | None = None
) -> dict[str, float]:
    """Return all figures of a classifier that was just trained; none without a test part."""
    if not len(dataset.x_test):
        return {}
    classifier = copy.copy(fitted.classifier)  # what follows adds examples and classes
    classifier.remember(fitted.data.x, fitted.data.y)
    assert classifier.examples is not None
    gallery, codes = classifier.examples.embedding, classifier.examples.codes
    raw, logits = classifier.arrays(dataset.x_test, "embedding", "logits")
    z = _unit(raw)
    found = {"knn_accuracy": knn_accuracy(z, dataset.y_test, gallery, codes), **retrieval(z, dataset.y_test)}
    if second is not None:
        other = load(second, data_dir=data_dir, log=lambda line: None)
        other_raw, other_logits = classifier.arrays(other.x_test, "embedding", "logits")
        # As `ood_score`, without a second pass through the network.
        known = classifier._outlier_scores("auto", dataset.x_test, raw, logits)
        unknown = classifier._outlier_scores("auto", other.x_test, other_raw, other_logits)
        is_unknown = np.repeat([0, 1], [len(known), len(unknown)])
        found["unknown_auroc"] = roc_auc_score(is_unknown, np.concatenate([known, unknown]))
        found["transfer"] = transfer_accuracy(classifier, other, _unit(other_raw))
        found |= new_class_accuracy(classifier, dataset, other, z, _unit(other_raw))
    return {name: round(float(value), 6) for name, value in found.items()}


def knn_accuracy(z: Floats, labels: Labels, gallery: Floats, gallery_labels: Labels, k: int = N_NEIGHBOURS) -> float:
    """Return the share of rows whose k nearest rows of the gallery vote for their label. All rows have length 1.

    Of classes with equally many votes the one with the larger cosines (1 - distance² / 2) wins.
    """
    k = min(k, len(gallery))
    distance, nearest = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(gallery).kneighbors(z)
    voted, weight = gallery_labels[nearest], 1 + (1 - distance**2 / 2) / (2 * k)
    votes = ((voted[:, :, None] == voted[:, None, :]) * weight[:, None, :]).sum(axis=2)  # for the label of each one
    winner = np.take_along_axis(voted, votes.argmax(axis=1)[:, None], axis=1)[:, 0]
    return float((winner == labels).mean())


def retrieval(z: Floats, labels: Labels) -> dict[str, float]:
    """Return recall@1 and mAP@R of rows of length 1, each of which is searched for among all others.

        mAP@R = mean_i 1/R_i Σ_{r ≤ R_i} [rank r has the label of i] · precision at r

    Rows that are the only ones of their class are left out.
    """
    n, n_relevant = len(z), np.bincount(labels)[labels] - 1
    most = int(n_relevant.max())
    if most == 0:
        return {}
    recalled, precision, ranks = [], [], np.arange(1, most + 1)
    for rows in np.array_split(np.arange(n), -(-n * n // _BLOCK_VALUES)):
        similarity = z[rows] @ z.T
        similarity[np.arange(len(rows)), rows] = -np.inf
        nearest = np.argpartition(-similarity, most - 1, axis=1)[:, :most]
        order = np.argsort(-np.take_along_axis(similarity, nearest, axis=1), axis=1, kind="stable")
        hits = labels[np.take_along_axis(nearest, order, axis=1)] == labels[rows, None]
        relevant = n_relevant[rows, None]
        counted = hits & (ranks <= relevant)
        precision.append((counted * np.cumsum(hits, axis=1) / ranks).sum(axis=1) / np.maximum(relevant[:, 0], 1))
        recalled.append(hits[:, 0])
    known = n_relevant > 0
    return {
        "recall_at_1": float(np.concatenate(recalled)[known].mean()),
        "map_at_r": float(np.concatenate(precision)[known].mean()),
    }


def transfer_accuracy(classifier: Classifier, second: Dataset, z_test: Floats) -> float:
    """Return the accuracy of logistic regression on embeddings `z_test` of the test images of the second set."""
    rows = np.sort(np.random.default_rng(0).permutation(len(second.y_train))[:TRANSFER_IMAGES])
    scale = StandardScaler()  # features of variance 1: the penalty is the same for every network
    z = scale.fit_transform(_unit(classifier.arrays(second.x_train[rows], "embedding")[0]))
    fifth = PredefinedSplit(np.where(np.arange(len(rows)) % 5 == 0, 0, -1))
    search = GridSearchCV(LogisticRegression(max_iter=300), {"C": STRENGTHS}, cv=fifth).fit(z, second.y_train[rows])
    return float(search.score(scale.transform(z_test), second.y_test))


def new_class_accuracy(
    classifier: Classifier, dataset: Dataset, second: Dataset, z: Floats, z_second: Floats
) -> dict[str, float]:
    """Return the accuracy on old and new classes after classes of the second set are added without training.

    z and z_second are the embeddings of the test images of both sets.
    """
    rng = np.random.default_rng(0)
    classes = np.sort(rng.permutation(np.unique(second.y_train))[:NEW_CLASSES])
    rows = np.concatenate([rng.permutation(np.flatnonzero(second.y_train == k))[:NEW_IMAGES] for k in classes])
    tested = np.isin(second.y_test, classes)
    x_new, n_old = second.x_train[rows], len(dataset.classes)
    y_new, y_test = (n_old + np.searchsorted(classes, y) for y in (second.y_train[rows], second.y_test[tested]))
    if isinstance(classifier.network.head, PrototypeHead):
        larger = copy.copy(classifier)
        larger.classes_ = np.arange(n_old)
        larger.add_class(x_new, y_new)
        answers = [larger.predict(x) for x in (dataset.x_test, second.x_test[tested])]
    else:
        assert classifier.examples is not None
        z_new = _unit(classifier.arrays(x_new, "embedding")[0])
        gallery = np.concatenate([classifier.examples.embedding, z_new])
        codes = np.concatenate([classifier.examples.codes, y_new])
        means = _unit(np.stack([gallery[codes == k].mean(axis=0) for k in range(n_old + len(classes))]))
        answers = [(one @ means.T).argmax(axis=1) for one in (z, z_second[tested])]
    return {
        "new_old": float((answers[0] == dataset.y_test).mean()),
        "new_new": float((answers[1] == y_test).mean()),
    }


def _unit(z: Floats) -> Floats:
    return unit(z).astype(np.float32)
