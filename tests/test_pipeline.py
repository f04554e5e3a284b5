"""From a source to a finished run: what is written, what is equal, what is continued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esupcon._io import OwnedFolder, locked
from esupcon.classifier import load_classifier
from esupcon.data import Dataset, load
from esupcon.data.scenarios import Scenario
from esupcon.files import read_sealed_json
from esupcon.pipeline import provenance
from esupcon.pipeline import training as pipeline
from esupcon.pipeline.prepare import DataOptions, default_epochs, has_drawn_test_part, prepare
from esupcon.pipeline.training import read_result, train
from esupcon.probability import Predictions, accuracy, brier_score, expected_calibration_error, negative_log_likelihood
from esupcon.spec import TrainSpec
from esupcon.training import TrainingInterrupted
from esupcon.training.result import RUN_FILES
from tiny_images import write_npz

SPEC = TrainSpec(encoder="mlp-16x1", epochs=12, batch_size=27, precision="32", seed=3)
SCENARIO = Scenario(noise_rate=0.1, seed=3)


def quiet(line: str) -> None:
    pass


def run(source: Path, out: Path, spec: TrainSpec = SPEC, **more: Any) -> pipeline.Result:
    settings: dict[str, Any] = {"scenario": SCENARIO, "log": quiet, "progress": False, **more}
    return train(source, spec, out=out, **settings)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "corners.npz")


@pytest.fixture(scope="module")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> pipeline.Result:
    return run(source, tmp_path_factory.mktemp("run") / "out")


def test_everything_is_written_and_agrees(finished: pipeline.Result, source: Path) -> None:
    names = {path.name for path in finished.out.iterdir()}
    assert names == {
        *("model", "result.json", "predictions.npz", "held_out.npz", "embedding.npz"),
        *("run.json", "history.jsonl", "timing.jsonl", ".esupcon.json"),
    }
    data = load(source, log=quiet)
    stored = Predictions.load(finished.out / "predictions.npz")
    assert np.array_equal(stored.labels, data.y_test)
    classifier = load_classifier(finished.model)
    np.testing.assert_allclose(classifier.logits(data.x_test), stored.logits, atol=1e-5)
    assert tuple(classifier.classes_.tolist()) == data.classes
    assert classifier.about.data.fingerprint == data.fingerprint
    p = stored.probabilities()
    figures = finished.metrics
    assert figures is not None
    assert figures["accuracy"] == accuracy(p, stored.labels) > 0.6
    assert figures["ece"] == pytest.approx(expected_calibration_error(p, stored.labels, 15))
    assert figures["nll"] == pytest.approx(negative_log_likelihood(p, stored.labels))
    assert figures["brier"] == pytest.approx(brier_score(p, stored.labels))
    for k, row in enumerate(figures["per_class"]):
        of_class = stored.labels == k
        assert row["class"] == data.classes[k]
        assert row["n"] == of_class.sum()
        assert row["accuracy"] == np.mean(p[of_class].argmax(1) == k)
        assert row["precision"] == pytest.approx(np.mean(stored.labels[p.argmax(1) == k] == k))
        assert row["probability"] == pytest.approx(p[of_class, k].mean())


def test_the_record_says_what_was_done(finished: pipeline.Result) -> None:
    values = read_sealed_json(finished.out / "result.json")
    assert values["spec"] == SPEC.model_dump()
    record = values["preparation"]
    assert (record["n_fit"], record["n_held_out"], record["n_test"]) == (81, 9, 45)
    assert record["scenario"]["n_wrong_labels"] == 9
    assert values["provenance"]["seconds"] > 0
    assert values["provenance"]["versions"]["numpy"] == np.__version__
    assert read_result(finished.out).as_dict() == values


def test_equal_runs_are_equal(finished: pipeline.Result, source: Path, tmp_path: Path) -> None:
    again = run(source, tmp_path / "again")
    assert again.outcome == finished.outcome
    for name in ("predictions.npz", "held_out.npz", "history.jsonl", "run.json"):
        assert (again.out / name).read_bytes() == (finished.out / name).read_bytes(), name


def test_a_finished_run_is_not_trained_again(
    finished: pipeline.Result, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **more: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(pipeline, "fit", never)
    again = run(source, finished.out)
    assert again.already_finished
    assert again.outcome == finished.outcome


def test_another_run_in_the_folder_is_refused(finished: pipeline.Result, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds the result of another run: epochs was 12, now 5\. Choose another"):
        run(source, finished.out, SPEC.model_copy(update={"epochs": 5}))
    with pytest.raises(ValueError, match=r"noise_rate of the setting was 0\.1, now 0\.2"):
        run(source, finished.out, scenario=replace(SCENARIO, noise_rate=0.2))
    with pytest.raises(ValueError, match="its data differ"):
        run(write_npz(tmp_path / "other.npz", seed=9), finished.out)


def test_overwrite_leaves_nothing_of_the_old_run(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(source, out, SPEC.model_copy(update={"epochs": 1}))
    (out / "mine.txt").write_text("kept")
    spec = SPEC.model_copy(update={"epochs": 2})
    new = run(source, out, spec, overwrite=True, validation_fraction=0.0)
    assert new.outcome["spec"]["epochs"] == 2
    assert not (out / "held_out.npz").exists()
    assert (out / "mine.txt").read_text() == "kept"
    assert new.outcome["metrics"]["held_out"] is None


def test_a_stopped_run_goes_on_and_ends_as_if_it_had_not_been(
    finished: pipeline.Result, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    asked = 0

    def stop_at_step_five() -> bool:
        nonlocal asked
        asked += 1
        return asked == 5

    with pytest.raises(TrainingInterrupted):
        run(source, out, should_stop=stop_at_step_five)
    assert not (out / "result.json").exists()
    said: list[str] = []
    result = run(source, out, log=said.append)
    assert any("Continuing at epoch 2, step 3" in line for line in said)
    assert result.outcome == finished.outcome
    assert (out / "predictions.npz").read_bytes() == (finished.out / "predictions.npz").read_bytes()


@pytest.mark.parametrize("stage", ["measure", "save_trained", "write_sealed_json"])
def test_killed_while_results_are_written(
    stage: str, finished: pipeline.Result, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def killed(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pipeline, stage, killed)
        run(source, out)
    assert not (out / "result.json").exists()
    assert run(source, out).outcome == finished.outcome


def test_without_test_and_held_out_parts(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "d.npz", n_train=30, n_test=0)
    result = run(source, tmp_path / "out", SPEC.model_copy(update={"epochs": 1}), validation_fraction=0.0)
    assert result.outcome["preparation"]["n_test"] == 6  # drawn from train, where there is none
    assert result.metrics is not None


def test_further_processes_write_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "is_first_process", lambda: False)
    said: list[str] = []
    run(source, tmp_path / "out", SPEC.model_copy(update={"epochs": 1}), log=said.append)
    assert not (tmp_path / "out" / "result.json").exists()
    assert said == []


def test_which_process_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert provenance.is_first_process()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not provenance.is_first_process()
    monkeypatch.setenv("RANK", "0")
    assert provenance.is_first_process()


@given(
    labels=st.lists(st.integers(0, 3), min_size=8, max_size=60).filter(lambda y: len(set(y)) > 1),
    fraction=st.floats(0.0, 0.6),
    seed=st.integers(0, 50),
)
def test_parts_are_disjoint_and_whole(labels: list[int], fraction: float, seed: int) -> None:
    y = np.array(labels, np.int64)
    # Every image carries its own number, so that it can be found again.
    x = np.arange(len(y), dtype=np.uint8).reshape(-1, 1, 1, 1).repeat(4, 2).repeat(4, 3)
    prepared = prepare(Dataset(x, y, x[:0], y[:0], ("a", "b", "c", "d")), Scenario(), fraction, seed)
    fit, held = prepared.train.x[:, 0, 0, 0], prepared.x_held[:, 0, 0, 0]
    assert sorted([*fit, *held]) == list(range(len(y)))
    assert np.array_equal(y[fit], prepared.train.y)
    assert np.array_equal(y[held], prepared.y_held)
    assert set(y[fit]) == set(labels)  # no class is lost to the held-out part
    assert (prepared.train.x_held is None) == (len(held) == 0)
    if fraction == 0:
        assert len(held) == 0


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0, float("nan")])
def test_a_validation_fraction_that_is_none(source: Path, fraction: float) -> None:
    with pytest.raises(ValueError, match="validation_fraction must lie between 0"):
        prepare(load(source, log=quiet), Scenario(), fraction, 0)


def test_epochs_follow_the_size_of_the_data(source: Path, tmp_path: Path) -> None:
    assert [default_epochs(n) for n in (0, 100, 2_000, 50_000, 10**7)] == [200, 200, 100, 20, 20]
    said: list[str] = []
    spec = SPEC.model_copy(update={"steps": 2})
    assert run(source, tmp_path / "a", spec, choose_epochs=True).outcome["spec"]["epochs"] == SPEC.epochs
    spec = SPEC.model_copy(update={"patience": 1, "lr": 1e-9})
    result = run(source, tmp_path / "b", spec, choose_epochs=True, log=said.append)
    assert result.outcome["spec"]["epochs"] == 200
    assert any("200 epochs, chosen by the 81 samples" in line for line in said)


def test_whether_a_test_part_was_drawn(source: Path, tmp_path: Path) -> None:
    assert not has_drawn_test_part(DataOptions().load(source, quiet))
    flat = write_npz(tmp_path / "flat.npz", n_test=0)
    assert has_drawn_test_part(DataOptions().load(flat, quiet))


def test_a_folder_in_use_is_left_alone(source: Path, tmp_path: Path) -> None:
    OwnedFolder(tmp_path, RUN_FILES).claim()
    with locked(tmp_path / ".lock") as held:
        assert held
        with pytest.raises(ValueError, match="another process is training in"):
            run(source, tmp_path)
    assert not (tmp_path / "run.json").exists()


def test_a_damaged_result_is_named(source: Path, tmp_path: Path) -> None:
    OwnedFolder(tmp_path, RUN_FILES).claim()
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ValueError, match="was changed after it was written"):
        run(source, tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no finished run"):
        read_result(tmp_path / "nowhere")
