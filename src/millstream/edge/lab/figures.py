"""The numbers of records that an application has read and written, for the nodes of its picture."""

from __future__ import annotations

from typing import Final

from millstream.core.metrics.metric import Numbers
from millstream.core.topology.describe import parts_of
from millstream.core.topology.pictures.svg import svg
from millstream.core.topology.plan import Plan

_COUNTED: Final = {"Source": "topic_records_consumed_total", "Sink": "topic_records_produced_total"}


def picture(plan: Plan, numbers: Numbers) -> str:
    """Draw a plan, with how many records each source has read and each sink has written."""
    records: dict[str, str] = {}
    for part in parts_of(plan):
        for shape in part.shapes:
            # Records that pass through Spark's shuffle are not counted.
            own = [
                count
                for (task, topic), count in numbers.of(_COUNTED.get(shape.kind, "")).items()
                if task.startswith(f"{part.number}_") and (topic in shape.topics or shape.pattern)
            ]
            if own:
                records[shape.name] = f"{round(sum(own)):,} records"
    return svg(plan, records)
