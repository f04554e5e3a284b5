"""The rules of `Watch`, one by one, on made-up losses and embeddings."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esupcon.doctor import Finding, Watch
from esupcon.doctor.watch import mean_cosine
from esupcon.methods import METHODS

RNG = np.random.default_rng(0)
LABELS = np.arange(200) % 10
CLUSTERS = np.eye(10)[LABELS] + 0.1 * RNG.normal(size=(200, 10))
POINT = np.ones((200, 10)) + 1e-3 * RNG.normal(size=(200, 10))
PLATEAU = math.log(255)  # of supcon with 128 images in two views


def make(**changes: Any) -> Watch:
    values = {"losses": {"supcon": 1.0}, "n_batch": 128, "n_classes": 10, "n_steps": 1000, "temperature": 0.1}
    return Watch(**{**values, **changes})


def feed(watch: Watch, losses: Any, lr: float = 0.1) -> list[Finding]:
    return [finding for loss in losses for finding in watch.step(float(loss), lr)]


def codes(found: list[Finding]) -> list[str]:
    return [finding.code for finding in found]


def noisy(values: Any, spread: float = 0.05) -> np.ndarray:
    return np.asarray(values) + spread * np.random.default_rng(1).normal(size=np.shape(values))


def run(watch: Watch, losses: np.ndarray, embedding: np.ndarray, accuracy: float | None, **more: Any) -> list[Finding]:
    """Ten steps an epoch."""
    found = []
    for epoch, part in enumerate(np.split(losses, len(losses) // 10)):
        found += feed(watch, part)
        found += watch.epoch(epoch, part.mean(), accuracy, embedding, LABELS, **more)
    return found


LEARNS = noisy(3.5 + 2.1 * np.exp(-np.arange(1000) / 150))
ODD_BATCHES = LEARNS + 4.0 * (np.arange(1000) % 25 == 0)
RISES = np.repeat([5.5, 6.6], [10, 990])
FALLS_A_LITTLE = noisy(np.full(1000, 5.0), 0.02)


@pytest.mark.parametrize(
    ("losses", "embedding", "accuracy", "changes", "expected"),
    [
        (LEARNS, CLUSTERS, 0.9, {}, []),
        (ODD_BATCHES, CLUSTERS, 0.9, {}, []),
        (RISES, CLUSTERS, 0.1, {}, ["lr-too-high"]),
        (np.full(1000, PLATEAU), CLUSTERS, 0.1, {}, ["stuck"]),
        (np.full(1000, PLATEAU), CLUSTERS, 0.1, {"temperature": 50.0}, ["temperature-too-high"]),
        (np.full(1000, PLATEAU), POINT, 0.6, {}, []),  # all alike, and yet they are classified
        (np.linspace(PLATEAU, 4.5, 400), POINT, None, {}, []),  # all alike, but the loss has left the plateau
        (np.linspace(PLATEAU, 4.4, 1000), CLUSTERS, 0.1, {}, []),  # slow is not stuck
        (FALLS_A_LITTLE, CLUSTERS, None, {}, []),
        (FALLS_A_LITTLE, CLUSTERS, 0.1, {}, ["stuck"]),
    ],
)
def test_findings_of_a_run(losses: Any, embedding: Any, accuracy: Any, changes: Any, expected: list[str]) -> None:
    assert codes(run(make(**changes), losses, embedding, accuracy)) == expected


def test_usual_start_of_a_fresh_network_has_no_findings() -> None:
    """Cosines near 1 and a loss of log(n-1) through the warm-up and a little longer."""
    watch = make(warmup_steps=100)
    losses = np.concatenate([np.full(150, PLATEAU), np.linspace(PLATEAU, 4, 850)])
    found = run(watch, losses[:150], POINT, 0.1)
    for epoch, part in enumerate(np.split(losses[150:], 85)):
        found += feed(watch, part)
        found += watch.epoch(15 + epoch, part.mean(), 0.5, CLUSTERS, LABELS)
    assert found == []


@pytest.mark.parametrize("embedding", [POINT, np.zeros((200, 10))])
def test_collapse_is_reported_once(embedding: np.ndarray) -> None:
    (finding,) = run(make(warmup_steps=100), np.full(1000, PLATEAU), embedding, 0.1)
    assert finding.code == "collapse"
    assert "mean cosine between samples is 1.0000" in finding.message
    assert "the loss is 5.541, where a collapsed embedding has 5.541" in finding.message


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_loss_that_is_not_finite_is_an_error_reported_once(bad: float) -> None:
    watch = make()
    feed(watch, [5.5, 5.4, 5.3])
    (finding,) = watch.step(bad, 0.2)
    assert (finding.code, finding.severity) == ("loss-not-finite", "error")
    assert "at step 4 (the first was 5.5, the last 5.3), at learning rate 0.2" in finding.message
    assert watch.step(bad, 0.2) == []
    assert "at step 1, at" in make().step(bad, 0.2)[0].message


def test_embeddings_that_are_not_finite_are_the_same_error() -> None:
    broken = CLUSTERS.copy()
    broken[[3, 7], 2] = np.nan, np.inf
    (finding,) = make().epoch(4, 5.0, 0.5, broken, LABELS)
    assert finding.code == "loss-not-finite"
    assert "after epoch 5" in finding.message and "2 of 200 embeddings" in finding.message


def test_explosion_is_reported_at_once() -> None:
    watch = make(losses={"ce": 1.0}, head="linear")
    assert feed(watch, [2.3, 2.3]) == []
    assert codes(watch.step(1e6, 0.1)) == ["lr-too-high"]
    assert feed(watch, [1e9, 1e12]) == []


def test_stuck_needs_time_without_progress() -> None:
    watch = make(losses={"ce": 1.0}, head="linear", warmup_steps=100)
    assert run(watch, noisy(np.full(380, 2.3), 0.02), CLUSTERS, 0.1) == []
    found = run(watch, noisy(np.full(100, 2.3), 0.02), CLUSTERS, 0.1)
    assert codes(found) == ["stuck"]


def test_standstill_of_crowded_embeddings_becomes_a_collapse() -> None:
    watch, found = make(warmup_steps=400), []
    for epoch in range(3):
        found.append(codes(feed(watch, np.full(400, 6.0))))
        found.append(codes(watch.epoch(epoch, 6.0, 0.1, POINT, LABELS)))
    assert found == [[], [], [], [], [], ["collapse"]]


def test_rising_accuracy_is_progress() -> None:
    watch, found = make(), []
    for epoch in range(100):
        found += feed(watch, np.full(10, 5.0))
        found += watch.epoch(epoch, 5.0, 0.08 + 0.002 * epoch, CLUSTERS, LABELS)
    assert found == []


def test_temperatures_far_from_the_suggested_one_are_found_at_the_first_step() -> None:
    for temperature, code in ((0.001, "low"), (0.007, "low"), (0.02, ""), (0.5, ""), (1.0, "high"), (3.0, "high")):
        found = make(temperature=temperature).step(5.5, 0.1)
        assert codes(found) == ([f"temperature-too-{code}"] if code else [])
        assert all("temperature to about 0.16" in one.remedy for one in found)


def test_predicting_one_class_only_is_reported_at_the_end_unless_explained() -> None:
    constant = np.tile(np.eye(10)[3], (200, 1))
    watch = make(n_steps=100, losses={"ce": 1.0}, head="linear")
    losses = np.linspace(2.3, 2.0, 100)
    assert run(watch, losses[:90], CLUSTERS, 0.1, logits=constant) == []
    (finding,) = run(watch, losses[90:], CLUSTERS, 0.1, logits=constant)
    assert (finding.code, finding.severity) == ("one-prediction", "warning")
    assert "all 200 training samples are predicted as class 3, also the 180 of other classes" in finding.message
    varied = np.eye(10)[np.where(np.arange(200) < 3, 4, 3)]
    assert run(make(n_steps=100), np.linspace(5.5, 4, 100), CLUSTERS, 0.1, logits=varied) == []
    collapsed = run(make(n_steps=400), np.full(400, PLATEAU), POINT, 0.1, logits=constant)
    assert codes(collapsed) == ["collapse"]


def test_findings_of_an_earlier_stage_are_repeated_only_if_more_severe() -> None:
    first = run(make(), np.full(400, PLATEAU), POINT, 0.1)
    assert run(make(already_reported=first), np.full(400, PLATEAU), POINT, 0.1) == []
    milder = [one.model_copy(update={"severity": "note"}) for one in first]
    assert run(make(already_reported=milder), np.full(400, PLATEAU), POINT, 0.1) == first


@settings(max_examples=25)
@given(st.integers(0, 59), st.integers(0, 5))
def test_restored_watch_continues_as_if_never_stopped(cut: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = np.concatenate([np.full(20, 5.5), rng.choice([5.5, 5.541, 6.8, 9.0, 100.0], 40)])
    embeddings = [POINT if rng.random() < 0.7 else CLUSTERS for _ in range(60)]

    def go(watch: Watch, steps: range) -> list[Finding]:
        found = []
        for i in steps:
            found += watch.step(losses[i], 0.1)
            found += watch.epoch(i, losses[i], 0.1, embeddings[i], LABELS)
        return found

    whole = make(n_steps=60)
    expected = go(whole, range(60))
    before, after = make(n_steps=60), make(n_steps=60)
    found = go(before, range(cut))
    state = json.loads(json.dumps(before.state_dict(), allow_nan=False))
    after.load_state_dict(state)
    found += go(after, range(cut, 60))
    assert found == expected
    assert after.state_dict() == whole.state_dict()
    assert state == json.loads(json.dumps(before.state_dict()))  # loading shares nothing with what it was given


def test_one_class_has_no_findings_but_nan() -> None:
    watch = make(n_classes=1)
    found = feed(watch, np.full(300, PLATEAU))
    found += watch.epoch(0, PLATEAU, 1.0, POINT, np.zeros(200, int), logits=np.zeros((200, 1)))
    assert found == []
    assert codes(watch.step(math.nan, 0.1)) == ["loss-not-finite"]


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.key)
def test_every_stage_of_every_method_can_be_watched(method: Any) -> None:
    for stage in method.stages:
        watch = make(losses={term.loss: term.weight for term in stage.terms}, head=method.head, class_counts=[20] * 10)
        assert watch.span > 0
        losses = noisy(np.linspace(watch.collapsed + 1, watch.best + 0.3, 1000), 0.02)  # prototypes start apart
        assert run(watch, losses, CLUSTERS, 0.9) == []


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=60),
    st.sampled_from(["supcon", "spce", "esupcon", "ce", "tightness"]),
    st.integers(1, 30),
)
@settings(max_examples=60)
def test_any_losses_are_accepted(losses: list[float], name: str, n_classes: int) -> None:
    watch = make(losses={name: 1.0}, n_classes=n_classes, n_steps=60)
    found = feed(watch, losses)
    found += watch.epoch(0, losses[-1], None, CLUSTERS, LABELS)
    assert all("\n" not in str(one) for one in found)
    assert ("loss-not-finite" in {one.code for one in found}) == (not np.isfinite(losses).all())


def test_long_samples_are_thinned_and_half_precision_is_accepted() -> None:
    z = np.tile(CLUSTERS, (10, 1)).astype(np.float16)
    watch, same = make(), make()
    rows = np.linspace(0, 1999, 512).round().astype(int)
    watch.epoch(0, 5.0, 0.5, z, np.tile(LABELS, 10))
    same.epoch(0, 5.0, 0.5, z[rows].astype(np.float32), np.tile(LABELS, 10)[rows])
    assert watch.state_dict() == same.state_dict()


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 3), st.sampled_from([1e-30, 1.0, 1e30]), st.integers(0, 99))
def test_mean_cosine_is_that_of_all_pairs(n: int, d: int, n_zero: int, scale: float, seed: int) -> None:
    z = np.random.default_rng(seed).normal(size=(n, d)) * scale
    z[: min(n_zero, n)] = 0
    length = np.linalg.norm(z, axis=1, keepdims=True)
    # An extra dimension in which only zero vectors have a length.
    unit = np.hstack([np.divide(z, length, out=np.zeros_like(z), where=length > 0), length == 0])
    cosines = unit @ unit.T
    assert mean_cosine(z) == pytest.approx(cosines[~np.eye(n, dtype=bool)].mean(), abs=1e-9)
