"""Cells against numbers worked out by hand, and against SciPy on numbers that nobody chose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_stores import Filler, Left, note_plan, row, write_run
from scipy.stats import ttest_rel

from esupcon.experiments.store import Store
from esupcon.files import read_sealed_json, write_sealed_json
from esupcon.report.aggregate import TableResult, aggregate, best_methods, paired_p, summary_of
from esupcon.report.kept_calibration import calibration
from esupcon.report.measures import epoch_seconds, step_milliseconds
from esupcon.report.reading import collect

POINTS = st.floats(0, 100, allow_nan=False).map(lambda value: round(value, 3))


def only_table(store: Store) -> TableResult:
    content = collect(store.root)
    (table,) = aggregate(content.plans, content.runs)
    return table


def test_hand_computed_cells(store: Store, fill: Filler) -> None:
    fill(
        {"ce": [70.0, 72.0, 74.0], "esupcon": [71.0, 75.0, 76.0], "spce": [60.0, 61.0, None]},
        papers={"ce": 95.39, "esupcon": 95.9},
    )
    (panel,) = only_table(store).panels
    (ce,), (esupcon,), (spce,) = (panel.cells[method] for method in ("ce", "esupcon", "spce"))
    assert (ce.summary.n, ce.summary.mean, ce.summary.deviation) == (3, pytest.approx(72), pytest.approx(2))
    assert ce.gain is None and ce.p is None and ce.paper == 95.39 and ce.paper_gain is None
    # Gains 1, 3, 2: mean 2, deviation 1, t = 2 / (1 / sqrt 3) = 3.4641 with two degrees: p = 0.0742.
    assert (esupcon.gain.n, esupcon.gain.mean, esupcon.gain.deviation) == (3, pytest.approx(2), pytest.approx(1))
    assert esupcon.p == pytest.approx(0.07417990, abs=1e-7)
    assert not esupcon.is_significant and esupcon.is_best and not ce.is_best
    assert esupcon.paper_gain == pytest.approx(0.51)
    # Two common seeds: gains -10 and -11.
    assert (spce.summary.n, spce.n_planned, spce.gain.n) == (2, 3, 2)
    assert spce.gain.mean == pytest.approx(-10.5) and spce.gain.deviation == pytest.approx(math.sqrt(0.5))
    assert spce.is_significant and spce.paper is None and spce.paper_gain is None
    assert panel.averages["spce"].gain == pytest.approx(-10.5) and panel.averages["ce"].gain is None


def test_averages_are_over_the_same_columns_as_the_papers(store: Store, fill: Filler) -> None:
    fill({"ce": [70.0], "esupcon": [72.0]}, papers={"ce": 90.0, "esupcon": 91.0})
    fill({"ce": [50.0], "esupcon": [53.0]}, papers={"ce": 80.0, "esupcon": 84.0}, setting="N=2K")
    fill({"ce": [50.0], "esupcon": [None]}, papers={"ce": 80.0, "esupcon": 99.0}, setting="N=5K")
    average = only_table(store).panels[0].averages["esupcon"]
    assert (average.gain, average.n_columns) == (pytest.approx(2.5), 2)
    assert (average.paper_gain, average.n_paper) == (pytest.approx(2.5), 2)


def test_one_seed_has_no_deviation_and_no_test(store: Store, fill: Filler) -> None:
    fill({"ce": [70.0], "esupcon": [71.5]})
    (panel,) = only_table(store).panels
    (cell,) = panel.cells["esupcon"]
    assert cell.summary.deviation is None and cell.gain.deviation is None and cell.p is None
    assert cell.gain.mean == pytest.approx(1.5)


def test_gains_are_paired_by_seed_and_not_by_place(store: Store) -> None:
    rows = [row("ce", 0), row("ce", 5), row("esupcon", 5), row("esupcon", 7)]
    note_plan(store, rows)
    for one, accuracy in zip(rows, (0.1, 0.5, 0.6, 0.9), strict=True):
        write_run(store, one, Left(accuracy=accuracy))
    (cell,) = only_table(store).panels[0].cells["esupcon"]
    assert cell.gain.n == 1 and cell.gain.mean == pytest.approx(10)


def test_missing_runs_are_open_and_counted(store: Store, fill: Filler) -> None:
    fill({"ce": [70.0, None], "esupcon": [None, None]})
    table = only_table(store)
    assert (table.n_done, table.n_planned) == (1, 4)
    (cell,) = table.panels[0].cells["esupcon"]
    assert cell.is_open and cell.n_planned == 2 and cell.gain is None and not cell.is_best
    assert not table.panels[0].cells["ce"][0].is_best, "there is nothing to be better than"


def test_plans_of_one_table_are_united_and_profiles_are_not(store: Store) -> None:
    both = [row("ce", 0), row("esupcon", 0)]
    note_plan(store, both[1:])  # narrowed to a method, then everything: CE still comes first
    note_plan(store, [*both, row("ce", 0, dataset="digits"), row("ce", 0, setting="N=2K")])
    note_plan(store, [row("ce", 0, profile="paper", epochs=900)])
    content = collect(store.root)
    first, second = aggregate(content.plans, content.runs)
    assert first.methods == ["ce", "esupcon"] and first.n_planned == 4
    assert [(column.dataset, column.setting) for column in first.columns] == [
        ("cifar10", "full"),
        ("cifar10", "N=2K"),
        ("digits", "full"),
    ], "the columns of a data set stand side by side"
    assert (second.name, second.profile) == ("full", "paper")
    assert first.commands == ["esupcon reproduce full"]


def test_columns_stand_as_the_widest_plan_has_them(store: Store) -> None:
    note_plan(store, [row("ce", 0, setting="IR=0.5")])
    note_plan(store, [row("ce", 0, setting=setting) for setting in ("IR=0.05", "IR=0.1", "IR=0.5")])
    note_plan(store, [row("ce", 1, setting=setting) for setting in ("IR=0.2", "IR=0.1")])
    assert [column.setting for column in only_table(store).columns] == ["IR=0.05", "IR=0.1", "IR=0.5", "IR=0.2"]


def test_runs_with_other_settings_are_not_mixed_into_a_mean(store: Store) -> None:
    old = [row("ce", seed, epochs=5) for seed in range(3)]
    new = [row("ce", 0, epochs=50)]
    for rows in (old, new):
        note_plan(store, rows)
    for one in old:
        write_run(store, one, Left(accuracy=0.5))
    write_run(store, new[0], Left(accuracy=0.9))
    table = only_table(store)
    (cell,) = table.panels[0].cells["ce"]
    assert cell.summary.n == 1 and cell.summary.mean == pytest.approx(90)
    assert any("epochs 5 / 50" in note and "3 other runs" in note for note in table.notes)


def test_cost_is_relative_and_lower_is_better(store: Store) -> None:
    rows = [row("ce", 0, table="complexity"), row("esupcon", 0, table="complexity")]
    note_plan(store, rows, measure="cost")
    write_run(store, rows[0], Left(batch_size=64, peak=100 * 2**20))
    write_run(store, rows[1], Left(batch_size=128, peak=150 * 2**20))
    table = only_table(store)
    time, memory = table.panels
    # 2 s at 320 images a second are 640 images an epoch: 10 steps of 64, or 5 of 128.
    assert time.cells["ce"][0].summary.mean == pytest.approx(200)
    assert time.cells["esupcon"][0].summary.mean == pytest.approx(400)
    assert time.cells["esupcon"][0].gain.mean == pytest.approx(100)
    assert memory.cells["esupcon"][0].gain.mean == pytest.approx(50)
    assert time.cells["ce"][0].is_best and not time.cells["esupcon"][0].is_best


def test_a_run_whose_encoder_another_trained_has_no_peak(store: Store) -> None:
    rows = [row(method, 0, table="complexity") for method in ("supcon_tt", "supcon_ce")]
    note_plan(store, rows, measure="cost")
    for one, taken in zip(rows, (0.0, 12.0), strict=True):
        write_run(store, one, Left(peak=100 * 2**20, provenance={"taken_seconds": taken}))
    _, memory = only_table(store).panels
    assert memory.cells["supcon_tt"][0].summary.mean == pytest.approx(100)
    assert memory.cells["supcon_ce"][0].summary is None


def test_calibration_error_is_that_of_the_papers_protocol(store: Store) -> None:
    rows = [row("ce", 0, paper_ece=0.03), row("esupcon", 0, paper_ece=0.0606)]
    note_plan(store, rows, measure="ece")
    folders = [write_run(store, one) for one in rows]
    after, before = only_table(store).panels
    for one, folder in zip(rows, folders, strict=True):
        report = calibration(folder)
        assert report is not None
        assert after.cells[one.method][0].summary.mean == pytest.approx(100 * report.ece_after)
        assert before.cells[one.method][0].summary.mean == pytest.approx(100 * report.ece_before)
    assert after.cells["esupcon"][0].paper == pytest.approx(6.06)
    assert after.cells["esupcon"][0].paper_gain == pytest.approx(3.06)
    assert before.cells["esupcon"][0].paper is None, "the paper's errors are those after calibration"


@pytest.mark.parametrize("damage", ["absent", "garbage", "too few"])
def test_without_usable_predictions_there_is_no_calibration_error(store: Store, damage: str) -> None:
    one = row("ce", 0)
    note_plan(store, [one], measure="ece")
    folder = write_run(store, one, Left(n_test=2 if damage == "too few" else 80))
    if damage == "absent":
        (folder / "predictions.npz").unlink()
    elif damage == "garbage":
        (folder / "predictions.npz").write_bytes(b"no archive")
    assert only_table(store).panels[0].is_empty


@pytest.mark.parametrize("text", ["", "not json\n", '{"seconds": null}\n', '[1]\n{"seconds": 1}\n'])
def test_a_broken_timing_file_gives_no_figure(store: Store, text: str) -> None:
    one = row("ce", 0)
    folder = write_run(store, one)
    (folder / "timing.jsonl").write_text(text)
    assert step_milliseconds(store.read(one.key)) is None
    assert epoch_seconds(store.read(one.key)) in (None, 1.0)


@given(st.lists(st.tuples(POINTS, POINTS), min_size=0, max_size=6))
def test_summaries_and_p_agree_with_the_standard_library_and_scipy(pairs: list[tuple[float, float]]) -> None:
    ours, base = [a for a, _ in pairs], [b for _, b in pairs]
    gains = [a - b for a, b in pairs]
    found = summary_of(ours)
    if not pairs:
        assert found is None
        return
    assert found is not None and found.n == len(pairs)
    assert found.mean == pytest.approx(statistics.fmean(ours), abs=1e-9)
    assert (found.deviation is None) == (len(pairs) == 1)
    gain = summary_of(gains)
    p = paired_p(gain)
    if len(pairs) == 1 or statistics.stdev(gains) < 1e-6:
        assert p is None
    else:
        assert found.deviation == pytest.approx(statistics.stdev(ours), abs=1e-9)
        assert p == pytest.approx(float(ttest_rel(ours, base).pvalue), rel=1e-6, abs=1e-12)


@given(st.dictionaries(st.text(min_size=1, max_size=3), POINTS, max_size=5), st.booleans())
def test_best_are_all_that_no_other_beats(means: dict[str, float], lower: bool) -> None:
    best = best_methods(means, lower)
    if len(means) < 2:
        assert best == set()
    else:
        assert best
        for method, mean in means.items():
            beaten = any((other < mean) if lower else (other > mean) for other in means.values())
            assert (method in best) is not beaten


def test_a_table_to_choose_by_shows_held_out_accuracy_alone(store: Store) -> None:
    one = row("ce")
    write_run(store, one)
    path = store.run_folder(one.key) / "result.json"
    result = read_sealed_json(path)
    result["metrics"]["held_out"] = {"accuracy": 0.625}
    write_sealed_json(path, result)
    note_plan(store, [one], measure="held_out")
    table = only_table(store)
    assert [panel.measure.key for panel in table.panels] == ["held_out"]
    assert table.panels[0].cells["ce"][0].summary.mean == 62.5


def test_a_damaged_run_and_a_damaged_plan_are_named(store: Store, fill: Filler) -> None:
    rows = fill({"ce": [70.0, 71.0, 72.0], "esupcon": [75.0, 76.0, 77.0]})
    broken, strange, swapped = rows[0], rows[1], rows[4]
    (store.run_folder(broken.key) / "result.json").write_text("{")
    result = read_sealed_json(store.run_folder(strange.key) / "result.json")
    result["metrics"]["test"] = {"accuracy": "high"}
    write_sealed_json(store.run_folder(strange.key) / "result.json", result)
    (store.run_folder(swapped.key) / "spec.json").unlink()
    (store.root / "plans" / "bad.json").write_text('{"table": "x", "profile": "y", "rows": [{"key": 3}]}')
    (store.root / "plans" / "worse.json").write_text("no")
    content = collect(store.root)
    assert set(content.damaged) == {broken.key, strange.key, swapped.key}
    assert len(content.unreadable) == 2 and any("bad.json" in line for line in content.unreadable)
    assert len(content.complaints) == 5 and all("\n" not in line for line in content.complaints)
    (table,) = aggregate(content.plans, content.runs)
    assert (table.n_done, table.n_planned) == (3, 6)


def test_what_is_no_store_or_empty_is_said_in_a_line(tmp_path: Path, store: Store) -> None:
    with pytest.raises(FileNotFoundError, match="is no store of runs"):
        collect(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no finished run and no plan"):
        collect(store.root)


def test_every_result_is_read_once(store: Store, fill: Filler, monkeypatch: pytest.MonkeyPatch) -> None:
    fill({"ce": [70.0, 71.0], "esupcon": [75.0, 76.0]})
    read: list[str] = []
    original = Store.read

    def counted(self: Store, key: str) -> Any:
        read.append(key)
        return original(self, key)

    monkeypatch.setattr(Store, "read", counted)
    only_table(store)
    assert len(read) == len(set(read)) == 4


def test_a_run_without_test_part_leaves_its_cell_open(store: Store) -> None:
    one = row("ce", 0)
    note_plan(store, [one])
    write_run(store, one, replace(Left(), accuracy=None))
    cells: Mapping[str, Any] = only_table(store).panels[0].cells
    assert cells["ce"][0].is_open
