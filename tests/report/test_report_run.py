"""The page of one run: what it shows, hostile names, missing parts, and how Chromium shows it."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from report_pages import Opened, Page
from report_stores import HOSTILE, row, write_run

from esupcon.experiments.store import Store
from esupcon.probability import Predictions
from esupcon.report import Images, picture, run_report

N, SUSPECTS = 80, (3, 17)
Writer = Callable[..., Path]


def images(names: bool = False) -> Images:
    """Return images whose grey value is the number of the row, so that thumbnails can be told apart."""
    rows = np.broadcast_to(np.arange(N, dtype=np.uint8)[:, None, None, None], (N, 3, 120, 200))
    return Images(rows, [f"/data/{HOSTILE.replace('/', '')}{i}.jpg" for i in range(N)] if names else ())


@pytest.fixture
def write(store: Store) -> Writer:
    """Write the folder of a run with test predictions, and held-out ones in which two labels are wrong."""

    def run(n_classes: int = 4, names: tuple[str, ...] = (), **left: Any) -> Path:
        classes = [*names, *(f"class {k}" for k in range(len(names), n_classes))]
        folder = write_run(store, row("esupcon", 0), classes=classes, n_test=N, **left)
        labels = np.arange(N) % n_classes
        logits = 4.0 * np.eye(n_classes)[labels]
        logits[list(SUSPECTS)] *= 2  # the classifier is sure of them
        labels[list(SUSPECTS)] = (labels[list(SUSPECTS)] + 1) % n_classes
        Predictions(logits, labels).save(folder / "held_out.npz")
        return folder

    return run


def pictures(page: Page) -> list[Image.Image]:
    sources = [attributes["src"] for tag, attributes in page.elements if tag == "img"]
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    return [Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) for source in sources]


def values(page: Page) -> list[int]:
    """Return which rows are shown, by the grey value of their pictures."""
    return [int(np.asarray(one)[0, 0].mean().round()) for one in pictures(page)]


def test_page_has_headline_figures_tables_and_pictures(write: Writer) -> None:
    finding = {"code": "imbalance", "severity": "warning", "message": "One class has 7.", "remedy": "Look at it."}
    folder = write(findings=[finding], accuracy=0.75)
    path = run_report(
        folder, {"test": images(), "held_out": images()}, copies=[(picture(None, "a"), picture(None, "b"))]
    )
    assert path == folder / "report.html"
    source = path.read_text()
    page = Page(source)
    for text in (
        *("ESupCon on cifar10", "75.0 %", "95 % interval", "Calibration error (ECE)", "Negative log-likelihood"),
        *("Encoder", "Training time", "12 s", "One class has 7.", "Look at it.", "Weakest classes", "Confusion matrix"),
        *("Most frequent mistakes", "Training curves", "Reliability", "Map of the embedding", "Suspicious labels"),
        *("Most confident mistakes", "Typical images", "Copies in the test part", "seed=0", "torch 2.13.0"),
    ):
        assert text in page.text, text
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {attributes["href"][1:] for tag, attributes in page.elements if tag == "a"} <= ids
    shown = pictures(page)
    assert 0 < len(shown) <= 60
    assert {one.size for one in shown} == {(96, 58)}, "the longest side is 96"
    assert len(source) < 5_500_000


def test_pictures_are_the_suspects_the_surest_mistakes_and_typical_images(write: Writer) -> None:
    folder = write()
    found = Predictions.load(folder / "predictions.npz")
    p, y = found.probabilities(), found.labels
    wrong = np.flatnonzero(p.argmax(axis=1) != y)
    surest = wrong[np.argsort(-p[wrong].max(axis=1))][:12].tolist()
    assert sorted(values(Page(run_report(folder, {"held_out": images()}).read_text()))) == list(SUSPECTS)
    shown = values(Page(run_report(folder, {"test": images()}).read_text()))
    assert shown[: len(surest)] == surest
    typical = shown[len(surest) :]
    assert y[typical].tolist() == sorted(y[typical]) and set(y[typical]) == {0, 1, 2, 3}
    assert all(p[i].argmax() == y[i] for i in typical)


def test_of_many_classes_some_are_shown(write: Writer) -> None:
    page = Page(run_report(write(60), {"test": images(), "held_out": images()}).read_text())
    assert "36 of 60 classes are shown" in page.text and len(pictures(page)) <= 60


def test_names_are_text(write: Writer) -> None:
    folder = write(names=(HOSTILE, "<img src=x onerror=alert(1)>", "{{ 7 * 7 }} \u202e\ud800"))
    source = run_report(folder, {"test": images(names=True), "held_out": images(names=True)}).read_text()
    page = Page(source)
    assert HOSTILE in page.text and "{{ 7 * 7 }}" in page.text and "<script>alert(1)<script>3.jpg" in page.text
    assert len(page.scripts) == 3 and "<script>alert" not in source and "\u202e" not in source
    assert not [tag for tag, given in page.elements for name in given if name.startswith("on")]


def test_page_without_plotly_has_tables_pictures_and_the_install_command(
    write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)  # as if it were not installed
    source = run_report(write(), {"test": images(), "held_out": images()}).read_text()
    page = Page(source)
    assert page.text.count("pip install 'esupcon[report]'") == 1
    assert "Weakest classes" in page.text and pictures(page) and "Training curves" not in page.text
    assert len(source) < 300_000


def test_parts_that_are_missing_or_damaged_are_left_out(write: Writer, store: Store) -> None:
    folder = write()
    page = Page(run_report(folder).read_text())
    assert not pictures(page) and "sample 17" in page.text, "without images samples are listed by number"
    assert "Typical images" not in page.text
    (folder / "predictions.npz").write_bytes(b"PK\x03\x04 broken")
    (folder / "embedding.npz").unlink()
    page = Page(run_report(folder).read_text())
    assert "Left out of this report" in page.text and "predictions.npz cannot be read" in page.text
    assert "Map of the embedding" not in page.text
    bare = write_run(store, row("ce", 0), accuracy=None, predictions=False, embedding=False, epochs=None)
    assert "Training time" in Page(run_report(bare).read_text()).text


def test_images_of_other_rows_are_refused(write: Writer) -> None:
    folder, wrong = write(), Images(images().rows[1:])
    with pytest.raises(ValueError, match="images must match 80 predictions; got 79 images and 0 names"):
        run_report(folder, {"test": wrong})
    assert not (folder / "report.html").exists()


def test_page_on_a_telephone_is_quiet_offline_and_never_wider_than_the_window(browser: Any, write: Writer) -> None:
    folder = write(20, names=(HOSTILE, "a-class-with-a-very-long-name-" * 3))
    report = run_report(folder, {"test": images(names=True), "held_out": images(names=True)})
    viewport = {"width": 390, "height": 800}
    with Opened(browser, report, viewport=viewport, has_touch=True, is_mobile=True, color_scheme="dark") as one:
        one.draw_all()
        one.assert_quiet_and_no_wider_than(390)
        assert one.page.locator(".js-plotly-plot .main-svg").count() >= 5
        assert one.page.locator(".modebar-btn").count() == 0, "a toolbar would cover the plots"
        boxes = [tick.bounding_box() for tick in one.page.locator("#confusion .xtick text").all()]
        assert all(a["x"] + a["width"] <= b["x"] for a, b in pairwise(boxes)), "names of classes overlap"
        broken = "[...document.images].filter((one) => one.complete && !one.naturalWidth).length"
        assert one.page.evaluate(broken) == 0
