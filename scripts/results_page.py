"""Fills docs/results.md and the README with what the study in studies/cifar found: tables and figures, nothing by hand.

    python scripts/results_page.py            writes both, and docs/images/study-*.png
    python scripts/results_page.py --check    fails where a table is not what the stored runs give

A place to be filled lies between <!-- study: NAME --> and <!-- end of NAME -->.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from study_changes import schedules, temperatures
from study_figures import draw
from study_search import search, surroundings, tested, tries
from study_tables import SETTINGS, accuracies, calibrations, headline

from esupcon.report.content import read_content

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "studies" / "cifar"
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")


def filled(text: str, parts: dict[str, Callable[[], str]]) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- study: {name} -->\n\n{parts[name]()}\n\n<!-- end of {name} -->"

    return re.sub(r"<!-- study: ([\w-]+) -->.*?<!-- end of \1 -->", replace, text, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fill docs/results.md and the README from studies/cifar.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table differs")
    check = parser.parse_args().check
    study, searched = read_content(STUDY / "runs"), read_content(STUDY / "search")
    parts: dict[str, Callable[[], str]] = {
        "headline": partial(headline, study),
        "calibration": partial(calibrations, study),
        "search": partial(search, searched),
        "temperatures": partial(temperatures, study),
        "schedules": partial(schedules, study, read_content(STUDY / "long")),
        "tries": partial(tries, searched),
        "surroundings": partial(surroundings, searched),
        "noise": partial(search, read_content(STUDY / "noise")),
        "hundred": partial(search, read_content(STUDY / "hundred")),
        "trials": partial(tested, read_content(STUDY / "trials")),
        **{name: partial(accuracies, study, name) for name in SETTINGS},
    }
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = filled(text, parts)
        if new != text:
            stale.append(page.name)
            if not check:
                page.write_text(new, encoding="utf-8")
    if check:
        if stale:
            print(
                f"{', '.join(stale)}: tables differ from studies/cifar. Run scripts/results_page.py.", file=sys.stderr
            )
        return int(bool(stale))
    draw(study, searched, ROOT / "docs" / "images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
