"""What a store of runs says, as a page, as Markdown, as CSV or as LaTeX.

Nothing here trains, and nothing needs torch: a report is read from files. Nothing is imported here either, so that a
command line can name the formats without loading any of them.
"""
