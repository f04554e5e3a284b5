"""Compare the transcription of the paper's tables with the averages that it prints."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest

from esupcon.experiments.plan import Table, make_plan, read_toml, shipped

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
    """Sums over all printed accuracies: a digit mistyped later is found here."""
    totals = {}
    for name in N_COLUMNS:
        table = read_toml(Table, name)
        totals[name] = round(sum(sum(column.paper_accuracy.values()) for column in table.columns), 3)
    assert totals == {"full": 2033.29, "low_sample": 3314.3, "imbalanced": 3385.39, "noisy": 3170.935}


def test_calibration_errors() -> None:
    table = read_toml(Table, "calibration")
    assert table.columns[0].paper_ece == {
        "ce": 0.03, "supcon_ce": 0.0492, "supcon_tt": 0.0621, "spce_m": 0.0562, "esupcon": 0.0606
    }  # fmt: skip


@pytest.mark.parametrize("profile", shipped("profiles"))
@pytest.mark.parametrize("name", shipped("tables"))
def test_every_table_can_be_planned_under_every_profile(name: str, profile: str) -> None:
    plan = make_plan(name, profile)
    places = [(row.dataset, row.setting, row.method, row.seed) for row in plan.rows]
    assert len(set(places)) == len(places) > 0
    assert len({row.key for row in plan.rows}) == len(places)
    assert all(value > 0 for row in plan.rows if (value := row.paper_accuracy) is not None), "not a difference"
    if profile == "smoke":
        assert {row.dataset for row in plan.rows} == {"digits"}, "it needs no download"


def test_paper_profile_has_the_columns_and_figures_of_the_paper() -> None:
    for name, n in N_COLUMNS.items():
        rows = make_plan(name, "paper").rows
        assert len({(row.dataset, row.setting) for row in rows}) == n
        assert {row.spec.train.encoder for row in rows} == {"resnet50"}
        assert all(row.reduced is None for row in rows)
        assert all(row.paper_accuracy is not None for row in rows if row.method != "spce_m")


def test_run_in_two_tables_has_one_key() -> None:
    few = {row.key for row in make_plan("low_sample", "cpu").rows}
    assert {row.key for row in make_plan("calibration", "cpu").rows} <= few


def test_planning_and_reading_a_store_need_no_torch() -> None:
    code = (
        "import sys, esupcon.experiments.store; from esupcon.experiments.plan import make_plan; "
        "make_plan('full', 'paper'); print('torch' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "False"
