"""Cells of tables against numbers worked out by hand, and against SciPy on random numbers."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_stores import Filler, note_plan, row, write_run
from scipy.stats import ttest_rel

from esupcon.experiments.store import Store
from esupcon.probability import Predictions, paper_calibration
from esupcon.report.aggregate import ResultTable, paired_interval, summary_of
from esupcon.report.content import read

POINTS = st.floats(0, 100, allow_nan=False).map(lambda value: round(value, 3))


def only_table(store: Store) -> ResultTable:
    (table,) = read(store.root).tables
    return table


def test_hand_computed_cells(store: Store, fill: Filler) -> None:
    fill(
        {"ce": [70.0, 72.0, 74.0], "esupcon": [71.0, 75.0, 76.0], "spce": [60.0, 61.0, None]},
        papers={"ce": 95.39, "esupcon": 95.9},
    )
    (panel,) = only_table(store).panels
    (ce,), (esupcon,), (spce,) = (panel.cells[method] for method in ("ce", "esupcon", "spce"))
    assert (ce.summary.n, ce.summary.mean, ce.summary.deviation) == (3, pytest.approx(72), pytest.approx(2))
    assert ce.gain is None and ce.interval is None and ce.paper == 95.39 and ce.paper_gain is None
    # Gains 1, 3, 2: mean 2, deviation 1; t = 4.30265 with two degrees, divided by sqrt 3.
    assert (esupcon.gain.n, esupcon.gain.mean, esupcon.gain.deviation) == (3, pytest.approx(2), pytest.approx(1))
    assert esupcon.interval == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)
    assert esupcon.is_best and not ce.is_best
    assert esupcon.paper_gain == pytest.approx(0.51)
    # Two common seeds: gains -10 and -11.
    assert (spce.summary.n, spce.n_planned, spce.gain.n) == (2, 3, 2)
    assert spce.gain.mean == pytest.approx(-10.5) and spce.gain.deviation == pytest.approx(math.sqrt(0.5))
    assert spce.interval[1] < 0 and spce.paper is None and spce.paper_gain is None
    assert panel.averages["spce"].gain.mean == pytest.approx(-10.5) and panel.averages["ce"].gain is None


def test_averages_of_the_paper_are_over_the_same_columns(store: Store, fill: Filler) -> None:
    fill({"ce": [70.0], "esupcon": [72.0]}, papers={"ce": 90.0, "esupcon": 91.0})
    fill({"ce": [50.0], "esupcon": [53.0]}, papers={"ce": 80.0, "esupcon": 84.0}, setting="N=2K")
    fill({"ce": [50.0], "esupcon": [None]}, papers={"ce": 80.0, "esupcon": 99.0}, setting="N=5K")
    average = only_table(store).panels[0].averages["esupcon"]
    assert (average.gain.mean, average.gain.n, average.n_planned) == (pytest.approx(2.5), 2, 3)
    assert average.paper_gain == pytest.approx(2.5)


def test_gains_are_paired_by_seed_and_one_seed_has_no_deviation(store: Store) -> None:
    rows = [row("ce", 0), row("ce", 5), row("esupcon", 5), row("esupcon", 7), row("spce", 0)]
    note_plan(store, rows)
    for one, accuracy in zip(rows[:4], (0.1, 0.5, 0.6, 0.9), strict=True):
        write_run(store, one, accuracy=accuracy)
    table = only_table(store)
    (cell,) = table.panels[0].cells["esupcon"]
    assert (
        (cell.gain.n, cell.gain.mean) == (1, pytest.approx(10))
        and cell.gain.deviation is None
        and cell.interval is None
    )
    (cell,) = table.panels[0].cells["spce"]
    assert cell.summary is None and cell.n_planned == 1 and cell.gain is None and not cell.is_best
    assert (table.n_done, len(table.rows)) == (4, 5)


def test_plans_of_one_table_are_united_in_the_order_of_the_widest(store: Store) -> None:
    both = [row("ce", 0, setting="IR=0.5"), row("esupcon", 0, setting="IR=0.5")]
    note_plan(store, both)
    note_plan(store, [row("ce", 0, setting=setting) for setting in ("IR=0.05", "IR=0.1", "IR=0.5")])
    note_plan(store, [row("ce", 1, setting="IR=0.2"), *both, row("ce", 0, dataset="digits")])
    note_plan(store, [row("ce", 0, profile="paper")])
    first, second = read(store.root).tables
    assert [column.setting for column in first.columns] == ["IR=0.05", "IR=0.1", "IR=0.5", "IR=0.2", "full"]
    assert first.datasets == [("cifar10", 4), ("digits", 1)] and len(first.rows) == 6
    assert first.commands == ["esupcon reproduce full"] and (second.plan.table, second.plan.profile) == (
        "full",
        "paper",
    )


def test_runs_with_different_settings_are_not_averaged(store: Store) -> None:
    old = [row("ce", seed, epochs=5) for seed in range(3)]
    new = [row("ce", 0, epochs=50)]
    for rows in (old, new):
        note_plan(store, rows)
    for one in old:
        write_run(store, one, accuracy=0.5)
    write_run(store, new[0], accuracy=0.9)
    table = only_table(store)
    (cell,) = table.panels[0].cells["ce"]
    assert cell.summary.n == 1 and cell.summary.mean == pytest.approx(90)
    assert table.notes == ["CE on CIFAR-10, full: 3 runs with other settings than the newest are not shown."]


def test_cost_is_relative_and_lower_is_better(store: Store) -> None:
    rows = [row(method, 0, table="complexity") for method in ("ce", "esupcon")]
    note_plan(store, rows, measure="cost")
    write_run(store, rows[0], batch_size=64, peak_memory_bytes=100 * 2**20)
    write_run(store, rows[1], batch_size=128, peak_memory_bytes=150 * 2**20)
    time, memory = only_table(store).panels
    # 2 s at 320 images a second are 640 images per epoch: 10 steps of 64, or 5 of 128.
    assert time.cells["ce"][0].summary.mean == pytest.approx(200)
    assert time.cells["esupcon"][0].summary.mean == pytest.approx(400)
    assert time.cells["esupcon"][0].gain.mean == pytest.approx(100)
    assert memory.cells["esupcon"][0].gain.mean == pytest.approx(50)
    assert memory.cells["ce"][0].is_best and not memory.cells["esupcon"][0].is_best


def test_calibration_error_is_that_of_the_paper_protocol(store: Store) -> None:
    rows = [row("ce", 0, paper_ece=0.03), row("esupcon", 0, paper_ece=0.0606)]
    note_plan(store, rows, measure="ece")
    folders = [write_run(store, one) for one in rows]
    after, before = only_table(store).panels
    for one, folder in zip(rows, folders, strict=True):
        predictions = Predictions.load(folder / "predictions.npz")
        found = paper_calibration(predictions)
        assert after.cells[one.method][0].summary.mean == pytest.approx(100 * found.ece_after)
        assert before.cells[one.method][0].summary.mean == pytest.approx(100 * found.ece_before)
    assert after.cells["esupcon"][0].paper == pytest.approx(6.06)
    assert after.cells["esupcon"][0].paper_gain == pytest.approx(3.06)
    assert before.cells["esupcon"][0].paper is None, "the paper's errors are those after calibration"


@pytest.mark.parametrize(("measure", "mean"), [("accuracy", None), ("ece", None), ("held_out", 62.5)])
def test_run_without_a_figure_leaves_its_cell_open(store: Store, measure: str, mean: float | None) -> None:
    one = row("ce", 0)
    note_plan(store, [one], measure=measure)
    write_run(store, one, accuracy=None, predictions=False, held_out_accuracy=0.625)
    panel = only_table(store).panels[0]
    assert panel.measure.key == measure and panel.is_empty is (mean is None)
    assert mean is None or panel.cells["ce"][0].summary.mean == mean


@given(st.lists(st.tuples(POINTS, POINTS), min_size=0, max_size=6))
def test_summaries_and_intervals_agree_with_statistics_and_scipy(pairs: list[tuple[float, float]]) -> None:
    ours, base = [a for a, _ in pairs], [b for _, b in pairs]
    gains = [a - b for a, b in pairs]
    found: Any = summary_of(ours)
    if not pairs:
        assert found is None
        return
    assert found.n == len(pairs)
    assert found.mean == pytest.approx(statistics.fmean(ours), abs=1e-9)
    assert (found.deviation is None) == (len(pairs) == 1)
    interval = paired_interval(summary_of(gains))
    if len(pairs) == 1 or statistics.stdev(gains) < 1e-6:
        assert interval is None
    else:
        twin = ttest_rel(ours, base)
        assert found.deviation == pytest.approx(statistics.stdev(ours), abs=1e-9)
        assert interval == pytest.approx(tuple(twin.confidence_interval()), rel=1e-6)
