"""The tables of docs/concepts/joins.md: the input records of the topology on that page, and the expected results of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import millstream as ms

from .markdown import ROOT, blocks_of, tables_under_headings

PAGE = ROOT / "docs" / "concepts" / "joins.md"
INPUTS = ("left", "right")
RESULTS = "results"
"""The topic of the results; the key of each is the name of its join."""
KEY = "k"

Result = tuple[str, str, int]
"""Name of the join, value, timestamp."""


class Step(NamedTuple):
    """A row of the tables: a record, and its results of each join."""

    topic: str
    value: str | None
    timestamp: int
    results: dict[str, list[str]]


def topology() -> ms.Topology:
    """Build the topology of the page with the program that is shown there."""
    namespace: dict[str, Any] = {"__name__": "joins-page"}
    program = next(block.text for block in blocks_of(PAGE) if block.is_python)
    exec(compile(program, PAGE.name, "exec"), namespace)
    built: ms.Topology = namespace["topology"]
    return built


def steps() -> list[Step]:
    """Return the rows of all tables, which have the same records, as one list."""
    tables = {
        heading: rows
        for heading, rows in tables_under_headings(PAGE).items()
        if rows[0].keys() >= {"time", *INPUTS}
    }
    rows = zip(*tables.values(), strict=True)
    return [_step(dict(zip(tables, together))) for together in rows]


def _step(rows: dict[str, dict[str, str]]) -> Step:
    """Create a step from the same row of each table."""
    (record,) = {tuple(row[column] for column in ("time", *INPUTS)) for row in rows.values()}
    time, *values = record
    topic, value = next((topic, value) for topic, value in zip(INPUTS, values) if value)
    results = {
        f"{heading}: {join}": cell.split(", ") if cell else []
        for heading, row in rows.items()
        for join, cell in list(row.items())[3:]
    }
    return Step(topic, None if value == "None" else value, int(time), results)
