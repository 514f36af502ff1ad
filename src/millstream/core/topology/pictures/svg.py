"""A plan as SVG, drawn without another program.

Parts are drawn one below the other. The box of a node lists what it reads, uses and writes, so topics and stores need no boxes. A line
connects a sink and a source if the source reads the topic that the sink writes. ``data-`` attributes of the elements state what they
represent, so that a page can colour them.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from millstream.core.topology.describe import Part, Shape, parts_of
from millstream.core.topology.pictures.grid import GAP, LINE, PADDING, TITLE, Box, Cell, Grid, grid
from millstream.core.topology.plan import Plan

_GREY: Final = "#888"
"""Colour of lines and backgrounds. Text has the colour of the page, so that the picture also fits a dark page."""
_ARROW: Final = (
    '<defs><marker id="millstream-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    f'<path d="M0 0L8 4L0 8z" fill="{_GREY}"/></marker></defs>'
)


def svg(plan: Plan, figures: Mapping[str, str] = MappingProxyType({})) -> str:
    """Draw a plan as SVG.

    Args:
        figures: Text above the box of a node, by the name of the node.
    """
    parts = parts_of(plan)
    laid = laid_out(parts)
    above = (
        _text_element(
            figure, laid.boxes[name].x + laid.boxes[name].width // 2 + PADDING, laid.boxes[name].y - 4
        )
        for name, figure in figures.items()
    )
    body = "".join((*_elements(parts, laid), *above))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{laid.width}" height="{laid.height}" '
        f'viewBox="0 0 {laid.width} {laid.height}" font-family="monospace" font-size="12" fill="currentColor">{_ARROW}{body}</svg>'
    )


def laid_out(parts: Sequence[Part]) -> Grid:
    rows: list[list[Cell]] = []
    titled: list[int] = []
    for part in parts:
        titled.append(len(rows))
        rows.extend(_rows(part))
    return grid(rows, _arrows(parts), titled)


def _rows(part: Part) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    row_of: dict[str, int] = {}
    for shape in part.shapes:
        row = row_of[shape.name] = 1 + max((row_of[parent] for parent in shape.before), default=-1)
        if row == len(rows):
            rows.append([])
        rows[row].append(Cell(shape.name, _lines(shape)))
    return rows


def _arrows(parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    shapes = [shape for part in parts for shape in part.shapes]
    for shape in shapes:
        yield from ((parent, shape.name) for parent in shape.before)
    readers = [shape for shape in shapes if shape.kind == "Source" and not shape.pattern]
    for sink in (shape for shape in shapes if shape.kind == "Sink"):
        yield from ((sink.name, source.name) for source in readers if {*sink.topics} & {*source.topics})


def _lines(shape: Shape) -> tuple[str, ...]:
    verb = "reads" if shape.kind == "Source" else "writes"
    topics = shape.topics or (("a topic chosen per record",) if shape.kind == "Sink" else ())
    return (
        shape.name,
        *(f"{verb} {topic}" for topic in topics),
        *(f"uses {store}" for store in shape.stores),
        *(f"looks up {store}" for store in shape.reads),
    )


def _elements(parts: Sequence[Part], laid: Grid) -> Iterator[str]:
    for part in parts:
        boxes = [laid.boxes[shape.name] for shape in part.shapes]
        top = min(box.y for box in boxes) - TITLE
        height = max(box.y + box.height for box in boxes) + GAP // 2 - top
        yield (
            f'<rect y="{top}" width="{laid.width}" height="{height}" fill="{_GREY}" fill-opacity="0.1" '
            f'data-part="{part.number}"/>'
        )
    for path in laid.paths:
        yield f'<path d="{path}" fill="none" stroke="{_GREY}" marker-end="url(#millstream-arrow)"/>'
    for part in parts:
        title = f"Sub-topology {part.number}{' for global store' if part.fills_global_store else ''}"
        yield _text_element(
            title, PADDING, min(laid.boxes[shape.name].y for shape in part.shapes) - TITLE + LINE
        )
        for shape in part.shapes:
            yield from _box(part, shape, laid.boxes[shape.name])


def _box(part: Part, shape: Shape, box: Box) -> Iterator[str]:
    geometry = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="3"'
    data = {"part": str(part.number), "node": shape.name, "kind": shape.kind.lower()}
    data |= {"topics": " ".join(shape.topics), "stores": " ".join(shape.stores)}
    attributes = "".join(f' data-{name}="{html.escape(value)}"' for name, value in data.items() if value)
    yield f'<rect {geometry} fill="none" stroke="{_GREY}"{attributes}/>'
    for number, line in enumerate(box.lines, start=1):
        yield _text_element(line, box.x + PADDING, box.y + PADDING + number * LINE - LINE // 4)


def _text_element(content: str, x: int, y: int) -> str:
    return f'<text x="{x}" y="{y}">{html.escape(content)}</text>'
