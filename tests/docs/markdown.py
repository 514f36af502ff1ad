"""The parts of Markdown that the tests of the documentation need: fenced blocks, links, headings and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_FENCE = re.compile(r"^```(.*)$")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?) *$")
_CODE_SPAN = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line where its content begins, the words after the fence, and the content."""

    page: Path
    line: int
    info: tuple[str, ...]
    text: str

    @property
    def is_python(self) -> bool:
        return self.info[:1] == ("python",)

    @property
    def file(self) -> str | None:
        """The name of the Python file for this block."""
        return next((word for word in self.info[1:] if word.endswith(".py")), None)

    @property
    def needs_broker(self) -> bool:
        return "broker" in self.info

    @property
    def is_output(self) -> bool:
        """Whether this is the output of the Python block before it."""
        return self.info == ("output",)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    blocks: list[Block] = []
    lines: list[str] = []
    opened: tuple[int, tuple[str, ...]] | None = None
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif opened is None:
            opened, lines = (number + 1, tuple(fence[1].split())), []
        else:
            blocks.append(Block(page, *opened, "".join(f"{line}\n" for line in lines)))
            opened = None
    assert opened is None, f"{name_of(page)}: the block that begins at line {opened} does not end"
    return blocks


def prose_of(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines outside of fenced blocks."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def links_of(page: Path) -> list[tuple[int, str]]:
    """Return the targets of the links of a page with their lines."""
    return [
        (number, target)
        for number, line in prose_of(page)
        for target in _LINK.findall(_CODE_SPAN.sub("code", line))
    ]


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = (_HEADING.match(line) for _, line in prose_of(page))
    return {_anchor(heading[1]) for heading in headings if heading is not None}


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")


def table_rows(page: Path, first_column: str) -> list[list[str]]:
    """Return the cells of the tables whose first column has this header."""
    rows: list[list[str]] = []
    inside = False
    for _, line in prose_of(page):
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif cells[0] == first_column:
            inside = True
        elif inside and set(cells[0]) - set("-: "):
            rows.append(cells)
    return rows


def tables_under_headings(page: Path) -> dict[str, list[dict[str, str]]]:
    """Return the rows of the tables by the heading above them, each as its cells by column header."""
    tables: dict[str, list[dict[str, str]]] = {}
    heading, columns = "", list[str]()
    for _, line in prose_of(page):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if found := _HEADING.match(line):
            heading = found[1].strip()
        if not cells:
            columns = []
        elif not columns:
            columns = cells
        elif set(cells[0]) - set("-: "):
            tables.setdefault(heading, []).append(dict(zip(columns, cells)))
    return tables
