"""Report what a store of runs shows, as a page, Markdown, CSV or LaTeX. Nothing is trained and torch is not needed."""

from esupcon.report.write import build

__all__ = ["build"]
