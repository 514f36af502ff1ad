"""Files of the repository that pages link to: each gets a page that shows it, and a folder one that lists its files."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import guess_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.util.osutil import relative_uri

from docs_site.navigation import ROOT

_Page = tuple[str, dict[str, Any], str]


def connect(app: Sphinx) -> None:
    """Point links at the pages of files, and make these pages."""
    linked = _LinkedFiles()
    app.connect("doctree-read", linked.point, priority=100)  # before Sphinx collects files to download
    app.connect("html-collect-pages", linked.pages)


class _LinkedFiles:
    def __init__(self) -> None:
        self._paths: set[Path] = set()

    def point(self, app: Sphinx, document: nodes.document) -> None:
        """Point the links of a page to the pages of files."""
        page = app.env.current_document.docname
        for link in [*document.findall(_is_link_to_file)]:
            assert isinstance(link, nodes.Element)
            target = (ROOT / page).parent.joinpath(link["reftarget"]).resolve()
            if target.exists() and target.is_relative_to(ROOT):
                self._paths.add(target)
                address = relative_uri(f"{page}.html", f"{_name_of(target)}.html")
                link.replace_self(nodes.reference("", "", *link.children, refuri=address, internal=True))

    def pages(self, app: Sphinx) -> Iterator[_Page]:
        """Make the pages of the files, and of the files in folders."""
        assert isinstance(app.builder, StandaloneHTMLBuilder)
        folders = {path for path in self._paths if path.is_dir()}
        files = {path for path in self._paths if path.is_file()}
        for folder in sorted(folders):
            inside = sorted(path for path in folder.iterdir() if path.is_file())
            files.update(inside)
            yield _page(folder, _list_of(folder, inside))
        for path in sorted(files):
            text = path.read_text()
            shown = app.builder.highlighter.highlight_block(text, _language_of(path, text), linenos="inline")
            yield _page(path, shown)


def _is_link_to_file(node: nodes.Node) -> bool:
    if isinstance(node, addnodes.pending_xref):  # a folder, to MyST anything unknown
        return node.get("reftype") == "myst" and node.get("refdomain") is None
    return isinstance(node, addnodes.download_reference)


def _name_of(path: Path) -> str:
    return f"files/{path.relative_to(ROOT).as_posix()}"


def _page(path: Path, body: str) -> _Page:
    title = path.relative_to(ROOT).as_posix()
    heading = f'<h1 class="file">{escape(title)}</h1>'
    return _name_of(path), {"title": title, "body": heading + body}, "page.html"


def _list_of(folder: Path, inside: list[Path]) -> str:
    entries = (
        f'<li><a href="{folder.name}/{path.name}.html">{escape(path.name)}</a></li>' for path in inside
    )
    return f"<ul>{''.join(entries)}</ul>"


def _language_of(path: Path, text: str) -> str:
    try:
        return str(guess_lexer_for_filename(path.name, text).aliases[0])
    except ClassNotFound:
        return "text"
