"""The parts of pages that a program writes: what is between the marks ``<!-- name:begin -->`` and ``<!-- name:end -->``."""

from __future__ import annotations


def replaced(text: str, name: str, part: str) -> str:
    """Return a page with another text between its marks.

    Args:
        text: The page.
        name: Name in the marks.
        part: What is between them, lines of Markdown.
    """
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{part}{end}{after}"
