"""The order of the pages: that of the links in ``docs/README.md``, a part of the side bar for each of its headings.

The Markdown has no tables of contents for Sphinx; they are appended to its text while it is read.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
FIRST = "README"
INDEX = "docs/README"
API = "docs/api/index"
DECISIONS = "docs/decisions/0001-record-decisions"
"""The page under which the other decisions are."""

_TITLES = {INDEX: "All pages", API: "API", DECISIONS: "Decisions"}
_HEADING = re.compile(r"^## +(.+)$")
_ENTRY = re.compile(r"^\* \[[^\]]+\]\(([\w/.-]+)\.md\)")


def connect(app: Sphinx) -> None:
    """Append the tables of contents, and give the site its first page."""
    app.connect("source-read", _append)
    app.connect("build-finished", _first_page)


def contents() -> dict[str, dict[str, list[str]]]:
    """Return the pages that have tables of contents, each table as its caption and the pages in it."""
    tables = _links_by_heading()
    decisions = tables.pop("Decisions")
    tables["Reference"].append(API)
    project = ["CONTRIBUTING", DECISIONS, "CHANGELOG", "SECURITY"]
    return {
        FIRST: {"": [INDEX], **tables, "Project": project},
        DECISIONS: {"": [page for page in decisions if page != DECISIONS]},
    }


def _links_by_heading() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    heading = ""
    for line in (ROOT / f"{INDEX}.md").read_text().splitlines():
        if match := _HEADING.match(line):
            heading = match[1]
        elif match := _ENTRY.match(line):
            found.setdefault(heading, []).append(f"docs/{match[1]}")
    return found


def _append(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] += "".join(_toctree(caption, pages) for caption, pages in contents().get(page, {}).items())


def _first_page(app: Sphinx, failure: Exception | None) -> None:
    if failure is None:
        shutil.copy(app.outdir / f"{FIRST}.html", app.outdir / "index.html")


def _toctree(caption: str, pages: list[str]) -> str:
    entries = [f"{_TITLES[page]} </{page}>" if page in _TITLES else f"/{page}" for page in pages]
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])
