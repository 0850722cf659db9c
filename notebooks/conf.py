"""Configuration of the book: `python -m sphinx -W --keep-going -b html notebooks build/book`."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "rescnet_dist"
author = "the rescnet_dist developers"
copyright = author
version = release = installed_version("rescnet-dist")

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
]
# generates the tables of commands, spec fields, events and errors
extensions += sorted(path.stem for path in (HERE / "_ext").glob("[!_]*.py"))

language = "en"
exclude_patterns = ["_ext", "results", "**/.ipynb_checkpoints", "build"]
suppress_warnings = ["mystnb.unknown_mime_type"]  # of widgets, whose outputs are stored as text too

# Markdown and notebooks -------------------------------------------------------------------------

source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}
nb_execution_mode = "off"  # notebooks are shown with their stored outputs
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist", "substitution"]
myst_heading_anchors = 4
myst_url_schemes = ["http", "https", "mailto"]

# the reference ----------------------------------------------------------------------------------

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc sections give the types, with shapes
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = False
nitpicky = False

# other projects' inventories are loaded only where the network is reachable
intersphinx_mapping: dict[str, tuple[str, None]] = {}

# HTML -------------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = f"rescnet_dist {version}"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_prev_next": True,
    "show_toc_level": 2,
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

# `-b linkcheck` ---------------------------------------------------------------------------------

# Sphinx itself checks links between pages and to anchors in every build (myst.xref_missing is an
# error with -W). linkcheck adds external links; set BOOK_OFFLINE=1 where there is no network.
linkcheck_timeout = 15
linkcheck_workers = 4
linkcheck_retries = 2
linkcheck_anchors = True
linkcheck_anchors_ignore_for_url = [r"https://github\.com/.*"]
linkcheck_ignore = [
    r"http://127\.0\.0\.1.*",
    r"http://localhost.*",
    r"https?://hub\.example\.org.*",
]
if os.environ.get("BOOK_OFFLINE"):
    linkcheck_ignore.append(r"https?://.*")
