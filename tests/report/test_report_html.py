"""The page as a parser reads it: its tables, its policy, and hostile names as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from report_pages import Page
from report_stores import HOSTILE


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


def test_every_part_is_there(whole: str) -> None:
    page = Page(whole)
    for title in (
        *("Fully labelled", "Findings", "How the results were produced", "63 of 63 planned runs finished."),
        *("Reliability before and after calibration", "Training curves", "Map of the embedding", "Confusion matrix"),
        *("esupcon report whole --out report.html", "imbalance in 6 runs", "ESupCon on CIFAR-10, IR=0.05, seed 1"),
    ):
        assert title in page.text, title
    data = next(source for attributes, source in page.scripts if attributes.get("id") == "figures")
    assert set(json.loads(data)) == {"reliability", "curves", "embedding", "confusion"}
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
