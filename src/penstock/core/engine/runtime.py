"""Runtime: what the compiled nodes of one task share: where they are, what they send, how they fail."""

from __future__ import annotations

import traceback
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.core.engine.policy import ErrorPolicies, Stage
from penstock.core.engine.punctuate import Punctuations
from penstock.core.engine.queue import Chunk
from penstock.core.model.errors import DeserializationError, PenstockError, ProcessingError, ProductionError
from penstock.core.model.ids import TaskId, TopicPartition
from penstock.core.model.punctuation import PunctuationType
from penstock.core.model.record import Headers, RecordContext, RecordMetadata, Records

if TYPE_CHECKING:
    from penstock.core.asynchronous.frontier import Frontier
    from penstock.core.engine.idle import IdleClock
    from penstock.core.engine.ledger import Book

Row = tuple[bytes | None, bytes | None, int, Headers]
"""A serialised record on its way out."""
PlacedRow = tuple[bytes | None, bytes | None, int, Headers, int]
"""The same with the partition that a partitioner chose, -1 if it left it to the key."""


class Standing(Protocol):
    """A record that is current in place of the one that was taken last."""

    @property
    def origin(self) -> RecordMetadata | None:
        """Topic, partition and offset; None if a punctuator sent it."""

    @property
    def place(self) -> tuple[Any, ...]:
        """What is told of the record if it fails: partition, offset, serialised key and value, timestamp, headers."""


class Held(NamedTuple):
    """A record that an operator held back for a while, with what it was when it came.

    Attributes:
        origin: Topic, partition and offset; None if a punctuator sent it.
        key: Serialised.
        value: Serialised.
        timestamp: Milliseconds since the epoch.
        headers: Its headers.
    """

    origin: RecordMetadata | None
    key: bytes
    value: bytes
    timestamp: int
    headers: Headers

    @property
    def place(self) -> tuple[Any, ...]:
        """What is told of the record if it fails."""
        partition, offset = None, -1
        if self.origin is not None:
            partition = TopicPartition(self.origin.topic, self.origin.partition)
            offset = self.origin.offset
        return partition, offset, self.key, self.value, self.timestamp, self.headers


class Piece(NamedTuple):
    """Records that were taken from a queue together: ``start`` to before ``end`` of a chunk."""

    partition: TopicPartition
    chunk: Chunk
    start: int
    end: int


NEVER = (1 << 63) - 1
"""A time that does not come."""
_MAX_NOTICES = 5
_ERRORS: Mapping[Stage, type[PenstockError]] = {
    "deserialize": DeserializationError,
    "process": ProcessingError,
    "produce": ProductionError,
}
_ADVICE: Mapping[Stage, str] = {
    "deserialize": "Give the source the serdes its producers use",
    "process": "Correct the function",
    "produce": "Give the sink serdes that fit its records",
}


class Runtime:
    """The shared part of a task's nodes. Owned by the task."""

    def __init__(
        self,
        application_id: str,
        task_id: TaskId,
        stores: Mapping[str, Any],
        policies: ErrorPolicies,
        partitions_of: Callable[[str], int],
    ) -> None:
        self.application_id = application_id
        self.task_id = task_id
        self.stores = stores
        self.policies = policies
        self.partitions_of = partitions_of
        self.global_stores: Mapping[str, Any] = {}
        self.app_config: Mapping[str, Any] = {}
        self.punctuations = Punctuations()
        self.memories: dict[str, dict[str, Any]] = {}
        self.idle_clocks: list[IdleClock] = []
        self.close_windows: dict[str, Callable[[int], None]] = {}
        """Per windowed aggregation, what moves its time on until the windows that end at a time have closed."""
        self.due_stream_time = NEVER
        self.stream_time = -1
        self.latest = True
        """Whether the change on its way down from a versioned table is one of the latest version of its row."""
        self.now_ms = 0
        self.active = False
        self.commit_requested = False
        self.partition: TopicPartition | None = None
        self.chunk: Chunk | None = None
        self.index = 0
        self.held: Standing | None = None
        """The record that is current in place of the one that was taken last: it had been held back."""
        self.books: list[Book] = []
        """Of the operators whose records may be unfinished for a while, those behind first."""
        self.frontiers: dict[TopicPartition, Frontier] = {}
        self.epoch = ""
        self.repeats_sends = True
        self._treated: Exception | None = None
        self.dropped: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.notices: list[str] = []
        self.pieces: Sequence[Piece] = ()
        """What was taken together, for places to count through."""
        self._firsts: list[int] = []
        self._here = range(0)
        self._shift = 0
        self._rows: dict[str, list[Row]] = {}
        self._blocks: dict[tuple[str, bool], list[Records]] = {}
        self._placed: dict[str, list[PlacedRow]] = {}

    # Where we are.

    def take(self, pieces: Sequence[Piece]) -> None:
        """Begin with records of several runs: a *place* counts through all of them."""
        self.pieces, self._firsts, self._here = pieces, [], range(0)
        first = 0
        for piece in pieces:
            self._firsts.append(first)
            first += piece.end - piece.start

    def locate(self, place: int) -> None:
        """Make the record at a place the current one."""
        if place not in self._here:
            number = bisect_right(self._firsts, place) - 1
            piece, first = self.pieces[number], self._firsts[number]
            self.partition, self.chunk = piece.partition, piece.chunk
            self._here = range(first, first + piece.end - piece.start)
            self._shift = piece.start - first
        self.index = place + self._shift

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Come back to the current record behind work on others."""
        here = self.partition, self.chunk, self.index, self.held
        places = self.pieces, self._firsts, self._here, self._shift
        try:
            yield
        finally:
            self.partition, self.chunk, self.index, self.held = here
            self.pieces, self._firsts, self._here, self._shift = places

    def metadata(self) -> RecordMetadata | None:
        """Give topic, partition and offset of the current record; None in a punctuator."""
        if self.held is not None:
            return self.held.origin
        if self.partition is None or self.chunk is None:
            return None
        return RecordMetadata(*self.partition, self.chunk.raw.offsets[self.chunk.row(self.index)])

    def context(self, timestamp: int, headers: Headers) -> RecordContext:
        """Give the context of a record that is on its way out."""
        at = self.metadata()
        topic, partition, offset = at if at is not None else (None, -1, -1)
        return RecordContext(topic, partition, offset, timestamp, headers)

    def memory(self, remembered_as: str) -> dict[str, Any]:
        """Give what a node remembers from record to record and over restarts; it may be changed, and holds what JSON can say."""
        return self.memories.setdefault(remembered_as, {})

    def refresh_due(self) -> None:
        """Find out anew when stream-time punctuation is due next."""
        due = self.punctuations.next_due(PunctuationType.STREAM_TIME)
        self.due_stream_time = NEVER if due is None else due

    def watched(self, node: str, call: Callable[..., None]) -> Callable[..., None]:
        """Give the function of a node as it is to be called."""
        return call

    # What goes out.

    def rows(self, topic: str) -> list[Row]:
        """Give the list that collects the records for a topic; it stays the same object for the task's life."""
        return self._rows.setdefault(topic, [])

    def send(self, topic: str, records: Records) -> None:
        """Send any number of records at once, behind all that was collected for the topic with or without partitions."""
        if not len(records):
            return
        placed = records.partitions is not None
        rows: list[Any] = self.placed(topic) if placed else self.rows(topic)
        blocks = self._blocks.setdefault((topic, placed), [])
        if rows:
            blocks.append(_placed_columns(rows) if placed else _columns(rows))
            rows.clear()
        blocks.append(records)

    def placed(self, topic: str) -> list[PlacedRow]:
        """Give the list that collects the records for a topic whose partitions a partitioner chooses."""
        return self._placed.setdefault(topic, [])

    def take_sends(self) -> tuple[tuple[str, Records], ...]:
        """Give what was collected, as columns, and begin anew."""
        sends = [
            (topic, self._sealed((topic, False), _columns(rows) if rows else None))
            for topic, rows in self._rows.items()
            if rows or (topic, False) in self._blocks
        ]
        sends += [
            (topic, self._sealed((topic, True), _placed_columns(placed) if placed else None))
            for topic, placed in self._placed.items()
            if placed or (topic, True) in self._blocks
        ]
        for collected in (*self._rows.values(), *self._placed.values()):
            collected.clear()  # type: ignore[attr-defined]
        self._blocks.clear()
        return tuple(sends)

    def _sealed(self, kind: tuple[str, bool], last: Records | None) -> Records:
        if last is not None and kind not in self._blocks:
            return last
        sealed = Records()
        for block in (*self._blocks[kind], *([] if last is None else [last])):
            sealed.extend(block)
        return sealed

    # What fails.

    def drop(self, reason: str, count: int = 1) -> None:
        """Count records that are left out."""
        self.dropped[reason] += count

    def notice(self, line: str) -> None:
        """Ask for a line in the log."""
        if len(self.notices) < _MAX_NOTICES:
            self.notices.append(line)

    def on_error(self, stage: Stage, node: str, error: Exception, raw: tuple[Any, ...] | None = None) -> None:
        """Treat a record that failed by the policy of its stage.

        Args:
            stage: Where it failed.
            node: The node that failed.
            error: What was raised.
            raw: Topic-partition, offset and serialised record, for a record that is not the current one.

        Raises:
            PenstockError: Under the policy "fail", or when the error was already treated further down.
        """
        if error is self._treated:
            raise error
        place = raw if raw is not None else self._current()
        message = self._message(stage, node, error, place)
        policy = self.policies.of(stage)
        if policy == "fail":
            self._treated = _ERRORS[stage](message)
            raise self._treated from error
        self.drop(f"{stage} error")
        self.notice(message)
        if policy == "dead_letter":
            self._dead_letter(stage, node, error, place)

    def _current(self) -> tuple[Any, ...]:
        at = self.metadata()
        if self.held is not None:
            return self.held.place
        if at is None or self.chunk is None:
            return (None, -1, None, None, max(self.stream_time, 0), ())
        raw, row = self.chunk.raw, self.chunk.row(self.index)
        headers = raw.headers[row] if raw.headers is not None else ()
        return (
            TopicPartition(at.topic, at.partition),
            at.offset,
            raw.keys[row],
            raw.values[row],
            raw.timestamps[row],
            headers,
        )

    def where(self, place: tuple[Any, ...]) -> str:
        """Say for people which record it is about."""
        partition, offset, key, value, *_ = place
        if partition is None:
            return "in a punctuator"
        return (
            f"at topic {partition.topic!r}, partition {partition.partition}, offset {offset} "
            f"(key {_shown(key)}, value {_shown(value)})"
        )

    def _message(self, stage: Stage, node: str, error: Exception, place: tuple[Any, ...]) -> str:
        cause = (
            str(error)
            if isinstance(error, PenstockError)
            else f"{type(error).__name__}: {error}{last_line(error)}"
        )
        return (
            f"{node} failed in stage '{stage}' of task {self.task_id} {self.where(place)}: {cause}. {_ADVICE[stage]}, or set "
            f"on_{stage}_error='skip' to leave such records out, or 'dead_letter' to keep them in a topic of their own"
        )

    def _dead_letter(self, stage: Stage, node: str, error: Exception, place: tuple[Any, ...]) -> None:
        facts = {"error": f"{type(error).__name__}: {error}"}
        self.dead_letter(self.policies.dead_letter_topic, stage, node, place, facts, error)

    def dead_letter(
        self,
        topic: str | None,
        stage: str,
        node: str,
        place: tuple[Any, ...],
        facts: Mapping[str, object],
        error: Exception | None,
    ) -> None:
        """Send a record to a dead-letter topic, with headers that say where and why it failed.

        Args:
            topic: The topic.
            stage: Where it failed.
            node: The node that failed.
            place: Topic-partition, offset and serialised record.
            facts: What else there is to say, by name.
            error: What was raised, None if nothing was.

        Raises:
            ProductionError: If there is no topic.
        """
        partition, offset, key, value, timestamp, headers = place
        if topic is None:
            raise ProductionError(self._no_topic(stage, node, place))
        told = {
            "stage": stage,
            "node": node,
            "topic": partition.topic if partition else "",
            "partition": partition.partition if partition else -1,
            "offset": offset,
            **facts,
            "traceback": "".join(traceback.format_exception(error)) if error and error.__traceback__ else "",
        }
        added = tuple((f"penstock.error.{name}", str(fact).encode()) for name, fact in told.items())
        self.rows(topic).append((key, value, max(timestamp, 0), (*headers, *added)))

    def _no_topic(self, stage: str, node: str, place: tuple[Any, ...]) -> str:
        if stage != "call":
            return "a dead-letter policy needs the setting dead_letter_topic='...'"
        return (
            f"the call of {node} in task {self.task_id} {self.where(place)} gave ps.dead_letter(...), and there is no topic for "
            "it: name one at the operator with on_failure=ps.dead_letter('topic'), or for the application with the setting "
            "dead_letter_topic"
        )


def _columns(rows: list[Row]) -> Records:
    keys, values, timestamps, headers = map(list, zip(*rows))
    return Records(keys, values, timestamps, [], headers if any(headers) else None)


def _placed_columns(rows: list[PlacedRow]) -> Records:
    records = _columns([row[:4] for row in rows])
    records.partitions = [row[4] for row in rows]
    return records


def _shown(data: bytes | None) -> str:
    if data is None:
        return "null"
    return repr(data) if len(data) <= 40 else f"{data[:40]!r}... of {len(data)} bytes"


def last_line(error: BaseException) -> str:
    """Say where in the user's code an error came up."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
