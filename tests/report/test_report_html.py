"""The page as a parser sees it: its tables, its marks, its policy, and hostile names as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_stores import HOSTILE, Filler, write_run

from esupcon.experiments.store import Store
from esupcon.report.build import write_report
from esupcon.report.content import read_content
from esupcon.report.html import as_html, json_block
from esupcon.report.words import direction, duration, listed, number, printable, signed

VOID = {"meta", "link", "input", "br", "wbr"}


class Page(HTMLParser):
    """Elements with their attributes, and the text of all but scripts and styles; checks that tags are balanced."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.cells: list[str] = []
        self.feed(source)
        self.close()
        assert not self.stack, f"left open: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.elements.append((tag, given))
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "script":
            self.scripts.append((given, ""))
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        elif self.stack and self.stack[-1] != "style":
            self.words.append(data)
            if "td" in self.stack or "th" in self.stack:
                self.cells[-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def cell(self, start: str) -> str:
        return next(" ".join(cell.split()) for cell in self.cells if " ".join(cell.split()).startswith(start))


@pytest.fixture(scope="module")
def whole(whole_report: Path) -> str:
    return whole_report.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hostile(hostile_report: Path) -> str:
    return hostile_report.read_text(encoding="utf-8")  # halves of characters must not have stopped its writing


def test_the_page_is_well_formed_and_its_links_lead_somewhere(whole: str) -> None:
    page = Page(whole)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"][1:] for tag, attributes in page.elements if tag == "a"]
    assert len(targets) > 10 and set(targets) <= set(ids)
    labels = [attributes["for"] for tag, attributes in page.elements if tag == "label" and "for" in attributes]
    assert set(labels) <= set(ids)
    assert sum(tag == "h1" for tag, _ in page.elements) == 1 and sum(tag == "main" for tag, _ in page.elements) == 1


def test_nothing_is_fetched(whole: str) -> None:
    page = Page(whole)
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster"):
            assert attributes.get(name, "#")[:1] == "#" or attributes[name] == "data:,", (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], "no handlers in attributes"
    style = whole[whole.index("<style>") : whole.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_only_the_pages_own_scripts_may_run(whole: str) -> None:
    page = Page(whole)
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    run = [source for attributes, source in page.scripts if attributes.get("type") != "application/json"]
    assert len(run) == 2
    assert allowed == [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in run]
    assert "default-src 'none'" in policy and "script-src 'unsafe" not in policy


def test_cells_say_mean_deviation_n_gain_and_paper(store: Store, fill: Filler, tmp_path: Path) -> None:
    fill(
        {"ce": [73.7, 74.1, 74.5], "esupcon": [76.7, 77.0, 77.6], "spce": [60.0, None, None], "spce_m": [None] * 3},
        papers={"ce": 95.39, "esupcon": 95.9},
        reduced="2,625 samples",
        plan={"title": "A title", "notes": ["A note."]},
    )
    page = Page(write_report(store.root, tmp_path / "report.html").read_text())
    assert page.cell("74.1") == "74.1 ± 0.4 (n=3) paper 95.39"
    assert page.cell("77.1") == "77.1 ± 0.5 (n=3) ● ▲ +3.0 * paper 95.9 (+0.51)"
    assert page.cell("60.0") == "60.0 (n=1 of 3) ▼ −13.7", "one seed has no deviation"
    assert page.cell("open") == "open"
    assert "± 0 " not in page.text and "± 0.0 (n=1" not in page.text
    for words in (
        "A title",
        "A note.",
        "2,625 samples",
        "7 of 12 planned runs are finished",
        "two-sided paired t-test over n seeds",
        "its figure there is of another scale",
        "A single seed (n=1) has no deviation.",
        "difference to CE on the same seeds; blue is better, red is worse",
        "Unfinished runs",
        "SPCE(M) on CIFAR-10, full, seed 2: not run yet",
    ):
        assert words in page.text, words


def test_every_part_is_there(whole: str) -> None:
    page = Page(whole)
    for title in (
        "Fully labelled",
        "Reliability before and after calibration",
        "Learning, epoch by epoch",
        "What a method costs",
        "Sensitivity to settings",
        "Classes that are scarce",
        "The embedding, as a map",
        "What is taken for what",
        "What the doctor said",
        "How it was made",
    ):
        assert title in page.text, title
    assert "All 63 planned runs are finished." in page.text
    assert "esupcon report whole --out report.html" in page.text and "esupcon reproduce full" in page.text
    for fact in ("abc123", "2.13.0", "Linux", "imbalance in 6 runs", "ESupCon on CIFAR-10, IR=0.05, seed 1"):
        assert fact in page.text, fact
    data = next(source for attributes, source in page.scripts if attributes.get("id") == "figures")
    assert set(json.loads(data)) == {
        "reliability",
        "curves",
        "cost",
        "sensitivity",
        "classes",
        "embedding",
        "confusion",
    }


def test_size_is_that_of_plotly_and_little_more(whole: str) -> None:
    assert len(whole) < 6_000_000 and whole.count("plotly.js v") >= 1


def test_hostile_names_are_text(hostile: str) -> None:
    page = Page(hostile)
    assert HOSTILE in page.text and "{{ 7 * 7 }}" in page.text
    assert not any(tag == "script" and "alert(1)" in source[:20] for tag, source in page.scripts)
    assert len(page.scripts) == 3 and "<script>alert" not in hostile
    assert "\u2028" not in hostile and "\u202e" not in hostile
    data = next(source for attributes, source in page.scripts if attributes.get("id") == "figures")
    assert "<" not in data and ">" not in data and "&" not in data
    texts = json.dumps(json.loads(data))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in texts, "plotly reads tags in its labels, so they are entities"
    figures = [
        card["figure"] for section in json.loads(data).values() for o in section["options"] for card in o["cards"]
    ]
    for trace in (trace for figure in figures for trace in figure["data"]):
        trace.pop("meta", None)  # the key of the method, which is compared and not shown
    assert "<script" not in json.dumps(figures) and "<b>" not in json.dumps(figures)


def test_damaged_runs_are_named_on_the_page(store: Store, fill: Filler) -> None:
    rows = fill({"ce": [70.0, 71.0], "esupcon": [75.0, 76.0]})
    (store.run_folder(rows[0].key) / "result.json").write_text("{")
    page = Page(as_html(read_content(store.root)))
    assert "Left out of this report:" in page.text and f"run {rows[0].key} is left out" in page.text
    assert "3 of 4 planned runs are finished" in page.text and "damaged:" in page.text


def test_a_failed_run_is_listed_with_its_error(store: Store, fill: Filler) -> None:
    rows = fill({"ce": [70.0], "esupcon": [None]})
    store.note_failure(rows[1].key, "the loss is not finite")
    assert (
        "ESupCon on CIFAR-10, full, seed 0: failed: the loss is not finite"
        in Page(as_html(read_content(store.root))).text
    )


def test_a_plan_without_runs_and_runs_without_a_plan_are_said(store: Store, fill: Filler) -> None:
    (one,) = fill({"ce": [None]})
    page = Page(as_html(read_content(store.root)))
    assert "None of its runs is finished yet." in page.text and "0 of 1 planned run are finished" not in page.text
    write_run(store, one)
    for plan in (store.root / "plans").iterdir():
        plan.unlink()
    page = Page(as_html(read_content(store.root)))
    assert "1 run, none of them planned." in page.text


def test_tables_can_be_chosen_and_unknown_ones_are_refused(whole_store: Path, tmp_path: Path) -> None:
    page = Page(write_report(whole_store, tmp_path / "r.html", tables=["imbalanced"]).read_text())
    assert "Half of the classes scarce" in page.text and "Fully labelled" not in page.text
    assert "All 6 planned runs are finished." in page.text
    assert Page(as_html(read_content(whole_store, ["imbalanced-cpu"]))).text.count("Half of the classes scarce") > 1
    with pytest.raises(ValueError, match=r"no table called noisy\. It has full"):
        read_content(whole_store, ["noisy"])


def test_json_in_a_script_element_can_hold_anything() -> None:
    value = {"a": "</script><!-- & \u2028 \ud800 ]]>"}
    text = json_block(value)
    assert text.isascii() and not set(text) & set("<>&") and json.loads(text) == value
    with pytest.raises(ValueError, match="JSON"):
        json_block(float("nan"))


def test_numbers_and_names_are_written_alike_everywhere() -> None:
    assert [signed(v, 1) for v in (1.24, -0.34, 0.04, -0.04, 1234.5)] == ["+1.2", "−0.3", "±0.0", "±0.0", "+1,234.5"]
    assert [number(v, 1) for v in (-0.04, -2.0, 1234.56)] == ["0.0", "−2.0", "1,234.6"]
    assert [direction(v, 1) for v in (0.04, -0.04, 0.06, -3)] == [0, 0, 1, -1]
    assert [duration(v) for v in (2.04, 90, 7300, float("inf"))] == ["2.0 s", "2 min", "2 h 02 min", "unknown"]
    assert printable("a\n b\u202ec\ud800\x00") == "a b\ufffdc\ufffd\ufffd"
    assert [listed(list(words)) for words in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
    assert listed(list("abcd"), 2) == "a, b and 2 more"
