"""The page in Chromium: no errors, no requests, sorting, filters, themes, print, and never wider than the window."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_pages import Opened
from report_stores import HOSTILE

from esupcon.report import build

IS_NAMED = """async (name) => {
  while (document.getElementById("theme").textContent !== name) await new Promise((done) => setTimeout(done, 20));
}"""


@pytest.fixture(scope="module")
def bare(browser: Any, whole_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The page without plotly, which opens faster; the tests change different parts of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "plotly.offline", None)  # as if it were not installed
        page = build(whole_store, tmp_path_factory.mktemp("bare") / "report.html")
    with Opened(browser, page) as one:
        yield one
        assert one.complaints == []


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_page_is_quiet_offline_and_never_wider_than_the_window(
    browser: Any, whole_report: Path, width: int, theme: str
) -> None:
    with Opened(browser, whole_report, viewport={"width": width, "height": 800}, color_scheme=theme) as one:
        one.draw_all()
        one.assert_quiet_and_no_wider_than(width)
        assert one.page.locator(".js-plotly-plot .main-svg").count() > 20


def test_sorting_by_mouse_and_by_keyboard(bare: Opened) -> None:
    assert bare.column(0, 0) == ["CE", "SupCon+CE", "ESupCon"]
    buttons = bare.page.locator("table.results").first.locator("button.sort")
    head = bare.page.locator("table.results").first.locator("th[aria-sort]").nth(1)
    buttons.nth(1).click()
    assert head.get_attribute("aria-sort") == "descending"
    assert bare.column(0, 0) == ["ESupCon", "CE", "SupCon+CE"]
    figures = [float(text) for text in bare.column(0, 1)]
    assert figures == sorted(figures, reverse=True)
    buttons.nth(1).focus()
    bare.page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert bare.column(0, 0) == ["SupCon+CE", "CE", "ESupCon"]
    buttons.first.click()
    assert bare.column(0, 0) == ["CE", "ESupCon", "SupCon+CE"]
    assert head.get_attribute("aria-sort") == "none"
    # By average gain: the baseline has none and stays at the bottom, both ways.
    for _ in range(2):
        buttons.last.click()
        assert bare.column(0, 0)[-1] == "CE"


def test_theme_follows_the_system_and_the_button(bare: Opened) -> None:
    def brightness() -> int:
        colour = bare.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, colour[4:-1].split(", ")))

    button = bare.page.locator("#theme")
    assert brightness() > 600 and button.inner_text() == "Dark"
    bare.page.emulate_media(color_scheme="dark")
    bare.page.evaluate(IS_NAMED, "Light")
    assert brightness() < 200
    button.click()
    assert brightness() > 600 and button.get_attribute("aria-pressed") == "false"
    button.click()
    assert brightness() < 200


def test_all_controls_can_be_reached_by_keyboard(bare: Opened) -> None:
    assert "pip install 'esupcon[report]'" in bare.page.locator("main").inner_text()
    bare.page.reload()
    bare.page.keyboard.press("Tab")
    assert bare.page.evaluate("document.activeElement.className") == "skip"
    assert bare.page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    reachable = "(e) => e.tabIndex >= 0 && (e.innerText || e.ariaLabel || e.labels?.length) ? 0 : 1"
    controls = bare.page.locator("button, input, select, summary, a[href], .scroll").all()
    visible = [control for control in controls if control.is_visible()]
    assert len(visible) > 30 and sum(control.evaluate(reachable) for control in visible) == 0


def test_choices_of_setting_and_methods_change_what_is_drawn(browser: Any, whole_report: Path) -> None:
    with Opened(browser, whole_report) as one:
        page, captions = one.page, one.page.locator("#curves figcaption")
        page.locator("#curves").scroll_into_view_if_needed()
        page.locator("#curves .plot .main-svg").first.wait_for()
        traces = "() => document.querySelector('#curves .plot').data.map((trace) => trace.name)"
        assert page.evaluate(traces) == ["CE", "SupCon+CE", "ESupCon"]
        page.get_by_label("SupCon+CE", exact=True).uncheck()
        assert one.column(0, 0) == ["CE", "ESupCon"] == page.evaluate(traces)
        assert page.locator("#confusion figure:visible").count() == 2
        for name in ("CE", "ESupCon"):
            page.get_by_label(name, exact=True).uncheck()
        assert "All methods are hidden" in page.locator("#confusion").inner_text()
        page.get_by_label("ESupCon", exact=True).check()
        assert one.column(0, 0) == ["ESupCon"] and page.locator("#confusion figure:visible").count() == 1
        assert captions.all_inner_texts() == ["Accuracy on held-out data", "Training loss"]
        page.locator("#curves-choice").select_option(label="Half of the classes scarce: CIFAR-10, IR=0.05")
        assert captions.all_inner_texts() == ["Training loss"]
        page.locator("#curves .plot .main-svg").first.wait_for()
        assert "held out no data" in page.locator("#curves .note").inner_text()
        assert one.complaints == []


def test_script_as_a_class_name_is_shown_as_text(browser: Any, hostile_report: Path) -> None:
    with Opened(browser, hostile_report) as one:
        one.draw_all()
        assert one.complaints == [] and one.requests == [one.address, "data:,"][: len(one.requests)]
        ticks = one.page.locator("#confusion .ytick text").all_text_contents()
        assert ticks[0].startswith("<script>ale"), ticks
        assert HOSTILE in one.page.locator("#findings").inner_text()
        heading = one.page.locator("h2").first.inner_text()
        assert heading == f"Title {HOSTILE} </title> @octocat https://example.org"
        assert one.page.locator("script").count() == 3
        legend = one.page.locator("#curves .legendtext").all_text_contents()
        assert any(HOSTILE in name for name in legend), legend


def test_print_draws_everything_in_light_colours(browser: Any, whole_report: Path, tmp_path: Path) -> None:
    with Opened(browser, whole_report, color_scheme="dark") as one:
        one.page.pdf(path=tmp_path / "report.pdf", format="A4")
        assert (tmp_path / "report.pdf").stat().st_size > 50_000
        undrawn = "[...document.querySelectorAll('figure:not([hidden]) .plot')].filter((p) => !p.dataset.drawn).length"
        assert one.page.evaluate(undrawn) == 0
        assert one.page.evaluate("document.documentElement.dataset.theme ?? 'of the system'") == "of the system"
        one.page.emulate_media(media="print")
        assert one.page.locator(".contents").is_hidden()
