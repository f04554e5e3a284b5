"""Settings of the site. `make docs` builds it: scripts/docs_site.py lays the pages out and calls Sphinx with this."""

from __future__ import annotations

import sys
from pathlib import Path

from esupcon import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "esupcon"
author = "The esupcon developers"
version = release = __version__
language = "en"

extensions = ["myst_parser", "mathml", "code_links", "long_code"]
root_doc = "index"
exclude_patterns: list[str] = []
smartquotes = False  # options begin with two dashes
highlight_language = "none"
pygments_dark_style = "a11y-high-contrast-dark"
maximum_signature_line_length = 72
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
nitpicky = False  # annotations name torch and NumPy, whose references would be links to other hosts

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4  # the anchors that GitHub makes, so that links work here and there

html_theme = "furo"
html_title = "esupcon"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_math_renderer = "mathml"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_use_index = False  # search finds more
html_domain_indices = False
html_theme_options = {"top_of_page_buttons": []}
