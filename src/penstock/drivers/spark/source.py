"""The source: plans micro-batches in the Spark driver, reads them in the executors.

An offset, as Spark keeps it in the checkpoint, is JSON:

    {"topics": {topic: {partition: offset}}, "checkpoint": id, "batch": n, "tick": n, "now_ms": wall clock,
     "stores": {store: fingerprint}, "internal": {repartition topic: partitions},
     "parts": {number: [topics, stores, tasks]}, "topic_ids": {topic: id},
     "begin": what the first batch of a run is told}

``checkpoint`` is an id made with the first offset, ``batch`` grows with each planned batch: together they are the id of a
micro-batch, by which exactly-once delivery knows a batch it has already delivered. ``tick`` grows when every task is to take part in a batch, with or without new records: in the first batch of each run, which
initialises all tasks, brings their local copies up to date and connects the workers, and for wall-clock punctuation. ``now_ms`` is the wall clock of the batch: it lies in the checkpoint, so that
a batch that is run again sees the same time. ``stores`` and ``internal`` are what a later topology is checked against; by
``parts`` it finds its state (see ``penstock.core.plan.evolution``), and ``topic_ids`` tell a topic that was made again.

Planner and reader are different objects in different processes: the planner lives as long as the query, the reader is
unpickled in the workers.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.core.engine.policy import ErrorPolicies
from penstock.core.model.errors import (
    BrokerUnavailableError,
    IncompatibleTopologyError,
    OffsetsLostError,
    TopicNotFoundError,
)
from penstock.core.model.ids import TaskId, TopicPartition
from penstock.core.plan.admission import admit, packed, ranges
from penstock.core.plan.changes import recreated, recreated_error
from penstock.core.plan.evolution import Lineage, newly_gone, with_new_names
from penstock.core.plan.layout import Layout
from penstock.core.plan.split import Plan
from penstock.core.ports import BatchId, Fetcher, OffsetRange, Offsets, TopicReader
from penstock.drivers.spark import wire
from penstock.drivers.spark.control import ControlAddress
from penstock.drivers.spark.worker.prefix import Prefix

log = logging.getLogger("penstock.source")

FORMAT = "penstock"
_IDLE_POLL_S = 0.04
_RECORDS_OF_UNKNOWN_SIZE = 100_000


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
    """

    plan: Plan
    layout: Layout
    groups: Mapping[TaskId, int]
    policies: ErrorPolicies
    sink_partitions: Mapping[str, int]
    lineage: Lineage = field(default_factory=Lineage)

    def internal_partitions(self) -> dict[str, int]:
        """Give the numbers of partitions of the repartition topics."""
        return {topic: self.layout.partitions[topic] for topic in self.plan.internal_topics}

    def partitions_of(self, topic: str) -> int:
        """Give the number of partitions of a topic; 0 if it is not known."""
        return self.sink_partitions.get(topic) or self.layout.partitions.get(topic, 0)


@dataclass(frozen=True)
class SourceSpec:
    """What the source needs to know.

    Attributes:
        topology: The application.
        broker: Asks the broker.
        fetcher: Reads ranges.
        control: Where the application listens.
        max_records: Records per batch.
        max_bytes: Bytes per batch.
        readers: How many tasks can read at once.
        offset_reset: Where to begin without offsets: "earliest" or "latest".
        begin: What the tasks are told in the first batch of a run: whether to ``rebuild`` from changelog topics, and the
            stores whose changelog topics are new (``new_topics``).
        skip_lost: Whether to go on at an offset that exists when the one that was reached does not.
        restart_recreated: Whether a topic that was made again is read from its beginning.
    """

    topology: TopologySpec
    broker: TopicReader
    fetcher: Fetcher
    control: ControlAddress
    max_records: int
    max_bytes: int
    readers: int
    offset_reset: str
    begin: Mapping[str, Any]
    skip_lost: bool = False
    restart_recreated: bool = False

    def to_option(self) -> str:
        """Give the spec as the string that a data source's option can carry."""
        return base64.b64encode(cloudpickle.dumps(self)).decode()

    @staticmethod
    def from_option(text: str) -> SourceSpec:
        """Read what :meth:`to_option` gave."""
        spec: SourceSpec = cloudpickle.loads(base64.b64decode(text))
        return spec


class KafkaSource(DataSource):
    """The data source ``penstock``: chunk rows of the records of a topology's topics."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Give the schema of chunk rows."""
        return wire.CHUNK_ROWS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Make the reader."""
        return KafkaStreamReader(self.options["spec"])


@dataclass
class PlannedRead(InputPartition):
    """What one Spark task reads.

    Attributes:
        ranges: Pieces of partitions.
        ticks: Tasks to be woken without records.
        batch: The micro-batch, as it is written in chunk rows.
        now_ms: Wall clock of the batch.
        begin: What the tasks are told in the first batch of a run, as JSON.
    """

    ranges: list[OffsetRange]
    ticks: list[str]
    batch: str
    now_ms: int
    begin: bytes = b""


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads. In the planner's process it keeps what it has learned; pickled, it is the option's text alone."""

    def __init__(self, option: str) -> None:
        self._option = option
        self._loaded: SourceSpec | None = None
        self._final: Offsets | None = None
        self._waiting_since: float | None = None
        self._begun = False
        self._cut_off = False
        """Whether a run to the end has to wait for the broker, or for a transaction of its own to be complete: nothing to
        plan would tell Spark that it is done."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (KafkaStreamReader, (self._option,))

    @property
    def _spec(self) -> SourceSpec:
        if self._loaded is None:
            self._loaded = SourceSpec.from_option(self._option)
            if threading.current_thread() is threading.main_thread():
                signal.signal(
                    signal.SIGINT, signal.SIG_IGN
                )  # Ctrl-C is the application's, which stops between batches
        return self._loaded

    # Planning, in the Spark driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Decide where a query without a checkpoint begins."""
        with wire.crossing():
            spec = self._spec
            counts = self._counts()
            positions = _first_positions(spec, counts)
            begun = {"checkpoint": secrets.token_hex(8), "batch": -1}
            return _offset(begun, positions, 0, _now_ms(), spec.topology)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix how far a run to the end goes in the topics from outside; internal topics are drained."""
        with wire.crossing():
            internal = self._spec.topology.plan.internal_topics
            counts = {topic: count for topic, count in self._counts().items() if topic not in internal}
            self._final = self._spec.broker.end_offsets(counts)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Leave admission to this planner, which shares a batch fairly among partitions."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plan the next batch; give ``start`` back if there is nothing to do."""
        with wire.crossing():
            planned = self._planned(start)
            while planned is start:
                time.sleep(
                    _IDLE_POLL_S
                )  # Spark asks again at once; this is the poll interval, not a wait for anything
                if not self._cut_off:
                    break
                planned = self._planned(start)
            return planned

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Give the pieces of a planned batch; depends on nothing but its arguments."""
        with wire.crossing():
            planned = self._read_now(ranges(_positions(start), _positions(end)))
            batch = wire.batch_text(batch_id(end))
            begin = json.dumps(end["begin"]).encode() if end.get("begin") else b""
            reads: list[InputPartition] = [
                PlannedRead(part, [], batch, end["now_ms"]) for part in packed(planned, self._spec.readers)
            ]
            if end["tick"] != start["tick"]:
                tasks = [str(task) for task in (*self._spec.topology.layout.tasks, *newly_gone(start, end))]
                readers = min(self._spec.readers, len(tasks))
                reads.extend(
                    PlannedRead([], tasks[i::readers], batch, end["now_ms"], begin) for i in range(readers)
                )
            return reads

    def _read_now(self, planned: list[OffsetRange]) -> list[OffsetRange]:
        """Leave out what an edited topology no longer reads, when it runs a micro-batch of its predecessor again."""
        task_of = self._spec.topology.layout.task_of
        return [r for r in planned if TopicPartition(r.topic, r.partition) in task_of]

    def _planned(self, start: dict[str, Any]) -> dict[str, Any]:
        spec, now = self._spec, _now_ms()
        known = with_new_names(start["stores"], spec.topology.lineage.renamed_stores)
        check_stores(known, spec.topology.plan.store_fingerprints())
        check_repartitions(start["internal"], spec.topology.internal_partitions())
        ends = self._ends()
        orders = (
            spec.control.ask("plan", {"positions": _positions(start), "ends": ends, "waiting": ends is None})
            or {}
        )
        self._cut_off = ends is None and self._final is not None and not orders.get("hold")
        if orders.get("hold"):
            return start
        positions = _positions(start)
        if not self._begun:
            positions = self._with_new_partitions(self._without_recreated(start, positions))
            self._begun = True
            begun = _offset(start, positions, start["tick"] + 1, now, spec.topology)
            return {**begun, "begin": dict(spec.begin)}
        wake_at = orders.get("wake_at_ms")
        due = wake_at is not None and wake_at <= now and self._final is None
        tick = start["tick"] + due
        if ends is not None:
            beyond = {topic for topic, *_ in _beyond_the_end(positions, ends)}
            if beyond:  # of what can be read, but not necessarily of what there is
                there = {topic: count for topic, count in self._counts().items() if topic in beyond}
                log_ends = {**ends, **spec.broker.log_end_offsets(there)}
                beyond = {topic for topic, *_ in _beyond_the_end(positions, log_ends)}
                if beyond and self._recreated_among(beyond):
                    return start
                positions = _without_lost(positions, log_ends, skip=spec.skip_lost)
            paused = set(orders.get("paused", ()))
            readable = {topic: e for topic, e in ends.items() if topic not in paused}
            admitted = admit(positions, self._limited(readable), self._limit(orders.get("bytes_per_record")))
            if admitted != _positions(start):
                return _offset(start, admitted, tick, now, spec.topology)
            self._cut_off = self._final is not None and self._awaits_transactions(ends)
        return _offset(start, positions, tick, now, spec.topology) if due else start

    def _awaits_transactions(self, ends: Offsets) -> bool:
        """Tell whether the application's own topics have records that cannot be read until a transaction is complete.

        A transaction is committed a moment before the brokers have said so in every partition.
        """
        internal = self._spec.topology.plan.internal_topics
        own = {topic: count for topic, count in self._counts().items() if topic in internal}
        return any(ends[topic] != end for topic, end in self._spec.broker.log_end_offsets(own).items())

    def _without_recreated(self, start: dict[str, Any], positions: Offsets) -> Offsets:
        """Put topics that were made again since the checkpoint at their beginning; the application allows it."""
        again = recreated(start.get("topic_ids", {}), self._spec.topology.lineage.topic_ids)
        counts = {topic: count for topic, count in self._counts().items() if topic in again}
        return {**positions, **self._spec.broker.begin_offsets(counts)}

    def _recreated_among(self, topics: Iterable[str]) -> bool:
        """Tell whether topics were made again since the query was started, and tell the application, which starts it anew.

        Raises:
            TopicRecreatedError: If such a topic is not to be read.
        """
        ids = {topic: facts.id for topic, facts in self._spec.broker.topic_facts(topics).items()}
        again = recreated(self._spec.topology.lineage.topic_ids, ids)
        if again and not self._spec.restart_recreated:
            raise recreated_error(again)
        if again:
            self._spec.control.ask("topics", again)
        return bool(again)

    def _with_new_partitions(self, positions: Offsets) -> Offsets:
        """Add what the checkpoint does not know: topics new in the topology, partitions added to a topic."""
        known = {topic: dict(partitions) for topic, partitions in positions.items()}
        missing = {
            topic: count
            for topic, count in self._counts().items()
            if any(partition not in known.get(topic, {}) for partition in range(count))
        }
        # What is written to a partition before it is noticed belongs to the stream: no offset reset skips it.
        added = {topic: count for topic, count in missing.items() if topic in known}
        fresh = {topic: count for topic, count in missing.items() if topic not in known}
        begin = {**_reset_positions(self._spec, fresh), **self._spec.broker.begin_offsets(added)}
        for topic, partitions in begin.items():
            known[topic] = {**partitions, **known.get(topic, {})}
        return known

    def _limit(self, bytes_per_record: float | None) -> int:
        """Give the records a batch may have; a first small batch tells how large they are."""
        spec = self._spec
        if bytes_per_record is None:
            return min(spec.max_records, _RECORDS_OF_UNKNOWN_SIZE)
        return max(1, min(spec.max_records, int(spec.max_bytes / max(bytes_per_record, 1.0))))

    def _ends(self) -> Offsets | None:
        """Ask how far the topics can be read; None while no broker answers, which is no reason to end."""
        try:
            ends = self._spec.broker.end_offsets(self._counts())
        except BrokerUnavailableError as error:
            if self._waiting_since is None:
                self._waiting_since = time.monotonic()
                log.warning("waiting for the broker: %s", error)
            return None
        except TopicNotFoundError:  # made again with fewer partitions, perhaps
            if self._final is not None or not self._recreated_among(self._counts()):
                raise
            return None
        if self._waiting_since is not None:
            log.warning("the broker is back after %.1f s", time.monotonic() - self._waiting_since)
            self._waiting_since = None
        return ends

    def _limited(self, ends: Offsets) -> Offsets:
        return ends if self._final is None else {**ends, **self._final}

    def _counts(self) -> dict[str, int]:
        topology = self._spec.topology
        return {topic: topology.layout.partitions[topic] for topic in topology.plan.broker_topics}

    # Reading, in the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read planned pieces as chunk rows."""
        assert isinstance(partition, PlannedRead)
        with wire.crossing(), wire.paused_gc():
            spec = self._spec
            if partition.ticks:
                spec.fetcher.connect()
            for task in partition.ticks:
                yield wire.arrow_rows([_tick_row(spec.topology.groups, task, partition)])
            for planned in partition.ranges:
                yield from _read_range(spec, planned, partition.batch, partition.now_ms)


def check_stores(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse a topology that cannot read the stores of the checkpoint.

    Raises:
        IncompatibleTopologyError: If a store has another kind, other serdes, or has moved to another sub-topology.
    """
    for store, fingerprint in before.items():
        if store in now and now[store] != fingerprint:
            raise IncompatibleTopologyError(
                f"store {store!r} is {now[store]!r} in this topology, but {fingerprint!r} in the checkpoint, so its content "
                "cannot be read. Give the changed store a new name (it starts empty), go back to the old topology, or "
                "start over with another application id or checkpoint_location"
            )


def _reset_positions(spec: SourceSpec, counts: Mapping[str, int]) -> Offsets:
    """Give where reading begins without offsets: where the source's or the application's offset reset says."""
    plan = spec.topology.plan
    begin, end = spec.broker.begin_offsets(counts), spec.broker.end_offsets(counts)
    resets = {
        topic: source.offset_reset
        for sub in plan.subtopologies
        for source in sub.sources
        for topic in source.topics
    }
    return {
        topic: dict(end[topic] if (resets[topic] or spec.offset_reset) == "latest" else begin[topic])
        for topic in counts
    }


def check_repartitions(before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Refuse a repartition with another number of partitions: its keys would look for their state in other tasks.

    Raises:
        IncompatibleTopologyError: If a number has changed.
    """
    for topic, count in before.items():
        if now.get(topic, count) != count:
            raise IncompatibleTopologyError(
                f"the repartition {topic!r} had {count} partitions when the checkpoint was begun and would have {now[topic]} "
                "now, so its keys would not find their state. It takes its number from the topics in front of it: put "
                f"repartition(partitions={count}) there, or start over with another application id or checkpoint_location"
            )


def _first_positions(spec: SourceSpec, counts: Mapping[str, int]) -> Offsets:
    """Begin at the group's committed offsets if there is no state to lose, else where the offset reset says."""
    plan, positions = spec.topology.plan, _reset_positions(spec, counts)
    chosen = spec.broker.reset_offsets(counts)
    if chosen:
        log.warning("the application was reset: beginning at the offsets chosen then, with empty stores")
        return _updated(positions, chosen)
    committed = spec.broker.committed_offsets(counts)
    if not any(committed.values()):
        return positions
    if plan.store_fingerprints() and not spec.begin.get("rebuild"):
        log.warning(
            "the group has committed offsets, but there is no checkpoint and so no state that belongs to them: "
            "starting over from the %s offsets",
            spec.offset_reset,
        )
        return positions
    return _updated(positions, committed)


def _updated(positions: Offsets, others: Offsets) -> Offsets:
    return {topic: {**partitions, **others.get(topic, {})} for topic, partitions in positions.items()}


def _beyond_the_end(positions: Offsets, ends: Offsets) -> list[tuple[str, int, int, int]]:
    """Give topic, partition, position and end where more has been processed than there is."""
    return [
        (topic, partition, at, ends[topic][partition])
        for topic, partitions in positions.items()
        for partition, at in partitions.items()
        if at > ends.get(topic, {}).get(partition, at)
    ]


def _without_lost(positions: Offsets, ends: Offsets, *, skip: bool) -> Offsets:
    """Go back to the end where a topic has become shorter, or refuse to.

    Raises:
        OffsetsLostError: If that is not to be skipped.
    """
    beyond = _beyond_the_end(positions, ends)
    for topic, partition, at, end in beyond:
        if not skip:
            raise OffsetsLostError(
                f"topic {topic!r}, partition {partition} ends at offset {end}, but offsets up to {at} have been processed: the "
                "topic has lost its newest records (an unclean leader election, a restored backup), or this is another "
                "cluster. To go on at the end there is now set on_lost_offsets='skip'; to start over use `penstock reset`"
            )
        log.warning(
            "going back from offset %d to %d of %s-%d, where the topic now ends", at, end, topic, partition
        )
    ending: Offsets = {}
    for topic, partition, _, end in beyond:
        ending.setdefault(topic, {})[partition] = end
    return _updated(positions, ending)


def _offset(
    start: Mapping[str, Any], positions: Offsets, tick: int, now_ms: int, topology: TopologySpec
) -> dict[str, Any]:
    """Give the offset that follows ``start``."""
    topics = {
        topic: {str(p): at for p, at in sorted(partitions.items())} for topic, partitions in positions.items()
    }
    return {
        "topics": topics,
        "checkpoint": batch_id(start).checkpoint,
        "batch": batch_id(start).number + 1,
        "tick": tick,
        "now_ms": now_ms,
        "stores": topology.plan.store_fingerprints(),
        "internal": topology.internal_partitions(),
        **topology.lineage.to_json(),
    }


def batch_id(offset: Mapping[str, Any]) -> BatchId:
    """Give the id of the micro-batch that ends at an offset."""
    return BatchId(offset.get("checkpoint", ""), offset.get("batch", 0))


def _positions(offset: Mapping[str, Any]) -> Offsets:
    return {
        topic: {int(p): at for p, at in partitions.items()} for topic, partitions in offset["topics"].items()
    }


def _now_ms() -> int:
    return int(time.time() * 1000)  # noqa: TID251 - the one reading of the wall clock; it travels in the offset


def _tick_row(groups: Mapping[TaskId, int], task: str, read: PlannedRead) -> tuple[Any, ...]:
    where = ("", 0, "", 0, 0)
    return (groups[TaskId.parse(task)], wire.TICK, task, *where, read.batch, read.now_ms, read.begin)


def _read_range(spec: SourceSpec, planned: OffsetRange, batch: str, now_ms: int) -> Iterator[pa.RecordBatch]:
    topology = spec.topology
    task = topology.layout.task_of[TopicPartition(planned.topic, planned.partition)]
    group = topology.groups[task]
    sub = topology.plan.subtopologies[task.subtopology]
    if topology.plan.runs_before_shuffle(sub):
        prefix = Prefix(topology, task, planned, batch, now_ms)
        for records in spec.fetcher.fetch(planned):
            yield from prefix.run(records)
        yield from prefix.finish()
        return
    start = planned.start

    def row(end: int, payload: bytes) -> pa.RecordBatch:
        where = (planned.topic, planned.partition, "", start, end)
        cells = (group, wire.RECORDS, str(task), *where, batch, now_ms, payload)
        return wire.arrow_rows([cells])

    for records in spec.fetcher.fetch(planned):
        end = records.offsets[-1] + 1
        yield row(end, wire.encode(records))
        start = end
    if (
        start < planned.end
    ):  # offsets without records at the end of the range: transaction markers, compaction
        yield row(planned.end, b"")
