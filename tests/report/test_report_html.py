"""The page as a parser reads it: its tables, its policy, and hostile names as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from report_pages import Page
from report_stores import HOSTILE, Filler

from esupcon.experiments.store import Store
from esupcon.report import build


@pytest.fixture(scope="module")
def whole(whole_report: Path) -> str:
    return whole_report.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hostile(hostile_report: Path) -> str:
    return hostile_report.read_text(encoding="utf-8")


def test_page_is_well_formed_and_fetches_nothing(whole: str) -> None:
    page = Page(whole)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    targets = [attributes["href"][1:] for tag, attributes in page.elements if tag == "a"]
    labels = [attributes["for"] for tag, attributes in page.elements if tag == "label" and "for" in attributes]
    assert len(ids) == len(set(ids)) and len(targets) > 10 and {*targets, *labels} <= set(ids)
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster"):
            assert attributes.get(name, "#")[:1] == "#" or attributes[name] == "data:,", (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], "no handlers in attributes"
    style = whole[whole.index("<style>") : whole.index("</style>")]
    assert "url(" not in style and "@import" not in style
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    run = [source for attributes, source in page.scripts if attributes.get("type") != "application/json"]
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in run]
    assert len(run) == 2 and re.findall(r"'sha256-([^']+)'", policy) == digests, "only the two scripts of the page"
    assert "default-src 'none'" in policy and "script-src 'unsafe" not in policy


def test_cells_show_mean_deviation_n_gain_and_paper(store: Store, fill: Filler, tmp_path: Path) -> None:
    fill(
        {"ce": [73.7, 74.1, 74.5], "esupcon": [76.7, 77.0, 77.6], "spce": [60.0, None, None], "spce_m": [None] * 3},
        papers={"ce": 95.39, "esupcon": 95.9},
        reduced="2,625 samples",
        plan={"title": "A title", "notes": ["A note."]},
    )
    (store.run_folder("damaged")).mkdir()
    page = Page(build(store.root, tmp_path / "report.html").read_text())
    assert page.cell("74.1") == "74.1 ± 0.4 (n=3) paper 95.39"
    assert page.cell("77.1") == "77.1 ± 0.5 (n=3) ● ▲ +3.0 [+2.8, +3.2] paper 95.9 (+0.51)"
    assert page.cell("60.0") == "60.0 (n=1 of 3) ▼ −13.7", "one seed has no deviation"
    assert page.cell("open") == "open"
    for words in (
        *("A title", "A note.", "2,625 samples", "7 of 12 planned runs finished", "No findings."),
        *("95 % interval by a paired t-test over n seeds", "● bold: best of its column."),
        *("Unfinished runs", "SPCE(M) on CIFAR-10, full, seed 2: not run yet"),
        *("Left out of this report:", "run damaged is left out"),
    ):
        assert words in page.text, words


def test_every_part_is_there(whole: str) -> None:
    page = Page(whole)
    for title in (
        *("Fully labelled", "Reliability before and after calibration", "Training curves"),
        *("Map of the embedding", "Confusion matrix", "Findings"),
        *("How the results were produced", "63 of 63 planned runs finished."),
        *("esupcon report whole --out report.html", "esupcon reproduce full"),
        *("abc123", "2.13.0", "Linux", "imbalance in 6 runs", "ESupCon on CIFAR-10, IR=0.05, seed 1"),
    ):
        assert title in page.text, title
    data = next(source for attributes, source in page.scripts if attributes.get("id") == "figures")
    keys = {"reliability", "curves", "embedding", "confusion"}
    assert set(json.loads(data)) == keys
    assert len(whole) < 6_000_000 and whole.count("plotly.js v") >= 1


def test_hostile_names_are_text(hostile: str) -> None:
    page = Page(hostile)
    assert HOSTILE in page.text and "{{ 7 * 7 }}" in page.text
    assert len(page.scripts) == 3 and "<script>alert" not in hostile
    data = next(source for attributes, source in page.scripts if attributes.get("id") == "figures")
    assert not set(data) & set("<>&")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in json.dumps(json.loads(data)), "plotly reads tags in its labels"
    figures = [
        card["figure"] for section in json.loads(data).values() for o in section["options"] for card in o["cards"]
    ]
    for trace in (trace for figure in figures for trace in figure["data"]):
        trace.pop("meta", None)  # the key of the method, which is compared and not shown
    assert "<script" not in json.dumps(figures) and "<b>" not in json.dumps(figures)
