"""SVG diagrams: lines connect their boxes, have arrowheads, and cross no other box."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.topology.describe import parts_of
from millstream.core.topology.pictures.grid import Box, Cell, Grid, grid
from millstream.core.topology.pictures.svg import laid_out

Point = tuple[float, float]


def points(path: str) -> Iterator[Point]:
    """Yield points along a path. Only the commands that the pictures use are supported."""
    x = y = 0.0
    for command, coordinates in re.findall(r"([MVHC])([-\d .]+)", path):
        numbers = [float(number) for number in coordinates.split()]
        if command == "M":
            x, y = numbers
        start = (x, y)
        if command == "C":
            corners = [start, *zip(numbers[::2], numbers[1::2])]
            path_points = [bezier(corners, step / 50) for step in range(51)]
        else:
            end = {"M": start, "V": (x, numbers[-1]), "H": (numbers[-1], y)}[command]
            path_points = [between(start, end, step / 50) for step in range(51)]
        yield from path_points
        x, y = path_points[-1]


def between(start: Point, end: Point, share: float) -> Point:
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def bezier(corners: list[Point], share: float) -> Point:
    while len(corners) > 1:
        corners = [between(start, end, share) for start, end in pairwise(corners)]
    return corners[0]


def inside(box: Box, point: Point) -> bool:
    return box.x < point[0] < box.x + box.width and box.y < point[1] < box.y + box.height


def crossed(drawn: Grid) -> list[str]:
    """Return the names of the boxes that a line crosses; a line may touch the edge of a box."""
    boxes = drawn.boxes.items()
    return [
        name for path in drawn.paths for point in points(path) for name, box in boxes if inside(box, point)
    ]


def outside(drawn: Grid) -> list[Point]:
    all_points = [point for path in drawn.paths for point in points(path)]
    return [(x, y) for x, y in all_points if not (0 <= x <= drawn.width and 0 <= y <= drawn.height)]


@st.composite
def pictures(draw: st.DrawFn) -> tuple[list[list[Cell]], list[tuple[str, str]], set[int]]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    rows = [
        [
            Cell(f"{number}.{column}", ("x" * draw(st.integers(1, 30)),) * draw(st.integers(1, 4)))
            for column in range(size)
        ]
        for number, size in enumerate(sizes)
    ]
    names = [cell.name for row in rows for cell in row]
    arrows = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=15))
    return rows, arrows, draw(st.sets(st.integers(0, len(rows) - 1)))


@given(pictures())
def test_no_line_crosses_a_box_or_leaves_the_picture(
    picture: tuple[list[list[Cell]], list[tuple[str, str]], set[int]],
) -> None:
    rows, arrows, titled = picture
    drawn = grid(rows, arrows, titled)
    assert len(drawn.paths) == len(set(arrows))
    assert crossed(drawn) == []
    assert outside(drawn) == []
    assert all(box.x + box.width <= drawn.width for box in drawn.boxes.values())


@given(pictures())
def test_lines_start_at_the_bottom_of_one_box_and_end_at_the_top_of_the_other(
    picture: tuple[list[list[Cell]], list[tuple[str, str]], set[int]],
) -> None:
    rows, arrows, titled = picture
    drawn = grid(rows, arrows, titled)
    for (start, end), path in zip(dict.fromkeys(arrows), drawn.paths):
        first, *_, last = points(path)
        assert first == (drawn.boxes[start].middle, drawn.boxes[start].y + drawn.boxes[start].height)
        assert last == (drawn.boxes[end].middle, drawn.boxes[end].y)


def test_subtopologies_are_connected_by_the_topics_between_them() -> None:
    builder = ms.StreamsBuilder()
    words = builder.stream("lines", name="read").group_by(lambda k, v: v, name="by").count(store="counts")
    words.to_stream().to("counted", name="send")
    builder.stream("counted", name="again").to("lines", name="round")
    parts = parts_of(builder.build().plan())
    nodes = [shape.name for part in parts for shape in part.shapes]
    drawn = laid_out(parts)
    starts = {tuple(next(points(path))) for path in drawn.paths}
    sinks = [shape.name for part in parts for shape in part.shapes if shape.kind == "Sink"]
    assert len(sinks) == 3
    for sink in sinks:
        box = drawn.boxes[sink]
        assert (box.middle, box.y + box.height) in starts
    assert crossed(drawn) == []
    assert set(nodes) == set(drawn.boxes)


def test_lines_have_arrowheads_and_boxes_have_data_attributes() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(["a", "b"], name="read").group_by_key().count(store="seen").to_stream().to(
        "c", name="send"
    )
    svg = builder.build().svg()
    paths = re.findall(r'<path d="[^"]+" fill="none"[^>]*>', svg)
    assert len(paths) == 3
    assert all('marker-end="url(#millstream-arrow)"' in path for path in paths)
    assert 'data-part="0" data-node="read" data-kind="source" data-topics="a b"' in svg
    assert 'data-stores="seen"' in svg


def test_names_are_escaped_in_attributes() -> None:
    svg = ms.Topology().add_source('a"><script>', "t").add_sink("b", "u", 'a"><script>').svg()
    assert "<script>" not in svg
    assert 'data-node="a&quot;&gt;&lt;script&gt;"' in svg


@pytest.mark.parametrize("lines", [1, 7])
def test_a_line_beside_a_taller_box_first_goes_straight_down(lines: int) -> None:
    rows = [[Cell("tall", ("x" * 20,) * lines), Cell("short", ("y",))], [Cell("below", ("z" * 60,))]]
    assert crossed(grid(rows, [("short", "below"), ("tall", "below")], [0])) == []
