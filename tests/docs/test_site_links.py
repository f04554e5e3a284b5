"""Every relative link of the repository's pages leads to a file, and every #anchor to a heading, by GitHub's rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_links import anchors, broken_links, links

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page, ROOT)) == []


def test_pages_have_links_to_check() -> None:
    assert sum(len(links(page.read_text(encoding="utf-8"))) for page in PAGES) > 50


def test_what_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Title\n\n## `no-positives`\n\n## Same\n\n## Same\n\n<a id='by-hand'></a>\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# From `nn.CrossEntropyLoss`, and why?\n\n"
        "[a](other.md) [b](other.md#no-positives) [c](other.md#same-1) [d](other.md#by-hand) [e](https://x.org/a#b)\n"
        "[f](#from-nncrossentropyloss-and-why) `[code](nowhere.md)`\n\n```\n[code](nowhere.md)\n```\n\n"
        "| [g](missing.md) | ![h](no.png) |\n|---|---|\n| [i](other.md#same-2) | [j](#absent) |\n\n"
        "[k](../outside.md) [l](http://x.org) [m](/root.md) <img src='gone.svg'>\n\n[n][ref]\n\n[ref]: lost.md\n"
    )
    named = [line.partition(":")[0] if line[0] != "h" else "http" for line in broken_links(page, tmp_path)]
    wrong = ["missing.md", "no.png", "other.md#same-2", "#absent", "../outside.md", "http", "/root.md", "gone.svg"]
    assert named == [*wrong, "lost.md"]


@given(st.lists(st.text(alphabet="ab -_.`'é(", max_size=8), max_size=5))
def test_headings_that_look_alike_get_anchors_of_their_own(titles: list[str]) -> None:
    text = "\n\n".join(f"# x{title.replace('`', '')}" for title in titles)
    assert len(anchors(text)) == len(titles)
