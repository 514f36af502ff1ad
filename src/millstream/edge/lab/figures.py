"""The numbers of records that an application has read and written, for the nodes of its picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from millstream.core.metrics.metric import Numbers
from millstream.core.topology.describe import Shape, parts_of
from millstream.core.topology.pictures.svg import svg
from millstream.core.topology.plan import Plan

_COUNTED: Final = {"Source": "topic_records_consumed_total", "Sink": "topic_records_produced_total"}


def records_of(plan: Plan, numbers: Numbers) -> dict[str, int]:
    """Return how many records each source has read and each sink has written.

    Records that pass through Spark's shuffle are not counted.
    """
    return dict(_records(plan, numbers))


def _records(plan: Plan, numbers: Numbers) -> Iterator[tuple[str, int]]:
    for part in parts_of(plan):
        for shape in part.shapes:
            if (counted := _count(f"{part.number}_", shape, numbers)) is not None:
                yield shape.name, counted


def _count(tasks: str, shape: Shape, numbers: Numbers) -> int | None:
    counts: Mapping[tuple[str, ...], float] = numbers.of(_COUNTED.get(shape.kind, ""))
    own = [
        count
        for (task, topic), count in counts.items()
        if task.startswith(tasks) and (topic in shape.topics or shape.pattern)
    ]
    return round(sum(own)) if own else None


def picture(plan: Plan, numbers: Numbers) -> str:
    return svg(plan, {name: f"{count:,} records" for name, count in records_of(plan, numbers).items()})
