"""The documents as a site: `make docs FORM=site` builds it into build/site, from the Markdown files as they lie in the tree. Which
pages there are, and in which order, is what docs/index.md and docs/decisions/index.md link to."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

project = "Headrace"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = ["docs/site", *(path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "docs")]  # Not looked into.
myst_heading_anchors = 4  # Links to headings are as they are elsewhere: #a-data-set-of-your-own.
html_theme = "furo"
html_title = "Headrace"
html_show_sourcelink = False
html_copy_source = False


def add_contents(app, docname, source):
    """The pages that an index links to below a heading are a part of the sidebar."""
    if posixpath.basename(docname) != "index":
        return
    contents = ""
    for heading, part in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", source[0], re.MULTILINE):
        pages = re.findall(r"\]\(([^)#:]+)\.md\)", part)
        listed = "\n".join("/" + posixpath.normpath(posixpath.join(posixpath.dirname(docname), page)) for page in pages)
        contents += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{listed}\n```\n"
    source[0] += contents


def setup(app):
    app.connect("source-read", add_contents)
    return {"parallel_read_safe": True}
