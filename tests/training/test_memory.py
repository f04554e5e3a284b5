"""Wrong labels: the memory of beliefs, what it changes in training, and remedies for cross entropy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from small_data import quick_spec
from test_resume import same, stop_after
from torch.testing import assert_close

from esupcon.methods import METHODS
from esupcon.spec import TrainSpec
from esupcon.training import TrainData, TrainingInterrupted, fit
from esupcon.training.batches import BatchPlan
from esupcon.training.memory import KEPT, MOST, NEIGHBOURS, LabelMemory, estimate_rate
from esupcon.training.run import Run


def table(noise: float, n: int = 600, n_classes: int = 6, seed: int = 0) -> tuple[TrainData, np.ndarray]:
    """Rows around the corners of a simplex, of which a share has a wrong label; with the right labels."""
    rng = np.random.default_rng(seed)
    right = np.arange(n) % n_classes
    x = (3 * np.eye(n_classes)[right] + rng.normal(size=(n, n_classes))).astype(np.float32)
    wrong = rng.random(n) < noise
    given = np.where(wrong, (right + rng.integers(1, n_classes, n)) % n_classes, right)
    return TrainData(x, given.astype(np.int64), n_classes), right


def spec_of(**changes: object) -> TrainSpec:
    about = {"encoder": "mlp-64x2", "augmentation": "table_noise", "optimizer": "adamw", "lr": 3e-3, "temperature": 0.2}
    return quick_spec(**({**about, "epochs": 20, "batch_size": 60} | changes))


def test_memory_is_the_running_mean_over_views_and_visits() -> None:
    memory, views = LabelMemory(torch.tensor([0, 1, 2, 0]), 3, 0.5), torch.randn(3, 4, 3)
    for logits in views:  # rows 2, 1 in two views each; row 0 and 3 are never seen
        memory.record(torch.tensor([2, 1, 2, 1]), torch.randn(4, 5), logits)
    means = [torch.stack([view.softmax(1)[[1, 3]].mean(0), view.softmax(1)[[0, 2]].mean(0)]) for view in views]
    expected = KEPT * (KEPT * means[0] + (1 - KEPT) * means[1]) + (1 - KEPT) * means[2]
    assert memory.posterior is not None
    assert_close(memory.posterior[[1, 2]], expected)
    assert memory.seen.tolist() == [False, True, True, False]


def test_targets_move_from_the_label_to_the_belief() -> None:
    memory = LabelMemory(torch.tensor([0, 1]), 3, 0.5)
    memory.record(torch.tensor([0, 0]), torch.ones(2, 4), torch.tensor([[0.0, 0.0, 9.0]]).repeat(2, 1))
    samples, p = torch.tensor([0, 1]), torch.tensor([0.0, 0.0, 9.0]).softmax(0)
    assert memory.targets(samples, 0.3)[1] is None
    for progress, strength in ((0.5, MOST / 2), (0.7, MOST), (1.0, MOST)):
        labels, targets = memory.targets(samples, progress)
        assert targets is not None
        assert_close(targets[0], (1 - strength) * torch.tensor([1.0, 0.0, 0.0]) + strength * p)
        assert targets[1].tolist() == [0, 1, 0], "a sample that was never seen keeps its label"
        assert labels.tolist() == [0 if strength < 0.5 else 2, 1]


def test_neighbours_vote_without_the_sample_itself() -> None:
    rng = np.random.default_rng(0)
    z, labels = rng.normal(size=(90, 6)).astype(np.float32), rng.integers(0, 4, 90)
    memory = LabelMemory(torch.from_numpy(labels), 4, 0.5)
    memory.record(torch.arange(90), torch.from_numpy(z), None)
    memory.end_epoch(1, 0.5)
    assert memory.votes is not None
    for left_out in (0, 41, 89):
        others = np.delete(np.arange(90), left_out)
        oracle = KNeighborsClassifier(NEIGHBOURS, metric="cosine").fit(z[others], labels[others])
        assert_close(memory.votes[left_out].double().numpy(), oracle.predict_proba(z[[left_out]])[0])


@pytest.mark.parametrize("n_classes", [2, 5, 10, 100])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5])
def test_rate_of_random_labels_is_estimated(n_classes: int, rate: float) -> None:
    rng = np.random.default_rng(0)
    right = rng.integers(0, n_classes, 4000)
    wrong = rng.random(4000) < rate
    given = np.where(wrong, (right + rng.integers(1, n_classes, 4000)) % n_classes, right)
    belief = torch.from_numpy(rng.random((4000, n_classes)) + 2 * np.eye(n_classes)[right])
    assert abs(estimate_rate(belief, torch.from_numpy(given)) - rate) < 0.04


@pytest.mark.parametrize("method", METHODS)
def test_wrong_labels_do_less_harm_with_a_memory(method: str) -> None:
    """For every method: rows whose label is wrong are predicted right more often, and the rate is found."""
    data, right = table(0.4)
    wrong = data.y != right
    plain, remembered = (fit(spec_of(method=method, label_noise=noise), data) for noise in (None, "auto"))
    found = [(one.classifier.logits(data.x).argmax(1) == right)[wrong].mean() for one in (plain, remembered)]
    assert found[1] > max(found[0] - 0.01, 0.8), found
    assert ["wrong-labels" in {one.code for one in fitted.findings} for fitted in (plain, remembered)] == [False, True]
    assert plain.noise_rate == 0
    assert 0.12 < remembered.noise_rate < 0.6


@pytest.mark.parametrize("epochs", [1, 20])
def test_clean_labels_are_left_alone(epochs: int) -> None:
    """After one epoch the network knows too little to judge labels."""
    data, _ = table(0.0)
    plain, remembered = (fit(spec_of(label_noise=noise, epochs=epochs), data) for noise in (None, "auto"))
    for (name, a), b in zip(plain.network.state_dict().items(), remembered.network.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("method", ["esupcon", "supcon_ce"])
@pytest.mark.parametrize("steps", [25, 85])
def test_run_with_a_memory_continues_bit_identical(tmp_path: Path, method: str, steps: int) -> None:
    spec, data = spec_of(method=method, label_noise="auto", epochs=10), table(0.4)[0]
    whole = fit(spec, data, out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        fit(spec, data, out=tmp_path / "parts", should_stop=stop_after(steps))
    same(whole, fit(spec, data, out=tmp_path / "parts"), tmp_path / "whole", tmp_path / "parts")


def test_mixup_and_generalised_cross_entropy_learn_despite_wrong_labels() -> None:
    data, right = table(0.4)
    for settings in ({"mixup": 1.0}, {"ce_power": 0.7}):
        logits = fit(spec_of(method="ce", **settings), data).classifier.logits(data.x)
        assert (logits.argmax(1) == right).mean() > 0.85, settings


def test_a_mixed_view_is_mostly_the_sample_that_it_counts_as() -> None:
    """Pairs of samples and the memory of labels take it for that sample."""
    labels, views = torch.arange(8), torch.eye(8)
    for seed in range(20):
        about = {"spec": TrainSpec(method="ce", mixup=1.0), "data": SimpleNamespace(n_classes=8)}
        mixed, targets = Run.mix(SimpleNamespace(**about, seed=lambda purpose, seed=seed: seed), views, labels, None)
        assert targets is not None
        own = targets.gather(1, labels[:, None])
        assert (own >= 0.5).all()
        assert_close(mixed, targets)
    data, _ = table(0.0)
    fitted = fit(spec_of(method="supcon_cosine_ce", mixup=1.0, label_noise="auto"), data)
    assert (fitted.classifier.logits(data.x).argmax(1) == data.y).mean() > 0.9


def test_batches_hold_several_images_of_each_class() -> None:
    labels = np.repeat(np.arange(20), 30)
    plan = BatchPlan.of(600, 50)
    order = plan.order(0, 0, 0, groups=(labels, 5))
    assert sorted(order.tolist()) == list(range(600))
    for step in range(plan.steps_per_epoch):
        _, counts = np.unique(labels[plan.indices(order, step)], return_counts=True)
        assert (counts % 5 == 0).all()
    assert (plan.order(0, 0, 1, groups=(labels, 5)) != order).any()
