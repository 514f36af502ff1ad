"""Runtime: the state that the compiled nodes of a task share: the current record, records to send, and failures."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from millstream.core.asynchronous.call import class_of, traceback_of
from millstream.core.asynchronous.committable_offset import UnfinishedOffsets
from millstream.core.engine.failures import (
    ERRORS,
    Attempt,
    Failure,
    Letter,
    RawRecord,
    decide,
    outcome_of,
)
from millstream.core.engine.policy import ErrorPolicies, Fate, Stage
from millstream.core.engine.punctuate import NEVER, Punctuations
from millstream.core.engine.records.queue import Chunk, RecordQueue
from millstream.core.model.answers import DeadLetter
from millstream.core.model.errors import MillstreamError, ProductionError, UnavailableError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Headers, RecordContext, RecordMetadata, Records
from millstream.core.state.contract import Memory
from millstream.core.taps.samples import TapPoint
from millstream.core.topology.processor import PunctuationType

if TYPE_CHECKING:
    from millstream.core.asynchronous.operator_state import AsyncOperatorState
    from millstream.core.engine.idle import IdleClock

Row = tuple[bytes | None, bytes | None, int, Headers]
"""A serialised record."""


class RecordOverride(Protocol):
    """A current record that replaces the last record taken, such as a buffered record that is forwarded."""

    @property
    def origin(self) -> RecordMetadata | None:
        """Topic, partition and offset; None if a punctuator forwarded the record."""

    @property
    def raw(self) -> RawRecord:
        """The record as reported in failures."""


class Piece(NamedTuple):
    """A run of records that was taken from a queue: rows ``start`` to ``end``, exclusive, of a chunk."""

    queue: RecordQueue
    chunk: Chunk
    start: int
    end: int


_MAX_NOTICES = 5


class Runtime:
    """The shared part of a task's nodes. Owned by the task."""

    def __init__(
        self,
        application_id: str,
        task_id: TaskId,
        stores: Mapping[str, Any],
        policies: ErrorPolicies,
        partitions_of: Callable[[str], int],
        *,
        most_bytes_of: Callable[[str], int],
    ) -> None:
        self.application_id = application_id
        self.task_id = task_id
        self.stores = stores
        self.policies = policies
        self.partitions_of = partitions_of
        self.most_bytes_of = most_bytes_of
        self.global_stores: Mapping[str, Any] = {}
        self.app_config: Mapping[str, Any] = {}
        self.punctuations, self.taps = Punctuations(), dict[str, TapPoint]()
        self.memories: dict[str, Memory] = {}
        self.idle_clocks: dict[str, IdleClock] = {}
        self.close_windows: dict[str, Callable[[int], None]] = {}
        """Per windowed aggregation, a function that advances its time until windows that end at a given time have closed."""
        self.due_stream_time = NEVER
        self.stream_time = -1
        self.latest = True
        """True if the change that a versioned table forwards is the latest version of its row."""
        self.now_ms = 0
        self.active = self.commit_requested = False
        self.partition: TopicPartition | None = None
        self.chunk: Chunk | None = None
        self.index = 0
        self.override: RecordOverride | None = None
        self.async_operators: list[AsyncOperatorState] = []
        """The asynchronous operators, downstream operators first."""
        self.unfinished_offsets = defaultdict[TopicPartition, UnfinishedOffsets](UnfinishedOffsets)
        self.epoch, self.repeats_sends = "", True
        self.stopped_by: MillstreamError | None = None
        """The error that stops the application, once the policy "fail" has applied."""
        self._called: dict[str, Attempt | None] = {}
        """The current call of each node that has an error handler."""
        self._attempts: dict[str, int] = {}
        self.dropped, self.counted, self.failures = Counter[str](), Counter[str](), Counter[str]()
        self.notices: list[str] = []
        self.pieces: Sequence[Piece] = ()
        self._firsts: list[int] = []
        self._current_run, self._shift = range(0), 0
        self._rows: dict[tuple[str, bool], list[Any]] = {}
        """The records to send, by topic and whether their partitions are chosen."""
        self._blocks: dict[tuple[str, bool], list[Records]] = {}

    # The current record.

    def take(self, pieces: Sequence[Piece]) -> None:
        """Begin to process several runs. A *position* is the index of a record in all of them together."""
        self.pieces, self._firsts, self._current_run = pieces, [], range(0)
        first = 0
        for piece in pieces:
            self._firsts.append(first)
            first += piece.end - piece.start

    def locate(self, position: int) -> None:
        if position not in self._current_run:
            number = bisect_right(self._firsts, position) - 1
            piece, first = self.pieces[number], self._firsts[number]
            self.partition, self.chunk = piece.queue.partition, piece.chunk
            self._current_run = range(first, first + piece.end - piece.start)
            self._shift = piece.start - first
        self.index = position + self._shift

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Restore the current record at the end of the block."""
        current = self.partition, self.chunk, self.index, self.override
        taken = self.pieces, self._firsts, self._current_run, self._shift
        try:
            yield
        finally:
            self.partition, self.chunk, self.index, self.override = current
            self.pieces, self._firsts, self._current_run, self._shift = taken

    def metadata(self) -> RecordMetadata | None:
        """Return topic, partition and offset of the current record; None in a punctuator."""
        if self.override is not None:
            return self.override.origin
        if self.partition is None or self.chunk is None:
            return None
        return RecordMetadata(*self.partition, self.chunk.raw.offsets[self.chunk.row(self.index)])

    def context(self, timestamp: int, headers: Headers) -> RecordContext:
        origin = self.metadata()
        topic, partition, offset = origin if origin is not None else (None, -1, -1)
        return RecordContext(topic, partition, offset, timestamp, headers)

    def memory(self, remembered_as: str) -> Memory:
        """Return the memory of a node, which is kept over restarts. Callers may change it; it must contain only JSON values."""
        return self.memories.setdefault(remembered_as, {})

    def refresh_due(self) -> None:
        due = self.punctuations.next_due(PunctuationType.STREAM_TIME)
        self.due_stream_time = NEVER if due is None else due

    def watched(self, node: str, call: Callable[..., None], *, repeatable: bool) -> Callable[..., None]:
        """Wrap the function of a node to remember its arguments, if an error handler may need them.

        Args:
            repeatable: True if the function may be called again with a failed record.
        """
        if not self.policies.asks(node):
            return call
        called = self._called

        def noted(*args: Any) -> None:
            before, called[node] = called.get(node), Attempt(call, args, repeatable)
            try:
                call(*args)
            finally:
                called[node] = before

        return noted

    # Records to send.

    def rows(self, topic: str, *, placed: bool = False) -> list[Any]:
        """Return the list that collects the records for a topic. It is the same object for the task's lifetime.

        Args:
            placed: True for records with chosen partitions, which have the partition after the fields of a :data:`Row`; -1 for the
                partition of the key.
        """
        return self._rows.setdefault((topic, placed), [])

    def send(self, topic: str, records: Records) -> None:
        """Send records, after all records collected for the topic so far."""
        if not len(records):
            return
        placed = records.partitions is not None
        rows, blocks = self.rows(topic, placed=placed), self._blocks.setdefault((topic, placed), [])
        if rows:
            blocks.append(_columns(rows))
            rows.clear()
        blocks.append(records)

    def take_sends(self) -> tuple[tuple[str, Records], ...]:
        """Return the collected records as columns, those without chosen partitions first, and clear them."""
        sends = tuple(
            (kind[0], self._sealed(kind, self._rows[kind]))
            for kind in sorted(self._rows, key=itemgetter(1))
            if self._rows[kind] or kind in self._blocks
        )
        for collected in self._rows.values():
            collected.clear()
        self._blocks.clear()
        return sends

    def _sealed(self, kind: tuple[str, bool], rows: list[Any]) -> Records:
        if kind not in self._blocks:
            return _columns(rows)
        sealed = Records()
        for block in (*self._blocks[kind], *([_columns(rows)] if rows else [])):
            sealed.extend(block)
        return sealed

    # Failures.

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] += count

    def notice(self, line: str) -> None:
        """Request a line in the log. Only the first few lines of a step are kept."""
        if len(self.notices) < _MAX_NOTICES:
            self.notices.append(line)

    def on_error(
        self,
        stage: Stage,
        node: str,
        error: Exception,
        *,
        again: Attempt | None = None,
        target: str | None = None,
        side: Literal["key", "value"] | None = None,
    ) -> None:
        """Apply the policy of the node and stage to the current record, which has failed."""
        self.handle_failure(Failure(stage, node, error, self._current(), target, side), again)

    def handle_failure(self, failure: Failure, again: Attempt | None = None) -> Any:
        """Apply the policy of the node and stage to a failed record.

        Args:
            again: The call to retry; None for the current call of the node.

        Returns:
            The return value of the retry; None without a retry.

        Raises:
            MillstreamError: Under the policy "fail", or if a node downstream has already handled the error.
        """
        stage, node, error, *_ = failure
        if error is self.stopped_by or isinstance(error, UnavailableError):
            raise error
        policy = self.policies.of(stage, node)
        if not callable(policy):
            return self.settle(failure, policy)
        attempt, tried = self._attempts.get(node, 1), again or self._called.get(node)
        arguments = None if tried is None or stage == "deserialize" else tried.arguments
        context = failure.context(self.task_id, attempt, arguments)
        possible, topic = tried is not None and tried.repeatable, self.policies.dead_letter_topic
        decision, handled = decide(policy, context, error, again=possible, topic=topic)
        if decision != "retry" or tried is None:
            return self.settle(failure, decision, handled)  # type: ignore[arg-type]
        self._attempts[node] = attempt + 1
        try:
            return tried.call(*tried.arguments)
        finally:
            self._attempts[node] = attempt

    def settle(self, failure: Failure, fate: Fate, handled: str = "") -> None:
        """Apply the fate of a failed record that is not retried.

        Args:
            handled: The outcome of the error handler, as a sentence.

        Raises:
            MillstreamError: If the fate is "fail", with a dead letter if there is a topic for it.
        """
        stage, node, error, record, *_ = failure
        topic = fate.text if isinstance(fate, DeadLetter) else self.policies.dead_letter_topic
        message = failure.message(self.task_id, handled or outcome_of(fate, topic))
        facts = {"error": f"{type(error).__name__}: {error}"}
        if self.override is not None:
            facts["record"] = "operator"
        letter = Letter(stage, node, record, facts, class_of(error), traceback_of(error))
        if fate == "fail":
            stops = ERRORS[stage](message)
            self.stopped_by = self.with_letter(stops, letter)
            raise self.stopped_by from error
        self.drop(f"{stage} error")
        self.failures[node] += 1
        self.notice(message)
        if fate != "skip":
            self.dead_letter(topic, letter)

    def with_letter(self, stops: MillstreamError, letter: Letter) -> MillstreamError:
        """Attach the record's dead letter to an error that stops the application, if there is a topic for it."""
        topic = self.policies.dead_letter_topic
        if topic is not None:
            stops.letter = topic, _columns([letter.row()])
        return stops

    def raw_key(self) -> bytes | None:
        """Return the serialised key of the record taken last; None if it has no key, or no record is being processed."""
        return None if self.chunk is None else self.chunk.raw.keys[self.chunk.row(self.index)]

    def weight(self) -> int:
        """Return the number of records that the record taken last stands for."""
        weights = None if self.chunk is None else self.chunk.raw.weights
        return 1 if weights is None or self.chunk is None else weights[self.chunk.row(self.index)]

    def _current(self) -> RawRecord:
        if self.override is not None:
            return self.override.raw
        origin = self.metadata()
        if origin is None or self.chunk is None:
            return (None, -1, None, None, max(self.stream_time, 0), ())
        raw, row = self.chunk.raw, self.chunk.row(self.index)
        headers = raw.headers[row] if raw.headers is not None else ()
        return (
            TopicPartition(origin.topic, origin.partition),
            origin.offset,
            raw.keys[row],
            raw.values[row],
            raw.timestamps[row],
            headers,
        )

    def dead_letter(self, topic: str | None, letter: Letter) -> None:
        """Send a record to a dead-letter topic, with the location and cause of the failure in headers.

        Raises:
            ProductionError: If there is no topic.
        """
        if topic is None:
            raise ProductionError(letter.no_topic(self.task_id))
        self.rows(topic).append(letter.row())


def _columns(rows: list[Any]) -> Records:
    keys, values, timestamps, headers, *chosen = map(list, zip(*rows))
    some_headers = headers if any(headers) else None
    return Records(keys, values, timestamps, [], some_headers, chosen[0] if chosen else None)
