"""The card shows what the config says, and what users write stays text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from esupcon.artifact.card import escaped, model_card
from esupcon.methods import METHODS


class Page(HTMLParser):
    """The tags of a page, and its text cell by cell."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.text = ""
        self.in_cell = False
        self.feed(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown))
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag == "td":
            self.cells.append("")
            self.in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = self.in_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.in_cell:
            self.cells[-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def page(config: Any) -> Page:
    return Page(model_card(config).split("---\n", 2)[2])


NASTY = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a | b | c",
    "[link](https://example.org)",
    "![image](x.png)",
    "`code` *bold* _emphasis_ __strong__ ~~gone~~",
    "&lt;b&gt; &amp; &#60;",
    "<!-- hidden -->",
    "\\* \\",
    "# heading",
    "---",
    "$x^2$",
    "@someone",
    "T-shirt/top",
    "snake_case_name",
    "5% (of all), it's = 1.5",
]


@pytest.mark.parametrize("text", NASTY)
def test_class_names_are_shown_as_they_are(make: Any, text: str) -> None:
    _, config = make(classes=[text, "other", "third"])
    plain = page(make()[1])
    found = page(config)
    assert found.tags == plain.tags
    assert text in [cell.strip() for cell in found.cells]


@given(st.text(max_size=40))
@example("_a_")
@example("a_ b")
@example("é_ü")
def test_any_text_stays_text(text: str) -> None:
    found = Page(f"| a | b |\n| --- | --- |\n| x | {escaped(text)} |\n| y | z |\n")
    assert found.tags == {"table", "thead", "tbody", "tr", "th", "td"}
    visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    cells = [" ".join(cell.split(" ")).strip() for cell in found.cells]
    assert cells == ["x", visible.strip(), "y", "z"]


@pytest.mark.parametrize(
    "text", ["https://example.org", "www.example.org", "WWW.example.org", "me@example.org", "ftp://x"]
)
def test_addresses_do_not_become_links(text: str) -> None:
    """Such as some renderers make of bare addresses."""
    assert not re.search(r"(?i)www\.|://|@", escaped(text))


def test_invisible_characters_are_named() -> None:
    assert escaped("abc\u202edef\n\0") == "abc&#92;u202edef&#92;n&#92;x00"


def test_words_stay_readable() -> None:
    for text in ("T-shirt/top", "batch_size", "torch 2.13.0+cpu", "naïve", "猫", "50% (half)"):
        assert escaped(text) == text


def test_card_tells_what_the_config_says(make: Any) -> None:
    _, config = make(
        "resnet10-w4",
        (3, 8, 6),
        training={"epochs": 10, "optimiser": {"name": "sgd", "lr": 0.05}, "long": list(range(50))},
        metrics={"accuracy": 0.9123456789, "ece": {"before": 0.1}},
        calibration_temperature=1.25,
        data_fingerprint="abc123",
        created="2026-01-31T12:00:00+00:00",
        versions={"esupcon": "9.9"},
    )
    found = page(config)
    cells = [cell.strip() for cell in found.cells]
    rows = dict(zip(cells[::2], cells[1::2], strict=True))
    assert rows["0"] == "cat"
    assert rows["2"] == "eel"
    assert rows["epochs"] == "10"
    assert rows["optimiser.lr"] == "0.05"
    assert rows["long"] == "50 values"
    assert rows["accuracy"] == "0.912346"
    assert rows["ece.before"] == "0.1"
    for said in (
        "colour images of 8 x 6 pixels",
        "resnet10-w4",
        "temperature of 0.2",
        METHODS["esupcon"].title,
        "divided by 1.25",
        "abc123",
        "2026-01-31T12:00:00+00:00",
        "esupcon 9.9",
        'esupcon.load("this/folder")',
        "(n, 3, 8, 6)",
    ):
        assert said in found.text, said


def test_cards_of_other_models(make: Any) -> None:
    text = page(make("identity", (4,), head="linear")[1]).text
    for said in ("rows of 4 numbers", "a linear map", "Nothing was measured", "Not calibrated", "(n, 4)"):
        assert said in text, said
    _, config = make("identity", (4,))
    custom = page(type(config).model_validate(config.model_dump() | {"encoder": "custom", "method": "my <own>"})).text
    assert "encoder=module" in custom
    assert "my <own>" in custom


def test_long_lists_end(make: Any) -> None:
    _, config = make("identity", (4,), classes=list(range(150)))
    found = page(config)
    assert "50 more are in config.json" in found.text
    assert [cell.strip() for cell in found.cells][-2] == "99"


def test_front_matter_names_the_task(make: Any) -> None:
    for shape, task in (((4,), "tabular-classification"), ((1, 8, 8), "image-classification")):
        text = model_card(make("mlp-2x1", shape)[1])
        assert text.startswith("---\nlibrary_name: esupcon\n")
        assert f"\npipeline_tag: {task}\n" in text.split("---")[1]
