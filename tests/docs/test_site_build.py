"""The site is built without a warning, its links lead somewhere, and in a browser it is quiet, offline and findable."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

from docs_site import main, missing  # noqa: E402 - it lies outside the package

# Tables, code and equations scroll by themselves; the drawers wait outside the window.
OUTSIDE = """(width) => [...document.querySelectorAll("article *")]
  .filter((e) => !e.closest(".table-wrapper, pre, .equation, .visually-hidden"))
  .filter((e) => e.getBoundingClientRect().right > width + 1 && e.getBoundingClientRect().width > 0)
  .map((e) => e.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing():
        pytest.skip(f"{', '.join(missing())} not installed: pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("docs") / "site"
    words = [sys.executable, str(ROOT / "scripts" / "docs_site.py"), "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"Open {(out / 'index.html').as_uri()}\n"
    return out


class Page(HTMLParser):
    """What a page can be entered at, what it links to, and what a browser fetches for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(given["id"] or "")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        elif given.get("src") or (tag == "link" and given.get("href")):
            self.fetched.append(given.get("src") or given.get("href") or "")


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_links_within_the_site_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    checked, broken = 0, []
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            place, _, anchor = unquote(link).partition("#")
            if re.match(r"https://|mailto:|data:", link):
                continue
            target = (path.parent / place.partition("?")[0]).resolve() if place else path
            checked += 1
            entered = anchor == "" or (target in pages and anchor in pages[target].ids)
            if not (target.is_relative_to(site) and target.is_file() and entered):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []
    assert checked > 2000


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert [link for page in pages.values() for link in page.fetched if re.match(r"(https?:)?//", link)] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(\s*['\"]?(?:https?:)?//", styles) == []
    assert "@import" not in styles


def test_mathematics_is_set_and_code_leads_to_the_reference(site: Path) -> None:
    losses = (site / "losses.html").read_text(encoding="utf-8")
    assert losses.count('display="block"') >= 10
    words = re.sub(r"<[^>]*>", " ", losses)
    assert not re.search(r"\\(frac|sum|theta|log)\b|\$\$", words)
    assert 'href="reference/api/esupcon.functional.html#esupcon.functional.supcon_loss"' in losses
    methods = (site / "methods.html").read_text(encoding="utf-8")
    assert 'href="reference/cli.html#esupcon-train"' in methods
    # The word alone is a package, a command and a method; SupConLoss is a class of others, too.
    assert 'href="reference/cli.html#esupcon"' not in methods
    assert "#esupcon.losses.SupConLoss" not in losses
    assert "<wbr>" in (site / "reliability.html").read_text(encoding="utf-8")


def test_every_page_is_a_few_clicks_away(site: Path, pages: dict[Path, Page]) -> None:
    """From the navigation, which is on every page."""
    for path, page in pages.items():
        found = {(path.parent / link.partition("#")[0]).resolve() for link in page.links} | {path}
        assert {site / "reference/cli.html", site / "losses.html", site / "project/contributing.html"} <= found
    api = {(site / "reference" / link.partition("#")[0]).resolve() for link in pages[site / "reference/api.html"].links}
    assert set((site / "reference/api").glob("*.html")) <= api


def test_a_folder_of_others_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    monkeypatch.setattr(sys, "argv", ["docs_site.py", "--out", str(tmp_path)])
    monkeypatch.setattr("docs_site.missing", list)
    assert main() == 2
    assert "is no site; it is left alone" in capsys.readouterr().err
    monkeypatch.setattr("docs_site.missing", lambda: ["furo"])
    assert main() == 2
    assert capsys.readouterr().err == "furo not installed: pip install -e '.[docs]'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


class Opened:
    """A window, what its pages said on the console, and what they asked for outside their folder."""

    def __init__(self, browser: Any, **settings: Any) -> None:
        self.page = browser.new_page(**settings)
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url))

    def _note(self, url: str) -> None:
        if not url.startswith(("file:", "data:")):
            self.complaints.append(f"request: {url}")


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_pages_are_quiet_offline_and_fit_the_window(
    site: Path, pages: dict[Path, Page], browser: Any, width: int, theme: str
) -> None:
    window = Opened(browser, viewport={"width": width, "height": 800}, color_scheme=theme)
    few = ("index.html", "losses.html", "reference/cli.html", "reference/api/esupcon.html")
    for path in pages if width == 390 else [site / name for name in few]:
        window.page.goto(path.as_uri())
        assert window.complaints == [], path.name
        assert window.page.evaluate("document.documentElement.scrollWidth") <= width, path.name
        assert window.page.evaluate(OUTSIDE, width) == [], path.name
    brightness = (
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    )
    assert (window.page.evaluate(brightness) > 600) == (theme == "light")
    window.page.close()


def test_search_finds_the_reference(site: Path, browser: Any) -> None:
    window = Opened(browser, viewport={"width": 1280, "height": 800})
    window.page.goto((site / "index.html").as_uri())
    window.page.get_by_placeholder("Search").fill("ESupConLoss")
    window.page.keyboard.press("Enter")
    first = window.page.locator("ul.search li a").first
    first.wait_for()
    assert first.inner_text() == "esupcon.losses.ESupConLoss"
    first.click()
    window.page.wait_for_url(re.compile(r"reference/api/esupcon\.losses\.html"))
    assert window.page.locator("dt[id='esupcon.losses.ESupConLoss']").is_visible()
    window.page.goto((site / "search.html").as_uri() + "?q=--micro-batch")
    window.page.locator("ul.search li a", has_text="micro-batch").first.wait_for()
    assert window.complaints == []
    window.page.close()
