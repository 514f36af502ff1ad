"""The specification of the task host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from millstream.core.engine.records.readiness import NEVER_WAIT
from millstream.core.model.ids import TaskId
from millstream.core.ports import ChangelogReader
from millstream.core.runtime.inputs import Input, informed
from millstream.drivers.spark.executor.async_calls import AsyncWorkerOf
from millstream.drivers.spark.executor.changelogs import PublishedSnapshots
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.drivers.spark.executor.global_restore import GlobalTopics
from millstream.drivers.spark.executor.restore_progress import RestoreListener, log_progress
from millstream.drivers.spark.spec import TopologySpec


@dataclass(frozen=True)
class HostSpec:
    """Everything the task host needs to know. Pickled with cloudpickle.

    Attributes:
        global_topics: Reads the topics of global stores. None without such stores.
        max_task_idle_ms: How long a task waits for an empty input, in ms. With -1 it does not wait.
        async_workers: Returns the async worker beside an executor. None without asynchronous operators.
        repeats_sends: Whether a repeated micro-batch sends its results again. If false, it sends nothing.
        shares: Directory of the shares of divided state. None if the checkpoint is not on a disk shared by all hosts.
    """

    topology: TopologySpec
    copies: CopiesSpec
    listener: RestoreListener = log_progress
    changelogs: ChangelogReader | None = None
    global_topics: GlobalTopics | None = None
    max_task_idle_ms: int = NEVER_WAIT
    async_workers: AsyncWorkerOf | None = None
    repeats_sends: bool = True
    shares: Path | None = None

    @cached_property
    def inputs(self) -> Mapping[TaskId, tuple[Input, ...]]:
        """The inputs of the tasks that must know the lag of their inputs."""
        return informed(self.topology.plan, self.topology.layout, waits=True)

    @cached_property
    def snapshots(self) -> PublishedSnapshots | None:
        """The published snapshots, which the tasks of a process share. None without changelog topics."""
        if self.changelogs is None:
            return None
        return PublishedSnapshots(self.changelogs, self.topology.plan.commits_topic)
