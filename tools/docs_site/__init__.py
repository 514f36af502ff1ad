"""The Sphinx extension of the documentation site: the pages are those of the repository, as they are.

``docs/README.md`` orders the pages, links to files of the repository lead to pages that show the files, and diagrams become SVG when
the site is built. A reader's browser loads nothing from elsewhere.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from docs_site import diagrams, files, navigation, public_names


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the parts to Sphinx."""
    for part in (diagrams, files, navigation, public_names):
        part.connect(app)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
