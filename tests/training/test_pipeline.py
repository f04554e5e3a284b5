"""From a data source to a finished run: what is written, what is equal, what is continued, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import esupcon
from esupcon._io import OWNED, OwnedFolder, locked, read_sealed_json
from esupcon.data import load
from esupcon.probability import Predictions, accuracy, brier_score, expected_calibration_error, negative_log_likelihood
from esupcon.spec import RunSpec, TrainSpec
from esupcon.training import Result, TrainData, TrainingInterrupted, fit, pipeline, train
from esupcon.training.estimate import Estimate, estimate
from esupcon.training.result import RUN_FILES
from tiny_images import write_npz

SETTINGS: dict[str, Any] = {"encoder": "mlp-16x1", "epochs": 12, "batch_size": 27, "precision": "32", "seed": 3}


def quiet(line: str) -> None:
    pass


def spec(source: Path, train: dict[str, Any] | None = None, **more: Any) -> RunSpec:
    fields = {"noise_rate": 0.1, "validation_fraction": 0.1, **more}
    return RunSpec(source=str(source), train=TrainSpec(**{**SETTINGS, **(train or {})}), **fields)


def run(source: Path, out: Path, settings: dict[str, Any] | None = None, **more: Any) -> Result:
    fields = more.pop("fields", {})
    return train(spec(source, settings, **fields), out, **{"log": quiet, "progress": False, **more})


def outcome(result: Result) -> dict[str, Any]:
    """Everything that must be equal for equal runs."""
    return result.model_dump(exclude={"provenance": True, "run": {"source"}})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "corners.npz")


@pytest.fixture(scope="module")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(source, tmp_path_factory.mktemp("run") / "out")


def test_everything_is_written_and_agrees(finished: Result, source: Path) -> None:
    names = {path.name for path in finished.folder.iterdir()} - {".lock"}
    assert names == {
        *("model", "result.json", "predictions.npz", "held_out.npz", "embedding.npz"),
        *("run.json", "history.jsonl", "timing.jsonl", OWNED),
    }
    data = load(source, log=quiet)
    stored = Predictions.load(finished.folder / "predictions.npz")
    assert np.array_equal(stored.labels, data.y_test)
    classifier = esupcon.load(finished.model)
    np.testing.assert_allclose(classifier.logits(data.x_test), stored.logits, atol=1e-5)
    assert tuple(classifier.classes_) == data.classes
    p, figures = stored.probabilities(), finished.metrics.test
    assert figures is not None
    assert figures.accuracy == accuracy(p, stored.labels) > 0.6
    assert figures.ece == pytest.approx(expected_calibration_error(p, stored.labels, 15))
    assert figures.nll == pytest.approx(negative_log_likelihood(p, stored.labels))
    assert figures.brier == pytest.approx(brier_score(p, stored.labels))
    assert [row.name for row in figures.per_class] == list(data.classes)
    assert [row.n for row in figures.per_class] == np.bincount(stored.labels).tolist()


def test_model_of_a_run_is_calibrated_on_the_held_out_part(finished: Result, source: Path, tmp_path: Path) -> None:
    assert esupcon.load(finished.model).calibration.how == "none"  # nine held-out samples are too few
    result = run(source, tmp_path / "out", fields={"validation_fraction": 0.4})
    calibration = esupcon.load(result.model).calibration
    assert (calibration.how, calibration.n) == ("held-out", 36)
    assert result.calibration.held_out is not None
    assert calibration.temperature == result.calibration.held_out.temperature
    assert result.calibration.paper is not None


def test_result_records_what_was_done(finished: Result, source: Path) -> None:
    values = read_sealed_json(finished.folder / "result.json")
    assert values["metrics"]["test"]["accuracy"] == finished.metrics.test.accuracy
    assert values["provenance"]["train_seconds"] > 0
    assert (finished.folder / "model" / "model.safetensors").is_file()
    record = finished.preparation
    assert (record.n_fit, record.n_held_out, record.n_test, sum(record.class_counts)) == (81, 9, 45, 81)
    assert record.scenario.n_wrong_labels == 9
    assert finished.provenance.versions["numpy"] == np.__version__
    assert finished.run.train.threads is not None
    again = Result.read(finished.folder)
    assert again.model_dump() == finished.model_dump()
    assert again.key == finished.run.key == read_sealed_json(finished.folder / "run.json")["key"]


def test_equal_runs_are_equal_wherever_the_data_lie(finished: Result, source: Path, tmp_path: Path) -> None:
    (tmp_path / "moved.npz").write_bytes(source.read_bytes())
    again = run(tmp_path / "moved.npz", tmp_path / "again")
    assert again.key == finished.key
    before, after = outcome(finished), outcome(again)
    assert (before["data"].pop("name"), after["data"].pop("name")) == (str(source), str(tmp_path / "moved.npz"))
    assert after == before
    for name in ("predictions.npz", "held_out.npz", "history.jsonl", "embedding.npz"):
        assert (again.folder / name).read_bytes() == (finished.folder / name).read_bytes(), name


def test_finished_run_is_not_trained_again(finished: Result, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "fit", lambda *args, **more: pytest.fail("trained again"))
    again = run(source, finished.folder)
    assert again.already_finished
    assert again.model_dump() == finished.model_dump()


def test_another_run_in_the_folder_is_refused_by_name(finished: Result, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds the result of another run: epochs was 12, now 5\. Choose another"):
        run(source, finished.folder, {"epochs": 5})
    with pytest.raises(ValueError, match=r"noise_rate was 0\.1, now 0\.2"):
        run(source, finished.folder, fields={"noise_rate": 0.2})
    with pytest.raises(ValueError, match="the data differ"):
        run(write_npz(tmp_path / "other.npz", seed=9), finished.folder)


@pytest.mark.parametrize(
    ("processes", "threads", "message"), [(2, 2, "processes was 1, now 2"), (1, 1, "threads was 2, now 1")]
)
def test_stopped_run_is_not_continued_with_other_processes_or_threads(
    processes: int, threads: int, message: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingInterrupted):
        run(source, tmp_path / "out", {"threads": 2}, should_stop=lambda: True)
    folder = pipeline.RunFolder(tmp_path / "out", quiet)
    known = folder.read()
    train = known.train.model_copy(update={"threads": threads})
    asked = known.model_copy(update={"processes": processes, "train": train})
    with pytest.raises(ValueError, match=message):
        folder.claim(asked, {"device": "cpu"})


def test_changed_data_are_another_run(source: Path, tmp_path: Path) -> None:
    """The key covers the content: a planned run refuses data that changed since."""
    path = write_npz(tmp_path / "data.npz")
    planned = run(path, tmp_path / "out", {"epochs": 1})
    write_npz(path, seed=9)
    with pytest.raises(ValueError, match="changed since this run was planned"):
        train(planned.run, tmp_path / "again", log=quiet)
    assert run(path, tmp_path / "new", {"epochs": 1}).key != planned.key


def test_overwrite_removes_what_the_old_run_wrote_and_nothing_else(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(source, out, {"epochs": 1})
    (out / "mine.txt").write_text("kept")
    (out / "model" / "notes.txt").write_text("kept")
    (out / "checkpoint-best.pt").write_text("kept")
    new = run(source, out, {"epochs": 2}, fields={"validation_fraction": 0.0}, overwrite=True, keep_model=False)
    assert new.run.train.epochs == 2
    assert new.metrics.held_out is None
    assert not (out / "held_out.npz").exists()
    assert not (out / "model" / "model.safetensors").exists()
    for kept in ("mine.txt", "model/notes.txt", "checkpoint-best.pt"):
        assert (out / kept).read_text() == "kept"


def test_stop_after_the_last_step_is_obeyed_and_continued(finished: Result, source: Path, tmp_path: Path) -> None:
    steps = iter(range(1, 1000))
    with pytest.raises(TrainingInterrupted):
        run(source, tmp_path / "out", should_stop=lambda: next(steps) > 36)
    assert len((tmp_path / "out" / "history.jsonl").read_text().splitlines()) == 12
    assert outcome(run(source, tmp_path / "out")) == outcome(finished)


def test_without_test_and_held_out_parts(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "d.npz", n_train=30, n_test=0)
    result = run(source, tmp_path / "out", {"epochs": 1}, fields={"validation_fraction": 0.0})
    assert result.preparation.n_test == 6  # drawn from train
    assert result.metrics.test is not None
    assert result.calibration.held_out is None


def test_further_processes_write_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "rank", lambda: 1)
    said: list[str] = []
    run(source, tmp_path / "out", {"epochs": 1}, log=said.append)
    assert not (tmp_path / "out" / "result.json").exists()
    assert said == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": -1}, "devices must be 1 or more; got -1"),
        ({"devices": 0}, "devices must be 1 or more; got 0"),
        ({"accelerator": "cuda"}, "'cuda' device.* cannot be used here"),
        ({"accelerator": "mps"}, "'mps' device.* cannot be used here"),
        ({"accelerator": "nonsense"}, "'nonsense' device.* cannot be used here"),
    ],
)
def test_device_that_is_absent_gives_one_line(
    options: dict[str, Any], message: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        run(source, tmp_path / "out", {"epochs": 1}, **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("method", ["ce", "esupcon", "supcon_ce"])
def test_the_estimate_changes_nothing_in_the_run(method: str) -> None:
    rng = np.random.default_rng(0)
    data = TrainData(rng.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8), np.arange(40) % 2, 2)
    spec = TrainSpec(method=method, encoder="fast", optimizer="muon", epochs=2, batch_size=20, precision="32")
    spec = spec.model_copy(update={"label_noise": 0.3})  # with a memory of labels, which must not see its steps
    found: list[Estimate] = []
    with_estimate = fit(spec, data, announce=lambda run: found.append(estimate(run)), progress=False)
    without = fit(spec, data, progress=False)
    assert found[0].before == 0 and found[0].epoch > 0 and found[0].after > 0
    assert found[0].total(4) - found[0].total(2) == pytest.approx(2 * found[0].epoch)
    for a, b in zip(with_estimate.network.state_dict().values(), without.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_folder_in_use_is_refused(source: Path, tmp_path: Path) -> None:
    OwnedFolder(tmp_path, RUN_FILES).claim()
    with locked(tmp_path / ".lock") as held:
        assert held
        with pytest.raises(ValueError, match="another process is training in"):
            run(source, tmp_path)
    assert not (tmp_path / "run.json").exists()
