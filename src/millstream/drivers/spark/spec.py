"""Specs: what the processes of a query need to know of an application."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from millstream.core.engine.policy import ErrorPolicies
from millstream.core.model.ids import TaskId
from millstream.core.model.positions import Offsets
from millstream.core.ports import Fetcher, Sender, Threads, TopicReader
from millstream.core.runtime.batch_plan import Initialization
from millstream.core.runtime.bounds import RunEnd
from millstream.core.runtime.wait_settings import WaitSettings
from millstream.core.topology.evolution import Lineage, Remembered
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.clock import Clock, host_clock
from millstream.drivers.spark.control import ControlAddress
from millstream.drivers.spark.options import in_driver, in_executor, option_of
from millstream.drivers.spark.outline import from_outline, outline

ThreadsOf = Callable[[TaskId], Threads | None]
"""Gives the threads of a task; None for one that does everything in one. Crosses as cloudpickle."""


def one_thread(task: TaskId) -> None:
    """Return None: the task has no threads besides the one that runs it."""


@dataclass(frozen=True)
class TopologySpec:
    """What every process needs to know of an application. Crosses as cloudpickle.

    Attributes:
        plan: The topology, split.
        layout: Its tasks.
        groups: Spark's grouping key of each task.
        policies: What happens to records that fail.
        sink_partitions: Numbers of partitions of the topics written, for partitioners.
        lineage: What it continues, and what it passes on.
        global_partitions: Numbers of partitions of the topics of global stores.
        app_config: What processors find in ``context.app_config``.
        threads: Gives the threads of each task.
        sender: Sends what tasks put out, where they run; None leaves that to what follows the tasks.
        dead_letters: Sends the dead letters of records that stop the application; None sends none.
        most_bytes: How large a record may be for the producer, 0 if that is not known.
        most_bytes_in: The same for topics that take less than that.
    """

    plan: Plan
    layout: Layout
    groups: Mapping[TaskId, int]
    policies: ErrorPolicies
    sink_partitions: Mapping[str, int]
    lineage: Lineage = field(default_factory=Lineage)
    global_partitions: Mapping[str, int] = field(default_factory=dict)
    app_config: Mapping[str, Any] = field(default_factory=dict)
    threads: ThreadsOf = one_thread
    sender: Sender | None = None
    dead_letters: Sender | None = None
    most_bytes: int = 0
    most_bytes_in: Mapping[str, int] = field(default_factory=dict)

    def most_bytes_of(self, topic: str) -> int:
        """Return how large a record for a topic may be; 0 if it is not known."""
        return self.most_bytes_in.get(topic, self.most_bytes)

    def internal_partitions(self) -> dict[str, int]:
        """Return the numbers of partitions of the repartition topics."""
        return {topic: self.layout.partitions[topic] for topic in self.plan.internal_topics}

    def remembered(self, positions: Offsets) -> Remembered:
        """Return what a checkpoint keeps of the topology.

        Args:
            positions: The offset up to which each partition was planned.
        """
        lineage = self.lineage
        return Remembered(
            self.plan.store_fingerprints(),
            self.internal_partitions(),
            lineage.parts,
            lineage.topic_ids,
            positions,
            self.plan.keepers,
            lineage.routing,
        )

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if it is not known."""
        return self.sink_partitions.get(topic) or self.layout.partitions.get(topic, 0)


_NOTHING: Final[Any] = None


@dataclass(frozen=True)
class SourceSpec:
    """What the source needs to know.

    Attributes:
        topology: The application; its outline where micro-batches are planned.
        broker: Asks the broker.
        fetcher: Reads ranges.
        control: Where the application listens.
        max_records: Records per batch.
        max_bytes: Bytes per batch.
        readers: How many tasks can read at once.
        offset_reset: Where to begin without offsets: "earliest", "latest" or "none".
        initialization: What tasks do in the first batch of a run besides starting.
        skip_lost: Whether to go on at an offset that exists when the one that was reached does not.
        restart_recreated: Whether a topic that was made again is read from its beginning.
        waits: How long tasks wait for empty inputs, and how much they hold meanwhile.
        clock: Gives the wall clock.
        trigger_interval_ms: Shortest time between the beginnings of batches, unless a processor asks for a commit.
        checkpoint: The id of a checkpoint that begins.
        run: The id of the application's run.
        end: How far a run reads that ends by itself.
    """

    topology: TopologySpec
    broker: TopicReader
    fetcher: Fetcher
    control: ControlAddress
    max_records: int
    max_bytes: int
    readers: int
    offset_reset: str
    initialization: Initialization
    skip_lost: bool = False
    restart_recreated: bool = False
    waits: WaitSettings = field(default_factory=WaitSettings)
    clock: Clock = host_clock
    trigger_interval_ms: int = 0
    checkpoint: str = ""
    run: str = ""
    end: RunEnd = field(default_factory=RunEnd)

    def to_option(self) -> str:
        """Return the spec as a data source's option: what plans has the outline of the topology, what reads has everything."""
        return option_of((replace(self, topology=_NOTHING), outline(self.topology)), self)

    @staticmethod
    def planning(option: str) -> SourceSpec:
        """Decode the result of :meth:`to_option`, to plan."""
        spec: SourceSpec
        spec, topology = in_driver(option)
        return replace(spec, topology=from_outline(topology))

    @staticmethod
    def reading(option: str) -> SourceSpec:
        """Decode the result of :meth:`to_option`, to read."""
        spec: SourceSpec = in_executor(option)
        return spec
