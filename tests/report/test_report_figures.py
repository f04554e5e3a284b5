"""Figures: valid by plotly's schema, with titles and axis titles, never empty, and with the right numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from report_stores import Filler, note_plan, row, write_run
from sklearn.metrics import confusion_matrix

from esupcon.experiments.store import Store
from esupcon.probability import Predictions
from esupcon.report.content import read
from esupcon.report.figures import Option, Section, sections, tsne


def sections_of(root: Path) -> dict[str, Section]:
    content = read(root)
    return {section.key: section for section in sections(content.drawn, content.methods)}


@pytest.fixture(scope="module")
def drawn(whole_store: Path) -> dict[str, Section]:
    return sections_of(whole_store)


@pytest.fixture
def draw(store: Store) -> Callable[..., tuple[Option, Any]]:
    """Return the only option of a section for one run of CE, and the data of its last card."""

    def run(key: str, history: str | None = None, **left: Any) -> tuple[Option, Any]:
        one = row("ce", 0)
        note_plan(store, [one])
        folder = write_run(store, one, **left)
        if history is not None:
            (folder / "history.jsonl").write_text(history)
        (option,) = sections_of(store.root)[key].options
        return option, option.cards[-1].figure["data"][0]

    return run


@pytest.mark.parametrize("key", ["reliability", "curves", "embedding", "confusion"])
def test_figures_are_valid_titled_and_not_empty(drawn: dict[str, Section], key: str) -> None:
    section = drawn[key]
    assert section.title and section.hint.endswith(".") and section.options
    for option in section.options:
        assert option.label and option.cards
        for card in option.cards:
            text = json.dumps(card.figure, allow_nan=False)
            for name in ("ink", "surface", *(f"scale{i}" for i in range(5))):
                text = text.replace(f'"{name}"', '"#123456"')  # the page puts its colours in
            given = json.loads(text)
            figure = go.Figure({"data": given["data"], "layout": given["layout"]})
            assert card.title and given["height"] > 100 and figure.data
            for trace in figure.data:
                assert len(trace.z if trace.type == "heatmap" else trace.x) > 0, f"{card.title} has an empty trace"
            for axis in (given["layout"]["xaxis"], given["layout"]["yaxis"]):
                assert axis["title"]["text"] or axis.get("type") == "category", card.title


def test_reliability_shows_both_curves_and_their_errors(drawn: dict[str, Section]) -> None:
    for card in drawn["reliability"].options[0].cards:
        _, before, after = card.figure["data"]
        assert before["name"].startswith("before, T = 1: ECE") and after["name"].startswith("after, T = ")
        assert sum(before["customdata"]) == sum(after["customdata"]) == 64, "four fifths of 80 samples"


def test_curves_are_those_of_the_history(drawn: dict[str, Section]) -> None:
    by_label = {option.label: option for option in drawn["curves"].options}
    full = by_label["Fully labelled: CIFAR-10, full"]
    assert [card.title for card in full.cards] == ["Accuracy on held-out data", "Training loss"]
    traces = {trace["meta"]["method"]: trace for trace in full.cards[0].figure["data"]}
    assert traces["ce"]["x"] == [1, 2, 3, 4] and traces["ce"]["y"] == [50.0, 55.0, 60.0, 65.0]
    assert traces["supcon_ce"]["x"] == [1, 2, 3, 4, 5]
    scarce = by_label["Half of the classes scarce: CIFAR-10, IR=0.05"]
    assert [card.title for card in scarce.cards] == ["Training loss"] and "held out no data" in scarce.note


def test_long_histories_are_thinned(draw: Callable[..., Any]) -> None:
    _, trace = draw("curves", epochs=1000)
    assert len(trace["x"]) == 200 and trace["x"][0] == 1 and trace["x"][-1] == 1000


def test_numbers_that_are_not_finite_are_not_drawn(draw: Callable[..., Any]) -> None:
    values = (f"1{'0' * 400}", "NaN", "-Infinity", "true", '"1"', "[]", "0.5")
    _, trace = draw("curves", history="".join(f'{{"stage": [1], "loss": {value}}}\n' for value in values))
    assert trace["y"] == [None, None, None, 1.0, None, None, 0.5]


def test_confusions_are_shares_of_the_counts(store: Store, draw: Callable[..., Any]) -> None:
    _, trace = draw("confusion")
    predictions = Predictions.load(store.run_folder(row("ce", 0).key) / "predictions.npz")
    expected = confusion_matrix(predictions.labels, predictions.logits.argmax(axis=1))
    assert np.allclose(trace["z"], 100 * expected / expected.sum(axis=1, keepdims=True), atol=0.06)
    assert trace["customdata"][0][1] == f"cat predicted as<br>dog: {expected[0, 1]}"


def test_classes_with_most_errors_are_shown_and_the_rest_summed(draw: Callable[..., Any]) -> None:
    option, trace = draw("confusion", classes=[f"class {k}" for k in range(120)], n_test=600)
    assert len(trace["z"]) == 20 and all(len(line) == 21 for line in trace["z"])
    assert all(sum(line) == pytest.approx(100, abs=1.5) for line in trace["z"]), "nothing is dropped"
    assert "20 classes with most errors" in option.note
    assert option.cards[0].figure["width"] > 15 * 21, "every name has room, also on a narrow screen"


def test_section_without_data_is_left_out(store: Store, fill: Filler) -> None:
    fill({"ce": [70.0]}, left={"predictions": False, "embedding": False, "epochs": None})
    assert sections_of(store.root) == {}


# --- Map -------------------------------------------------------------------------------------------------------------


def test_prototypes_lie_with_their_classes(drawn: dict[str, Section]) -> None:
    figure = next(card for card in drawn["embedding"].options[0].cards if card.method == "esupcon").figure
    *classes, prototypes = figure["data"]
    assert [trace["text"] for trace in classes] == prototypes["text"] == ["cat", "dog", "owl", "yak"]
    centres = np.array([[np.mean(trace["x"]), np.mean(trace["y"])] for trace in classes])
    places = np.stack([prototypes["x"], prototypes["y"]], axis=1)
    nearest = np.linalg.norm(places[:, None] - centres, axis=2).argmin(axis=1)
    assert nearest.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("n", "dim"), [(3, 4), (4, 4), (6, 1), (40, 4)])
def test_collapsed_embedding_has_a_map(n: int, dim: int) -> None:
    x = np.ones((n, dim), dtype=np.float32) / 2
    plane = tsne(x)
    assert plane.shape == (n, 2) and np.isfinite(plane).all() and np.array_equal(plane, tsne(x))
