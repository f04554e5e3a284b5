"""Figures: valid by plotly's schema, with titles and axis titles, never empty, and with the right numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from report_stores import METHODS, Filler, Left, note_plan, row, write_run

from esupcon.experiments.store import Store
from esupcon.probability import Predictions, confusion_matrix
from esupcon.report.content import read
from esupcon.report.figures import Card, Section, _spread_labels, sections

DRAWN = ("reliability", "curves", "cost", "sensitivity", "classes", "embedding", "confusion")


def sections_of(root: Path) -> dict[str, Section]:
    return {section.key: section for section in sections(read(root))}


def cards(section: Section) -> Iterator[Card]:
    for option in section.options:
        yield from option.cards


def real_colours(value: Any) -> Any:
    """Replace the colours that the page puts in: plotly's schema does not know their names."""
    text = json.dumps(value, allow_nan=False)
    for name in ("ink", "surface", "scale0", "scale1", "scale2", "scale3", "scale4"):
        text = text.replace(f'"{name}"', '"#123456"')
    return json.loads(text)


@pytest.fixture(scope="module")
def drawn(whole_store: Path) -> dict[str, Section]:
    return sections_of(whole_store)


@pytest.mark.parametrize("key", DRAWN)
def test_figures_are_valid_titled_and_not_empty(drawn: dict[str, Section], key: str) -> None:
    section = drawn[key]
    assert section.title and section.hint.endswith(".") and section.options
    for option in section.options:
        assert option.label and option.cards
    for card in cards(section):
        figure = go.Figure(real_colours({"data": card.figure["data"], "layout": card.figure["layout"]}))
        assert card.title and card.figure["height"] > 100 and figure.data
        for trace in figure.data:
            held = trace.z if trace.type == "heatmap" else trace.x
            assert len(held) > 0, f"{card.title} has a trace without points"
        categories = [card.figure["layout"][axis].get("type") == "category" for axis in ("xaxis", "yaxis")]
        names = [card.figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
        assert all(name or words for name, words in zip(names, categories, strict=True)), card.title


def test_reliability_shows_both_curves_and_their_errors(drawn: dict[str, Section]) -> None:
    for card in cards(drawn["reliability"]):
        _, before, after = card.figure["data"]
        assert before["name"].startswith("before, T = 1: ECE") and after["name"].startswith("after, T = ")
        assert sum(before["customdata"]) == sum(after["customdata"]) == 64, "four fifths of 80 samples"


def test_curves_have_a_gap_between_stages(drawn: dict[str, Section]) -> None:
    by_label = {option.label: option for option in drawn["curves"].options}
    full = by_label["Fully labelled: CIFAR-10, full"]
    assert [card.title for card in full.cards] == ["Accuracy on held-out data", "Training loss"]
    traces = {trace["meta"]["method"]: trace for trace in full.cards[0].figure["data"]}
    assert traces["ce"]["x"] == [1, 2, 3, 4] and traces["ce"]["y"] == [50.0, 55.0, 60.0, 65.0]
    assert traces["supcon_ce"]["x"] == [1, 2, 3, 4, None, 5]
    scarce = by_label["Half of the classes scarce: CIFAR-10, IR=0.05"]
    assert [card.title for card in scarce.cards] == ["Training loss"] and "held out no data" in scarce.note


def test_long_histories_are_thinned(store: Store) -> None:
    one = row("ce", 0)
    note_plan(store, [one])
    write_run(store, one, Left(epochs=1000, held_out=False))
    (card,) = cards(sections_of(store.root)["curves"])
    xs = card.figure["data"][0]["x"]
    assert len(xs) == 200 and xs[0] == 1 and xs[-1] == 1000


def test_numbers_that_are_not_finite_are_not_drawn(store: Store) -> None:
    one = row("ce", 0)
    note_plan(store, [one])
    folder = write_run(store, one)
    values = (f"1{'0' * 400}", "NaN", "-Infinity", "true", '"1"', "[]", "0.5")
    (folder / "history.jsonl").write_text("".join(f'{{"stage": [1], "loss": {value}}}\n' for value in values))
    (card,) = cards(sections_of(store.root)["curves"])
    assert card.figure["data"][0]["y"][-1] == 0.5 and len(card.figure["data"][0]["y"]) <= 2


def test_confusions_are_shares_of_the_counts(store: Store) -> None:
    one = row("ce", 0)
    note_plan(store, [one])
    folder = write_run(store, one)
    predictions = Predictions.load(folder / "predictions.npz")
    expected = confusion_matrix(predictions.probabilities(), predictions.labels)
    (card,) = cards(sections_of(store.root)["confusion"])
    (trace,) = card.figure["data"]
    assert np.allclose(trace["z"], 100 * expected / expected.sum(axis=1, keepdims=True), atol=0.06)
    assert trace["customdata"][0][1] == f"cat predicted as<br>dog: {expected[0, 1]}"


def test_classes_with_most_errors_are_shown_and_the_rest_summed(store: Store) -> None:
    one = row("ce", 0)
    note_plan(store, [one])
    write_run(store, one, Left(classes=[f"class {k}" for k in range(120)], n_test=600))
    section = sections_of(store.root)["confusion"]
    (card,) = cards(section)
    (trace,) = card.figure["data"]
    assert len(trace["z"]) == 20 and all(len(line) == 21 for line in trace["z"])
    assert all(sum(line) == pytest.approx(100, abs=1.5) for line in trace["z"]), "nothing is dropped"
    assert "20 classes with most errors" in section.options[0].note


def test_heat_maps_show_the_cells_at_their_place(drawn: dict[str, Section], whole_store: Path) -> None:
    (option,) = drawn["sensitivity"].options
    assert len(option.cards) == 2 * len(METHODS), "one for each method and batch size"
    (table,) = read(whole_store, ["sensitivity"]).tables
    card = next(card for card in option.cards if card.title == "ESupCon, batch size 256")
    (trace,) = card.figure["data"]
    for i, temperature in enumerate((0.1, 0.3)):
        for j, lr in enumerate((0.1, 0.3)):
            point = {"temperature": temperature, "lr": lr, "batch_size": 256}
            at = next(n for n, column in enumerate(table.columns) if column.grid == point)
            assert trace["z"][i][j] == pytest.approx(table.panels[0].cells["esupcon"][at].summary.mean, abs=1e-3)
    assert card.figure["layout"]["yaxis"]["ticktext"] == ["0.1", "0.3"]
    scales = {(c.figure["data"][0]["zmin"], c.figure["data"][0]["zmax"]) for c in option.cards}
    assert len(scales) == 1, "all maps share one scale"


def test_missing_point_of_a_grid_is_a_gap(store: Store) -> None:
    points = [{"temperature": t, "lr": lr} for t in (0.1, 0.3) for lr in (0.1, 0.3)]
    rows = [row("ce", 0, table="own", setting=f"temperature={p['temperature']}, lr={p['lr']}", grid=p) for p in points]
    note_plan(store, rows)
    for one in rows[:3]:
        write_run(store, one)
    (card,) = cards(sections_of(store.root)["sensitivity"])
    assert card.figure["data"][0]["z"][1][1] is None and card.figure["data"][0]["text"][1][1] == ""


def test_grids_of_several_shapes_are_drawn_one_by_one(store: Store) -> None:
    many = {f"axis{i}": i for i in range(12)}
    points = [{"lr": 0.1}, {"lr": 0.3}, {"temperature": 0.1, "lr": 0.1}, {"temperature": 0.3, "lr": 0.1}]
    points += [{name: value + 100 * n for name, value in many.items()} for n in range(12)]
    settings = [", ".join(f"{name}={value}" for name, value in point.items()) for point in points]
    rows = [row("ce", 0, table="own", setting=text) for text in settings]
    rows = [one.model_copy(update={"grid": point}) for one, point in zip(rows, points, strict=True)]
    note_plan(store, rows)
    for one in rows:
        write_run(store, one, Left(predictions=False, embedding=False))
    options = sections_of(store.root)["sensitivity"].options  # 12 ** 12 positions are claimed, 12 are planned
    assert [len(option.cards) for option in options] == [1, 1, 12]


def test_one_axis_is_drawn_as_lines(store: Store) -> None:
    rows = [row("ce", 0, table="own", setting=f"lr={lr}", grid={"lr": lr}) for lr in (1.0, 0.1)]
    note_plan(store, rows)
    for one, accuracy in zip(rows, (0.9, 0.8), strict=True):
        write_run(store, one, Left(accuracy=accuracy))
    (card,) = cards(sections_of(store.root)["sensitivity"])
    assert card.figure["data"][0]["y"] == [80.0, 90.0] and card.figure["layout"]["xaxis"]["ticktext"] == ["0.1", "1.0"]


def test_scarce_classes_are_marked_and_averaged(drawn: dict[str, Section], whole_store: Path) -> None:
    (option,) = drawn["classes"].options
    groups, single = option.cards
    (column,) = read(whole_store, ["imbalanced"]).drawn
    means = []
    for run in column.all_runs["ce"]:
        accuracies = [100 * entry.accuracy for entry in run.result.metrics.test.per_class]
        means.append((accuracies[0] + accuracies[2]) / 2)
    trace = next(one for one in groups.figure["data"] if one["meta"]["method"] == "ce")
    assert trace["y"][0] == pytest.approx(np.mean(means), abs=0.01)
    assert single.figure["layout"]["xaxis"]["ticktext"] == ["◆ cat", "◆ owl", "dog", "yak"]
    (shade,) = single.figure["layout"]["shapes"]
    assert (shade["x0"], shade["x1"]) == (-0.5, 1.5)


def test_table_of_costs_is_drawn_as_lines(drawn: dict[str, Section]) -> None:
    first = drawn["cost"].options[0]
    assert first.label == "Cost of a step: CIFAR-10"
    assert [card.title for card in first.cards] == ["Time of a training step", "Peak memory"]
    bars = drawn["cost"].options[1]
    assert [card.title for card in bars.cards] == ["Time of a training step", "Training time of a run", "Peak memory"]
    assert bars.cards[1].figure["data"][0]["x"] == [12.5]


def test_missing_data_is_explained(store: Store, fill: Filler) -> None:
    fill({"ce": [70.0]}, Left(predictions=False, embedding=False, epochs=None, peak=None))
    found = sections_of(store.root)
    for key in ("reliability", "curves", "sensitivity", "classes", "embedding", "confusion"):
        assert not found[key].options and found[key].missing.endswith(".")
    assert [card.title for card in cards(found["cost"])] == ["Training time of a run"]


def test_labels_of_a_map_do_not_overlap() -> None:
    points = np.random.default_rng(0).normal(size=(60, 2))
    width, height = 0.24 * np.ptp(points[:, 0]), 0.075 * np.ptp(points[:, 1])
    placed = _spread_labels(list(points[:10] / 10), points)
    for i, (x, y) in enumerate(placed):
        assert x == pytest.approx(points[i, 0] / 10, abs=1e-3) and y >= points[i, 1] / 10 - 1e-3
        assert not any(abs(x - a) < width and abs(y - b) < height * 0.99 for a, b in placed[:i])
    assert _spread_labels([np.zeros(2)], np.zeros((3, 2))) == [(0.0, 0.0)]
