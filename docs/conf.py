"""Sphinx's settings: the Markdown pages of the repository, as they are, become a site. See ``make docs``.

The whole repository is the source, so a link works on the site, in a checkout and on a git host alike: one to a page
stays a link, one to another file becomes a download. A link that leads nowhere ends the build.
"""

from __future__ import annotations

import re
from typing import Any

from sglang_adaptive import __version__

project = "sglang-adaptive"
release = version = __version__
author = "the authors of sglang-adaptive"
project_copyright = f"{author}; Apache-2.0"

extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/*.md",
    "patches/README.md",
    "patches/upstream.md",
    "train/README.md",
    "train/smollm2/README.md",
    "benchmarks/**.md",
]
exclude_patterns = [".venv", ".uv", ".git", ".carry", "site", "build", "dist", "**/__pycache__"]  # not walked
myst_heading_anchors = 4  # the anchors that git hosts make
suppress_warnings = ["toc.not_included"]  # a test says which pages README.md leaves out

html_theme = "furo"
html_title = f"sglang-adaptive {__version__}"
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["entry"]  # leads from the root of the site to README.html


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _add_navigation)


def _add_navigation(app: Any, page: str, source: list[str]) -> None:
    """Make the sidebar from the headings and links below "Pages" in README.md, which is to be read elsewhere too."""
    if page != root_doc:
        return
    for section in source[0].partition("\n## Pages\n")[2].split("\n### ")[1:]:
        pages = [f"/{link}" for link in re.findall(r"\]\(([^)#]+\.md)\)", section)]
        caption = section.partition("\n")[0]
        source[0] += "\n".join(["", "", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"])
