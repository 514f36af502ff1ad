"""Specs: what the processes of a query need to know about an application and, to read, about a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.records.combining import Combiner
from millstream.core.fanout.reading import EpochReader
from millstream.core.model.ids import TaskId
from millstream.core.model.positions import Offsets
from millstream.core.ports import Fetcher, OffsetRange, Sender, Threads, TopicReader
from millstream.core.runtime.admission import RunEnd
from millstream.core.runtime.batch_plan import Initialization, WallClock
from millstream.core.runtime.inputs import WaitSettings
from millstream.core.runtime.remaining_inputs import TaskInput
from millstream.core.topology.analysis.combinable import combined_aggregation
from millstream.core.topology.evolution import Lineage, Remembered
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan, SubTopology
from millstream.drivers.spark.clock import Clock, host_clock
from millstream.drivers.spark.control import ControlAddress
from millstream.drivers.spark.outline import from_outline, outline
from millstream.drivers.spark.source_options import in_driver, in_executor, option_of

ThreadsOf = Callable[[TaskId], Threads | None]
"""Returns the threads of a task, or None if one thread does everything. Pickled with cloudpickle."""


def one_thread(task: TaskId) -> None:
    """Return None, for a task without threads."""


@dataclass(frozen=True)
class TopologySpec:
    """What every process needs to know about an application. Pickled with cloudpickle.

    Attributes:
        groups: Spark's grouping key of each task.
        sink_partitions: Partition counts of the output topics, for partitioners.
        global_partitions: Partition counts of the topics of global stores.
        sender: Sends the output of tasks where they run. None leaves this to the sink.
        dead_letters: Sends the dead letters of records that stop the application. None sends none.
        most_bytes: The maximum size of a record for the producer, in bytes. 0 if unknown.
        most_bytes_in: The maximum size for topics with a smaller limit, by topic.
        cache_bytes: Size limit of a task's caches, in bytes. With 0 every update of a table is forwarded.
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
    cache_bytes: int = 0

    def combiner(self, sub: SubTopology) -> Combiner | None:
        """Return what combines the records of a key for a sub-topology before they reach its tasks; None if nothing may.

        An error policy that applies to a single record needs that record, so its records are not combined.
        """
        node = combined_aggregation(sub) if self.cache_bytes else None
        if node is None or node.fold is None or self._needs_failed_records(sub):
            return None
        return Combiner(sub.sources[0], node.fold)

    def _needs_failed_records(self, sub: SubTopology) -> bool:
        of = self.policies.of
        processing = any(of("process", node) != "fail" for node in sub.nodes)
        return processing or bool(self.policies.topics) or any(map(self.policies.asks, sub.nodes))

    def most_bytes_of(self, topic: str) -> int:
        """Return the maximum size of a record for a topic, in bytes, or 0 if unknown."""
        return self.most_bytes_in.get(topic, self.most_bytes)

    def internal_partitions(self) -> dict[str, int]:
        return {topic: self.layout.partitions[topic] for topic in self.plan.internal_topics}

    def remembered(self, positions: Offsets) -> Remembered:
        """Return what a checkpoint stores about the topology, with the offset up to which each partition was planned."""
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
        """Return the partition count of a topic, or 0 if unknown."""
        return self.sink_partitions.get(topic) or self.layout.partitions.get(topic, 0)


_NOTHING: Final[Any] = None


@dataclass(frozen=True)
class SourceSpec:
    """What the source needs to know.

    Attributes:
        topology: The application. In the planner, its outline.
        readers: Number of Spark tasks that can read concurrently.
        offset_reset: Where to begin without offsets: "earliest", "latest" or "none".
        initialization: What tasks do in the first micro-batch of a run besides starting.
        skip_lost: Whether to continue at the first existing offset if the planned offset was deleted.
        restart_recreated: Whether a recreated topic is read from its beginning.
        waits: How long tasks wait for empty inputs, and how much they buffer while waiting.
        epochs: The epochs of split partitions; None if no topic is read with its fan-out topics.
        trigger_interval_ms: Shortest time between the beginnings of micro-batches, in ms, unless a processor requests a commit.
        end: Where a run to the end stops.
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
    epochs: EpochReader | None = None
    end: RunEnd = field(default_factory=RunEnd)

    def to_option(self) -> str:
        """Return the spec as an option. The planner receives the outline of the topology, and readers receive everything."""
        return option_of((replace(self, topology=_NOTHING), outline(self.topology)), self)

    @staticmethod
    def planning(option: str) -> SourceSpec:
        spec: SourceSpec
        spec, topology = in_driver(option)
        return replace(spec, topology=from_outline(topology))

    @staticmethod
    def reading(option: str) -> SourceSpec:
        spec: SourceSpec = in_executor(option)
        return spec


@dataclass
class PlannedRead(InputPartition):
    """The work of one Spark task of the source. The planner creates it, and an executor carries it out.

    Attributes:
        batch: The id of the micro-batch in chunk-row format.
        back: Empty ranges: where partitions now begin whose topics were recreated or have become shorter.
        ticks: Tasks that run without records.
        initialization: What these tasks do in the first micro-batch of a run. None in others.
        inputs: Tasks with their input facts.
        global_ends: The offsets of the topics of global stores that the micro-batch sees. None without global stores.
        times: Partition times at the beginning of the micro-batch, in ms since the epoch, where readers extract timestamps.
    """

    batch: str
    clock: WallClock
    ranges: list[OffsetRange] = field(default_factory=list)
    back: list[OffsetRange] = field(default_factory=list)
    ticks: list[str] = field(default_factory=list)
    initialization: Initialization | None = None
    inputs: list[tuple[str, TaskInput]] = field(default_factory=list)
    global_ends: Offsets | None = None
    times: Offsets = field(default_factory=dict)
    taps: tuple[str, ...] = ()
