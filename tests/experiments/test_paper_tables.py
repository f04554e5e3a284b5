"""Compare the transcription of the paper's tables with the averages that it prints."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from esupcon.data import load
from esupcon.experiments import measures
from esupcon.experiments.measures import figures, knn_accuracy, retrieval
from esupcon.experiments.plan import Table, make_plan, read_toml, shipped
from esupcon.spec import TrainSpec
from esupcon.training import TrainData, fit
from tiny_images import write_npz

# Average difference to CE over a table's columns, as printed; in brackets what the printed accuracies give instead.
PRINTED_AVERAGES = {
    "full": {"supcon_ce": 0.36, "spce": -1.16, "spce_m": -1.49, "esupcon": 0.97},
    "low_sample": {"supcon_ce": 8.22, "supcon_ce_n": 7.41, "supcon_tt": 6.88, "spce": 1.43, "esupcon": 7.97},
    "imbalanced": {"supcon_ce": -0.64, "supcon_ce_n": -17.24, "supcon_tt": 1.46, "spce": -0.95, "esupcon": 2.86},
    "noisy": {"supcon_ce": -3.42, "supcon_ce_n": -1.47, "supcon_tt": 2.64, "spce": -0.80, "esupcon": 1.75},
}
WRONG_AVERAGES = {"supcon_ce_n": (-1.52, -2.24), "supcon_tt": (-2.24, -1.58)}  # of the table `full`
N_COLUMNS = {"full": 4, "low_sample": 9, "imbalanced": 9, "noisy": 9}


def average_gain(table: Table, method: str) -> float:
    return statistics.fmean(column.paper_accuracy[method] - column.paper_accuracy["ce"] for column in table.columns)


@pytest.mark.parametrize("name", PRINTED_AVERAGES)
def test_differences_of_accuracies_give_the_printed_averages(name: str) -> None:
    table = read_toml(Table, name)
    assert len(table.columns) == N_COLUMNS[name]
    for method, printed in PRINTED_AVERAGES[name].items():
        # 0.02: the paper averages differences it has rounded.
        assert average_gain(table, method) == pytest.approx(printed, abs=0.02), method


def test_wrong_averages_of_the_paper_are_noted() -> None:
    table = read_toml(Table, "full")
    for method, (printed, derived) in WRONG_AVERAGES.items():
        assert average_gain(table, method) == pytest.approx(derived, abs=0.005)
        assert abs(printed - derived) > 0.3
        assert any(f"{derived:.2f}" in note for note in table.notes)


def test_wrong_signs_of_the_noisy_table_are_noted() -> None:
    table = read_toml(Table, "noisy")
    wrong = [c for c in table.columns if c.dataset == "tiny_imagenet" and c.setting in ("NR=0.3", "NR=0.2")]
    assert [round(c.paper_accuracy["supcon_ce"] - c.paper_accuracy["ce"], 2) for c in wrong] == [-3.42, -0.66]
    assert any("wrong sign" in note for note in table.notes)


def test_totals_of_every_table() -> None:
    """Sums over all printed figures: a digit mistyped later is found here."""
    totals = {}
    for name in (*N_COLUMNS, "calibration"):
        columns = read_toml(Table, name).columns
        totals[name] = round(sum(sum((c.paper_accuracy | c.paper_ece).values()) for c in columns), 4)
    assert totals == {
        **{"full": 2033.29, "low_sample": 3314.3, "imbalanced": 3385.39, "noisy": 3170.935},
        **{"calibration": 0.2581},
    }


@pytest.mark.parametrize("profile", shipped("profiles"))
@pytest.mark.parametrize("name", shipped("tables"))
def test_every_table_can_be_planned_under_every_profile(name: str, profile: str) -> None:
    rows = make_plan(name, profile).rows
    places = {(row.dataset, row.setting, row.method, row.seed) for row in rows}
    assert len(places) == len({row.key for row in rows}) == len(rows)
    assert all(row.paper_accuracy is None or row.paper_accuracy > 0 for row in rows), "not a difference"
    if profile == "smoke":
        assert {row.dataset for row in rows} == {"digits"}, "it needs no download"
    if profile == "paper" and name in N_COLUMNS:
        assert len({(row.dataset, row.setting) for row in rows}) == N_COLUMNS[name]
        assert all(row.reduced is None for row in rows)
        assert all(row.paper_accuracy is not None for row in rows if row.method != "spce_m")


def test_run_in_two_tables_has_one_key() -> None:
    few = {row.key for row in make_plan("low_sample", "cpu").rows}
    assert {row.key for row in make_plan("calibration", "cpu").rows} <= few


# --- Figures of a run ------------------------------------------------------------------------------------------------


def unit_rows(n: int, d: int, seed: int) -> np.ndarray:
    z = np.random.default_rng(seed).normal(size=(n, d))
    return (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)


def test_nearest_neighbours_vote_and_larger_cosines_decide_ties() -> None:
    gallery, z = unit_rows(90, 5, 0), unit_rows(40, 5, 1)
    labels, wanted = (np.random.default_rng(2).integers(0, 3, n) for n in (90, 40))
    for k in (1, 8, 21):
        n_right = 0
        for row, label in zip(z, wanted, strict=True):
            cosines = gallery @ row
            nearest = np.argsort(-cosines)[:k]
            votes = [(sum(labels[nearest] == c), cosines[nearest][labels[nearest] == c].sum()) for c in range(3)]
            n_right += votes.index(max(votes)) == label
        assert knn_accuracy(z, wanted, gallery, labels, k) == n_right / 40


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
