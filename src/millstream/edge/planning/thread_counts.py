"""The threads of each task, from the settings and the slots of Spark."""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from millstream.core.model.ids import TaskId
from millstream.core.runtime.thread_counts import threads_of_tasks
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan
from millstream.edge.settings.settings import Settings

log = logging.getLogger("millstream.application")


def threads_of(plan: Plan, layout: Layout, settings: Settings, session: SparkSession) -> dict[TaskId, int]:
    """Return the number of threads of each task; Spark runs as many tasks at once as it has slots."""
    per_task, total = settings.num_threads_per_task, settings.num_stream_threads
    slots: int = session.sparkContext.defaultParallelism
    at_once = slots if plan.has_prefix else min(slots, max(len(layout.tasks), 1))
    if total is not None and total < at_once:
        log.warning(
            "num_stream_threads=%d, but Spark runs %d tasks at once, each in its own thread; for fewer threads, give Spark fewer "
            "slots (master='local[%d]')",
            total,
            at_once,
            total,
        )
    return threads_of_tasks(layout.tasks, per_task, total, at_once=at_once)
