from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from esupcon.data import load
from esupcon.experiments import measures
from esupcon.experiments.measures import figures, knn_accuracy, retrieval
from esupcon.spec import TrainSpec
from esupcon.training import TrainData, fit
from tiny_images import write_npz


def unit_rows(n: int, d: int, seed: int) -> np.ndarray:
    z = np.random.default_rng(seed).normal(size=(n, d))
    return (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)


def test_nearest_neighbours_agree_with_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_BLOCK_VALUES", 500)  # several blocks
    gallery, z = unit_rows(90, 5, 0), unit_rows(40, 5, 1)
    labels, wanted = (np.random.default_rng(2).integers(0, 2, n) for n in (90, 40))
    for k in (1, 7, 21):  # odd: no ties between two classes
        twin = KNeighborsClassifier(k, metric="cosine", algorithm="brute").fit(gallery, labels)
        assert knn_accuracy(z, wanted, gallery, labels, k) == pytest.approx(twin.score(z, wanted))


def test_retrieval_agrees_with_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_BLOCK_VALUES", 500)
    z, labels = unit_rows(41, 4, 0), np.append(np.random.default_rng(1).integers(0, 4, 40), 9)  # 9 is alone
    recalled, precisions = [], []
    for i in range(40):
        order = [j for j in np.argsort(-(z @ z[i])) if j != i]
        hits = [labels[j] == labels[i] for j in order]
        n_relevant = sum(hits)
        recalled.append(hits[0])
        precisions.append(sum(sum(hits[: r + 1]) / (r + 1) for r in range(n_relevant) if hits[r]) / n_relevant)
    assert retrieval(z, labels) == pytest.approx({"recall_at_1": np.mean(recalled), "map_at_r": np.mean(precisions)})
    assert retrieval(z[:3], np.arange(3)) == {}


@pytest.mark.parametrize("method", ["ce", "esupcon"])
def test_figures_of_a_run_on_its_own_and_a_second_data_set(tmp_path: Path, method: str) -> None:
    """Bright corners are learnt perfectly; the same images with other labels are known, and can be learnt again."""
    write_npz(tmp_path / "corners.npz")
    data = load(tmp_path / "corners.npz")
    spec = TrainSpec(method=method, encoder="mlp-16x1", epochs=15, batch_size=30, precision="32", threads=1)
    fitted = fit(spec, TrainData(data.x_train, data.y_train, len(data.classes)), log=None, progress=False)
    n_classes, examples = fitted.classifier.n_classes, fitted.classifier.examples
    found = figures(fitted, data, str(tmp_path / "corners.npz"))
    assert found.keys() == {
        *("knn_accuracy", "recall_at_1", "map_at_r", "unknown_auroc", "transfer", "new_old", "new_new")
    }
    assert min(found["knn_accuracy"], found["recall_at_1"], found["transfer"]) > 0.9
    assert found["unknown_auroc"] == pytest.approx(0.5)
    assert found["new_old"] + found["new_new"] <= 1.05, "each image has its old class and a new copy of it"
    assert (fitted.classifier.n_classes, fitted.classifier.examples) == (n_classes, examples), (
        "the model stays as it is"
    )
