"""Drawings of a plan: Mermaid, Graphviz' DOT language, and SVG for notebooks, which needs no other program.

Topics are drawn outside of the parts, because a repartition topic connects two sub-topologies. Names of stores and topics contain
letters, digits and ``._-`` only; names of nodes of the Processor API may contain any character, and are escaped.

**SVG.** Parts are drawn below each other. Within a part, a node is one row below the lowest of its parents. The box of a node lists
what it reads, uses and writes, so topics and stores need no boxes; a topic that one part writes and another reads has the same
name in both.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from millstream.core.topology.describe import Part, Shape, lines_of, parts_of, topics_of
from millstream.core.topology.plan import Plan


def mermaid(plan: Plan) -> str:
    """Draw a plan as a Mermaid flow chart."""
    parts = parts_of(plan)
    ids: dict[tuple[str, str], str] = {}

    def id_of(thing: tuple[str, str]) -> str:
        return ids.setdefault(thing, f"n{len(ids)}")

    lines = ["flowchart TB"]
    lines.extend(f'  {id_of(("topic", topic))}(["{topic}"])' for topic in topics_of(parts))
    for part in parts:
        lines.append(f"  subgraph sub{part.number}[Sub-topology {part.number}]")
        lines.extend(f'    {id_of(("node", shape.name))}["{_mermaid(shape.name)}"]' for shape in part.shapes)
        lines.extend(f'    {id_of(("store", store))}[("{store}")]' for store in part.stores)
        lines.append("  end")
    for line in lines_of(parts):
        lines.append(f"  {id_of(line.start)} {'-->' if line.carries_records else '-.-'} {id_of(line.end)}")
    return "\n".join(lines)


def dot(plan: Plan) -> str:
    """Draw a plan in Graphviz' DOT language."""
    parts = parts_of(plan)
    lines = ["digraph topology {", "  node [shape=box];"]
    lines.extend(f'  "topic:{topic}" [shape=oval, label="{topic}"];' for topic in topics_of(parts))
    for part in parts:
        lines.append(f'  subgraph cluster_{part.number} {{ label="Sub-topology {part.number}";')
        lines.extend(f'    "{_dot(shape.name)}";' for shape in part.shapes)
        lines.extend(f'    "store:{store}" [shape=cylinder, label="{store}"];' for store in part.stores)
        lines.append("  }")
    for line in lines_of(parts):
        style = "" if line.carries_records else " [style=dashed]"
        lines.append(f'  "{_dot_id(line.start)}" -> "{_dot_id(line.end)}"{style};')
    return "\n".join([*lines, "}"])


def _dot_id(thing: tuple[str, str]) -> str:
    kind, name = thing
    return _dot(name) if kind == "node" else f"{kind}:{name}"


def _dot(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _mermaid(name: str) -> str:
    return name.replace("#", "#35;").replace('"', "#quot;")


LETTER, LINE, PADDING, GAP, TITLE = 8, 16, 8, 28, 24
"""Sizes in pixels: width of a letter, height of a line, padding in a box, gap between boxes, height of a part's title."""

_GREY = "#888"
"""Colour of lines and backgrounds; text has the colour of the page, so that the picture fits a dark page too."""


class Box(NamedTuple):
    """A node with its position and size in pixels.

    Attributes:
        lines: Lines of text.
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
    """Return the box of each node of a part.

    Args:
        part: The part.
        top: Upper edge of its first row.
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
