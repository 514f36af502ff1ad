"""What the task host needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from millstream.core.engine.records.readiness import NEVER_WAIT
from millstream.core.model.ids import TaskId
from millstream.core.ports import ChangelogReader
from millstream.core.runtime.inputs import Input, informed
from millstream.drivers.spark.executor.calls import AsyncWorkerOf
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.drivers.spark.executor.global_restore import GlobalTopics
from millstream.drivers.spark.executor.progress import RestoreListener, log_progress
from millstream.drivers.spark.spec import TopologySpec


@dataclass(frozen=True)
class HostSpec:
    """What the task host needs to know. Crosses as cloudpickle.

    Attributes:
        topology: The application.
        copies: Where and how local copies are kept.
        listener: Receives the progress of restores.
        changelogs: Reads changelog topics, None if there are none.
        global_topics: Reads the topics of global stores, None if there are none.
        max_task_idle_ms: How long a task waits for an empty input; -1 waits for nothing.
        cache_bytes: What the caches of a task may hold; with 0 every update of a table is forwarded.
        async_workers: Returns the async worker that makes the calls of asynchronous operators, None if there are no such operators.
        repeats_sends: Whether a micro-batch that is run again sends again what it sent; else it sends nothing.
    """

    topology: TopologySpec
    copies: CopiesSpec
    listener: RestoreListener = log_progress
    changelogs: ChangelogReader | None = None
    global_topics: GlobalTopics | None = None
    max_task_idle_ms: int = NEVER_WAIT
    cache_bytes: int = 0
    async_workers: AsyncWorkerOf | None = None
    repeats_sends: bool = True

    @cached_property
    def inputs(self) -> Mapping[TaskId, tuple[Input, ...]]:
        """The inputs of tasks that must know whether there are more records for them on the broker."""
        return informed(self.topology.plan, self.topology.layout, waits=True)
