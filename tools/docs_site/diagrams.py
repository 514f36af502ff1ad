"""Mermaid blocks become SVG when the site is built, so that no page needs a script."""

from __future__ import annotations

import mermaidx
from docutils import nodes
from sphinx.application import Sphinx

_SETTINGS = '%%{init: {"theme": "neutral", "flowchart": {"wrappingWidth": 320}}}%%\n'


def connect(app: Sphinx) -> None:
    """Replace the blocks."""
    app.connect("doctree-read", _draw)


def _draw(app: Sphinx, document: nodes.document) -> None:
    blocks = [block for block in document.findall(nodes.literal_block) if block.get("language") == "mermaid"]
    for number, block in enumerate(blocks):
        block.replace_self(
            nodes.raw("", f'<div class="diagram">{drawn(block.astext(), number)}</div>', format="html")
        )


def drawn(text: str, number: int) -> str:
    """Return a diagram as SVG; the number distinguishes it from the others of its page."""
    picture = str(mermaidx.render(_SETTINGS + text).svg())
    return picture.replace("my-svg", f"diagram-{number}")  # its styles refer to it by this name
