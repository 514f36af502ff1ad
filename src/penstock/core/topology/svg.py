"""The picture of a plan for notebooks: SVG without any library, so that it shows wherever HTML does.

Parts lie below each other. In a part a node lies one row below the lowest of its parents. The box of a node says what
it reads, uses and writes, so topics and stores need no boxes of their own; a topic that one part writes and another reads has one
name in both.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.topology.walk import Part, Shape, parts_of

if TYPE_CHECKING:
    from penstock.core.topology.split import Plan

LETTER, LINE, PADDING, GAP, TITLE = 8, 16, 8, 28, 24
"""Widths and heights in pixels: of a letter, of a line of text, inside and between boxes, of a part's title."""

_GREY = "#888"
"""Lines and grounds; text takes the colour of the page, so that the picture fits a dark one too."""


class Box(NamedTuple):
    """A node with its place.

    Attributes:
        lines: What it says.
        x: Left edge.
        y: Upper edge.
        width: Width.
        height: Height.
    """

    lines: tuple[str, ...]
    x: int
    y: int
    width: int
    height: int


def svg(plan: Plan) -> str:
    """Draw a plan as SVG."""
    drawn: list[tuple[Part, dict[str, Box], int]] = []
    top = 0
    for part in parts_of(plan):
        boxes = laid_out(part, top + TITLE)
        drawn.append((part, boxes, top))
        top = max(box.y + box.height for box in boxes.values()) + GAP
    width = max((box.x + box.width for _, boxes, _ in drawn for box in boxes.values()), default=0) + GAP
    body = "".join(element for each in drawn for element in _elements(*each, width))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" font-family="monospace" '
        f'font-size="12" fill="currentColor">{body}</svg>'
    )


def laid_out(part: Part, top: int) -> dict[str, Box]:
    """Give each node of a part its place.

    Args:
        part: The part.
        top: Where its first row begins.
    """
    rows: list[list[Shape]] = []
    row_of: dict[str, int] = {}
    for shape in part.shapes:
        row = row_of[shape.name] = 1 + max((row_of[parent] for parent in shape.before), default=-1)
        if row == len(rows):
            rows.append([])
        rows[row].append(shape)
    heights = [max(len(_said(shape)) for shape in row) * LINE + 2 * PADDING for row in rows]
    tops = accumulate((height + GAP for height in heights), initial=top)
    return {name: box for row, y in zip(rows, tops) for name, box in _row(row, y)}


def _row(shapes: list[Shape], y: int) -> Iterator[tuple[str, Box]]:
    x = GAP
    for shape in shapes:
        lines = _said(shape)
        width = max(map(len, lines)) * LETTER + 2 * PADDING
        yield shape.name, Box(lines, x, y, width, len(lines) * LINE + 2 * PADDING)
        x += width + GAP


def _said(shape: Shape) -> tuple[str, ...]:
    verb = "reads" if shape.kind == "Source" else "writes"
    topics = shape.topics or (("a topic chosen per record",) if shape.kind == "Sink" else ())
    return (
        shape.name,
        *(f"{verb} {topic}" for topic in topics),
        *(f"uses {store}" for store in shape.stores),
        *(f"asks {store}" for store in shape.reads),
    )


def _elements(part: Part, boxes: dict[str, Box], top: int, width: int) -> Iterator[str]:
    title = f"Sub-topology {part.number}{' for global store' if part.fills_global_store else ''}"
    height = max(box.y + box.height for box in boxes.values()) + GAP // 2 - top
    yield f'<rect y="{top}" width="{width}" height="{height}" fill="{_GREY}" fill-opacity="0.1"/>'
    yield _text(title, PADDING, top + LINE)
    for shape in part.shapes:
        for parent in shape.before:
            yield _way(boxes[parent], boxes[shape.name])
    for box in boxes.values():
        place = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
        yield f'<rect {place} fill="none" stroke="{_GREY}"/>'
        for number, line in enumerate(box.lines, start=1):
            yield _text(line, box.x + PADDING, box.y + PADDING + number * LINE - LINE // 4)


def _way(start: Box, end: Box) -> str:
    """Draw a curve from the middle of a lower edge to the middle of an upper edge."""
    x, y = start.x + start.width // 2, start.y + start.height
    to_x, to_y = end.x + end.width // 2, end.y
    curve = f"M{x} {y}C{x} {y + GAP // 2} {to_x} {to_y - GAP // 2} {to_x} {to_y}"
    return f'<path d="{curve}" fill="none" stroke="{_GREY}"/>'


def _text(content: str, x: int, y: int) -> str:
    return f'<text x="{x}" y="{y}">{html.escape(content)}</text>'
