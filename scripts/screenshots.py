"""Pictures of a report as a browser shows it: 1280 and 390 pixels wide, light and dark.

    python scripts/screenshots.py report.html [--out DIR] [--chromium /usr/bin/chromium]

Every picture is of the whole page, with all of its figures drawn. Needs playwright and a Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

WIDTHS = (1280, 390)
THEMES = ("light", "dark")
_DRAW_ALL = """async () => {
  for (let y = 0; y < document.body.scrollHeight; y += 600) {
    scrollTo({ top: y, behavior: "instant" });
    await new Promise((done) => setTimeout(done, 60));
  }
  scrollTo({ top: 0, behavior: "instant" });
  await new Promise((done) => setTimeout(done, 300));
}"""


def take(report: Path, out: Path, chromium: str) -> list[Path]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - a development tool, absent from most machines

    out.mkdir(parents=True, exist_ok=True)
    pictures = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        for width in WIDTHS:
            for theme in THEMES:
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
                page.goto(report.resolve().as_uri())
                page.wait_for_selector("html[data-ready]")
                page.evaluate(_DRAW_ALL)
                path = out / f"{report.stem}-{width}-{theme}.png"
                page.screenshot(path=path, full_page=True)
                pictures.append(path)
                page.close()
        browser.close()
    return pictures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, default=Path("screenshots"))
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    given = parser.parse_args()
    if not given.report.is_file():
        print(f"{given.report} is not there. Write one with esupcon report STORE --out {given.report}", file=sys.stderr)
        return 2
    if given.chromium is None:
        print("no Chromium was found. Install one, or name it with --chromium.", file=sys.stderr)
        return 2
    for path in take(given.report, given.out, given.chromium):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
