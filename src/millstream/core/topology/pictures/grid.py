"""The grid of a picture: boxes in rows, and lines that pass between boxes, never through one.

A node is one row below the lowest of its parents. A line to a lower row has its own *slot*, beside the boxes, in each row that it
passes. Lines are curves between rows and straight within a row, so they cannot cross a box. A line to a higher row, from a sink to a
source whose topic an earlier part reads, passes to the right of all boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

LETTER: Final = 8
LINE: Final = 16
PADDING: Final = 8
GAP: Final = 28
TITLE: Final = 36
"""Sizes in pixels: width of a letter, height of a line, padding in a box, gap between boxes, and height of a part's title and of
the figures that a page writes above boxes."""

_SLOT: Final = 8
_LANE: Final = 12
_TURN: Final = 5


class Box(NamedTuple):
    """A node with its position and size in pixels. ``x`` and ``y`` are the left and upper edges."""

    lines: tuple[str, ...]
    x: int
    y: int
    width: int
    height: int

    @property
    def middle(self) -> int:
        return self.x + self.width // 2


class Cell(NamedTuple):
    """A cell of a row: a node, or a slot of a line, which has no text."""

    name: str
    lines: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return max(map(len, self.lines)) * LETTER + 2 * PADDING if self.lines else _SLOT

    @property
    def height(self) -> int:
        return len(self.lines) * LINE + 2 * PADDING if self.lines else 0


@dataclass(frozen=True)
class Grid:
    """Boxes with the lines between them."""

    boxes: Mapping[str, Box]
    paths: Sequence[str]
    width: int
    height: int


def grid(rows: Sequence[Sequence[Cell]], arrows: Iterable[tuple[str, str]], titled: Iterable[int]) -> Grid:
    """Lay out nodes in rows.

    Args:
        arrows: Start and end of each line, without duplicates.
        titled: Rows with a title above them. There is always room for a title above the first row.
    """
    row_of = {cell.name: number for number, row in enumerate(rows) for cell in row}
    routes = [_route(start, end, row_of) for start, end in dict.fromkeys(arrows)]
    filled = [list(row) for row in rows]
    for route in routes:
        for number, name in route.slots:
            filled[number].append(Cell(name))
    tops, bottoms = _heights(filled, {0, *titled})
    cells = _position_boxes(filled, tops, [route.names for route in routes if route.down])
    boxes = {name: box for name, box in cells.items() if box.lines}
    width = max((box.x + box.width for box in boxes.values()), default=0) + GAP
    ups = [route for route in routes if not route.down]
    lines = _Lines(cells, tops, bottoms, {cell.name: n for n, row in enumerate(filled) for cell in row})
    lanes = {route.names: width + number * _LANE for number, route in enumerate(ups)}
    paths = [
        lines.down(route.names) if route.down else lines.around(route.names, lanes[route.names])
        for route in routes
    ]
    height = bottoms[-1] + GAP if bottoms else 0
    return Grid(boxes, paths, width + len(ups) * _LANE, height)


class _Route(NamedTuple):
    """A line: the cells that it passes, and its slots with their rows."""

    names: tuple[str, ...]
    slots: tuple[tuple[int, str], ...] = ()
    down: bool = True


def _route(start: str, end: str, row_of: Mapping[str, int]) -> _Route:
    if row_of[end] <= row_of[start]:
        return _Route((start, end), down=False)
    between = range(row_of[start] + 1, row_of[end])
    slots = tuple((number, f"{start}\0{end}\0{number}") for number in between)
    return _Route((start, *(name for _, name in slots), end), slots)


def _heights(rows: Sequence[Sequence[Cell]], titled: set[int]) -> tuple[list[int], list[int]]:
    tops, bottoms, y = list[int](), list[int](), 0
    for number, row in enumerate(rows):
        y += TITLE if number in titled else 0
        tops.append(y)
        bottoms.append(y + max((cell.height for cell in row), default=0))
        y = bottoms[-1] + GAP
    return tops, bottoms


def _position_boxes(
    rows: Sequence[Sequence[Cell]], tops: Sequence[int], routes: Iterable[Sequence[str]]
) -> dict[str, Box]:
    """Place the cells of each row below the cells from which they come, as far as there is room."""
    above: dict[str, list[str]] = {}
    for names in routes:
        for start, end in pairwise(names):
            above.setdefault(end, []).append(start)
    boxes: dict[str, Box] = {}

    def parents_middle(cell: Cell) -> float:
        parents = [boxes[name].middle for name in above.get(cell.name, ()) if name in boxes]
        return sum(parents) / len(parents) if parents else 0.0

    for row, top in zip(rows, tops):
        x = GAP
        for cell in sorted(row, key=parents_middle):
            x = max(x, round(parents_middle(cell)) - cell.width // 2)
            boxes[cell.name] = Box(cell.lines, x, top, cell.width, cell.height)
            x += cell.width + GAP
    return boxes


@dataclass(frozen=True)
class _Lines:
    boxes: Mapping[str, Box]
    tops: Sequence[int]
    bottoms: Sequence[int]
    row_of: Mapping[str, int]

    def down(self, names: Sequence[str]) -> str:
        return "".join(self._pieces(names))

    def _pieces(self, names: Sequence[str]) -> Iterator[str]:
        start = self.boxes[names[0]]
        yield f"M{start.middle} {start.y + start.height}"
        for name, following in pairwise(names):
            x, y = self.boxes[name].middle, self.bottoms[self.row_of[name]]
            to_x, to_y = self.boxes[following].middle, self.tops[self.row_of[following]]
            half = (to_y - y) // 2
            yield f"V{y}C{x} {y + half} {to_x} {to_y - half} {to_x} {to_y}"

    def around(self, names: Sequence[str], lane: int) -> str:
        """Return a line that leaves a row, rises to the right of all boxes, and enters a row from above."""
        start, end = (self.boxes[name] for name in names)
        leaves = self.bottoms[self.row_of[names[0]]] + _TURN
        enters = self.tops[self.row_of[names[1]]] - _TURN
        return f"M{start.middle} {start.y + start.height}V{leaves}H{lane}V{enters}H{end.middle}V{end.y}"
