"""Report what a run or a store of runs shows. Nothing is trained and torch is not needed.

`run_report` writes a page about one run, `build` a report of a store as a page, Markdown or CSV.
"""

from esupcon.report.run import Images, picture, run_report
from esupcon.report.write import build

__all__ = ["Images", "build", "picture", "run_report"]
