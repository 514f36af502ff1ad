"""Messages between the planner and the application before each micro-batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.runtime.origins import Begun


@dataclass(frozen=True)
class PlanRequest:
    """The planner's request to the application before it plans a micro-batch.

    Attributes:
        positions: Offset up to which each partition was planned.
        ends: Offset up to which each partition can be read; None if no broker responds.
        now_ms: The wall clock, ms since the epoch.
        throttled_ms: How long, since the last request, throttled topics have had more records than their rates allow.
        origins: Start positions of the micro-batches that may have unfinished records; None if unknown.
        left_out: Whether the last micro-batch was repeated without some of its records. Only the next one stores that they are unread.
    """

    positions: Offsets
    ends: Offsets | None
    now_ms: int
    throttled_ms: int = 0
    origins: tuple[Begun, ...] | None = None
    left_out: bool = False


@dataclass(frozen=True)
class BufferedRecords:
    """Records that tasks have buffered, according to their reports.

    Attributes:
        buffered: Records, bytes and largest timestamp (ms) of each input with buffered records, over all lanes.
        idle_until_ms: When the first of these records may be processed, because the wait for an empty input ends or calls may have
            ended; None if there are no such records.
        room: Number of further records that tasks with asynchronous operators can take in, by partition.
    """

    buffered: Mapping[TopicPartition, tuple[int, int, int]] = field(default_factory=dict)
    given_up: Collection[TopicPartition] = ()
    idle_until_ms: int | None = None
    room: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanningOrders:
    """The application's answer to the planner.

    Attributes:
        intake: Whether to read external topics; False while the application drains.
        rates: Maximum records per second by throttled topic.
        commit: Whether a processor requested a commit, which ends the trigger interval.
        oldest: The oldest micro-batch with an unfinished record, by topic before the shuffle; None if unknown.
        bytes_per_record: Average size of the records read so far; None before the first record.
        taps: Nodes whose records are sampled.
        initialize: Whether the next micro-batch starts all tasks like the first one of a run, to correct changelog topics.
    """

    hold: bool = False
    intake: bool = True
    paused: frozenset[str] = frozenset()
    rates: Mapping[str, int] = field(default_factory=dict)
    commit: bool = False
    due: tuple[str, ...] = ()
    records: BufferedRecords = field(default_factory=BufferedRecords)
    times: Offsets = field(default_factory=dict)
    oldest: Mapping[str, int] | None = None
    bytes_per_record: float | None = None
    taps: tuple[str, ...] = ()
    initialize: bool = False
