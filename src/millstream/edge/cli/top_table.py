"""The table of ``millstream top``."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from millstream.edge.cli.terminal_text import printable
from millstream.edge.status.application_status import Status


def drawn(application_id: str, status: Status) -> Group:
    batch = "" if status.batch_s is None else f", {status.batch_s:.2f} s"
    head = Text.assemble(
        (application_id, "bold"),
        f"  {status.state}  micro-batch {status.batch}{batch}  {status.records_per_s:,.0f} records/s",
        f"  {status.tasks} tasks",
    )
    topics = Table("topic", "lag", "buffered", "limit", box=None, pad_edge=False)
    topics.columns[0].overflow = "fold"  # in a narrow terminal, on several lines
    for column in topics.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for topic, lag in sorted(status.lag.items()):
        rate = status.throttled.get(topic)
        limit = "paused" if topic in status.paused else "" if rate is None else f"{rate:,}/s"
        topics.add_row(topic, f"{lag:,}", f"{status.buffered.get(topic, 0):,}", limit)
    notes = [
        *(f"restoring  {line}" for line in status.restoring),
        *(f"task {task} {why}" for task, why in status.waiting.items()),
        *(f"task {task} dropped {count:,} records" for task, count in status.dropped.items()),
        *(printable(f"error  {line}") for line in (status.error or "").splitlines()),
    ]
    return Group(head, topics, *(Text(note) for note in notes))
