"""The site: built without a warning, whole references, links that lead somewhere, quiet and offline in a browser."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import esupcon
from assets import made_once

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

from docs_reference import (  # noqa: E402 - outside the package
    PAGES,
    api_page,
    public_names,
    signature,
)
from docs_site import main, missing, navigation  # noqa: E402

# Tables, code and equations scroll by themselves; the drawers wait outside the window.
OUTSIDE = """(width) => [...document.querySelectorAll("article *")]
  .filter((e) => !e.closest(".table-wrapper, pre, .equation, .visually-hidden"))
  .filter((e) => e.getBoundingClientRect().right > width + 1 && e.getBoundingClientRect().width > 0)
  .map((e) => e.outerHTML.slice(0, 80))"""


# --- Sources ---------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation() -> None:
    entries = re.findall(r"^(?!:)(\S+)$", navigation((ROOT / "docs" / "index.md").read_text()), flags=re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(entries) == len(set(entries))
    assert pages - {"index"} <= set(entries), "list the new page in docs/index.md"


# --- References ------------------------------------------------------------------------------------------------------


def test_every_package_is_public_or_internal() -> None:
    packages = {found.name for found in pkgutil.iter_modules(esupcon.__path__) if not found.name.startswith("_")}
    listed = {name.removeprefix("esupcon.") for name in PAGES} - {"esupcon"}
    assert packages - {"cli", "estimator"} == listed


@pytest.mark.parametrize("page", PAGES)
def test_every_public_name_is_documented(page: str) -> None:
    text = api_page(page)
    for module_name in PAGES[page]:
        module = importlib.import_module(module_name)
        for name in public_names(module):
            value = getattr(module, name)
            assert re.search(rf"^:+\{{py:\w+\}} {name}\b", text, flags=re.MULTILINE), f"{module_name}.{name}"
            if inspect.isfunction(value) or (inspect.isclass(value) and value.__name__ == name):
                assert value.__doc__, f"{module_name}.{name} has no docstring"
                assert not value.__doc__.startswith(f"{name}("), f"{name}: dataclasses made that docstring"
            if inspect.isfunction(value):
                assert signature(value) in text


WITH_EXAMPLES = [path for path in sorted((ROOT / "src").rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.stem)
def test_examples_in_docstrings_run(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    failed, tried = doctest.testmod(module)
    assert tried and not failed


def test_what_the_pages_import_is_public() -> None:
    modules = {module for page in PAGES.values() for module in page} | set(PAGES)
    public = {(module, name) for module in modules for name in public_names(importlib.import_module(module))}
    public |= {("esupcon", name) for name in esupcon.__all__}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if page.suffix == ".md" else [text]
        for node in ast.walk(ast.parse("\n".join(blocks))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "esupcon":
                for one in node.names:
                    found = (node.module, one.name) in public or f"{node.module}.{one.name}" in modules
                    assert found, f"{page.name}: {node.module}.{one.name}"


# --- Built site ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing():
        pytest.skip(f"{', '.join(missing())} not installed: pip install -e '.[docs]'")

    def build(folder: Path) -> None:
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setattr(sys, "argv", ["docs_site.py", "--out", str(folder / "site")])
            assert main() == 0
        assert printed.getvalue() == f"Open {(folder / 'site' / 'index.html').as_uri()}\n"

    return made_once(tmp_path_factory, "site", build) / "site"


class Page(HTMLParser):
    """Collect the ids, the links and what a browser fetches."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
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
    assert checked > 1000
    assert [link for page in pages.values() for link in page.fetched if re.match(r"(https?:)?//", link)] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(\s*['\"]?(?:https?:)?//|@import", styles) == []


def test_equations_are_set_and_code_links_to_the_reference(site: Path) -> None:
    losses = (site / "losses.html").read_text(encoding="utf-8")
    assert losses.count('display="block"') >= 6
    assert not re.search(r"\\(frac|sum|theta|log)\b|\$\$", re.sub(r"<[^>]*>", " ", losses))
    assert 'href="reference/api/esupcon.functional.html#esupcon.functional.prototype_loss"' in losses
    methods = (site / "methods.html").read_text(encoding="utf-8")
    assert 'href="reference/cli.html#esupcon-train"' in methods
    assert 'href="reference/cli.html#esupcon"' not in methods, "that word is a package, a command and a method"


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
