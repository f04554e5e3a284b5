"""Pages of reports as a parser reads them, and as Chromium shows them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

# The page's policy forbids what playwright's wait_for_function does, so that waiting is done in the functions.
DRAW_ALL = """async () => {
  const undrawn = () => [...document.querySelectorAll("figure:not([hidden]) .plot")].find((p) => !p.dataset.drawn);
  for (let next = undrawn(); next; next = undrawn()) {
    next.scrollIntoView({ behavior: "instant" });
    await new Promise((done) => setTimeout(done, 30));
  }
}"""
OUTSIDE = """(width) => [...document.querySelectorAll("main *")]
  .filter((e) => !e.closest(".scroll") && !e.closest(".plot") && e.getBoundingClientRect().right > width + 1)
  .map((e) => e.outerHTML.slice(0, 80))"""
VOID = {"meta", "link", "input", "img"}


class Page(HTMLParser):
    """Collect elements with attributes, text and scripts; check that tags are balanced."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
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

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        elif self.stack and self.stack[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


class Opened:
    """A page with the messages on its console and its requests."""

    def __init__(self, browser: Any, report: Path, **settings: Any) -> None:
        self.page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **settings})
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = report.as_uri()
        self.page.goto(self.address)
        self.page.wait_for_selector("html[data-ready]")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()

    def assert_quiet_and_no_wider_than(self, width: int) -> None:
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("data:", "blob:"))] == [self.address]
        assert self.page.evaluate("document.documentElement.scrollWidth") <= width
        assert self.page.evaluate(OUTSIDE, width) == []

    def draw_all(self) -> None:
        self.page.evaluate(DRAW_ALL)

    def column(self, table: int, at: int) -> list[str]:
        rows = self.page.locator("table.results").nth(table).locator("tbody tr:visible")
        return [rows.nth(i).locator("th, td").nth(at).inner_text().split()[0] for i in range(rows.count())]
