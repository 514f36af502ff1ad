"""Threads: run the prefixes of a task in several threads, with the results of a single thread (KIP-408).

Records are taken in the usual order and collected until they fill a *block*. Then:

1. **Issue**: the records of the block are distributed to *lines*, one per key and one per record without a key.
2. **Execute**: each thread takes a line and runs the prefix (``millstream.core.topology.analysis.threads_and_caches``) on its records, in
   order. The prefix is compiled separately for each thread, with a runtime that records effects instead of applying them
   (``millstream.core.engine.recorder``).
3. **Commit in order**: when the block has been executed, the task's own thread applies the effects, record by record.

The results of a task are therefore the same as with one thread; only the times of function calls differ. Records of a key are executed one
after the other. No lock is needed: a thread owns the line that it has taken, each record has a separate list of effects, and threads take
lines from a ``deque``, whose operations are atomic.

If a function ends its thread (with ``SystemExit`` or another exception that is not an ``Exception``), no record is lost. The rest of the
line returns to the block, and another thread retries the record. If the record ends that thread, too, or no thread is left, the record has
failed, and the error policy applies. Ended threads are replaced when a block has no thread left, and at the next block.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice, zip_longest
from typing import NamedTuple

from millstream.core.engine.compile import Call, Compiled
from millstream.core.engine.recorder import Effect, Effects, Recorder, named
from millstream.core.engine.runtime import Piece
from millstream.core.ports import Threads
from millstream.core.topology.analysis.threads_and_caches import prefix_of
from millstream.core.topology.plan import SubTopology

_RECORDS_PER_THREAD = 128
"""Size of a block per thread. If a record stops the application, up to a block of calls may be wasted."""


@dataclass(frozen=True)
class ThreadFigures:
    """Metrics of the threads of a task.

    Attributes:
        ended: How many threads were ended by a function.
    """

    executed: tuple[int, ...]
    ended: int = 0

    def __add__(self, other: ThreadFigures) -> ThreadFigures:
        executed = zip_longest(self.executed, other.executed, fillvalue=0)
        return ThreadFigures(tuple(map(sum, executed)), self.ended + other.ended)


def added(figures: Iterable[ThreadFigures | None]) -> ThreadFigures | None:
    known = [each for each in figures if each is not None]
    return reduce(operator.add, known) if known else None


class Prefixes:
    """The prefixes of a task, and the threads that run them. Owned by the task."""

    def __init__(self, sub: SubTopology, compiled: Compiled, threads: Threads) -> None:
        self._prefixes = {
            source.name: prefix
            for source in sub.sources
            if threads.count > 1 and (prefix := prefix_of(sub, source)) is not None
        }
        self._compiled = compiled
        self._threads = threads
        self._workers = [
            _Worker(self._prefixes, compiled) for _ in range(threads.count if self._prefixes else 0)
        ]
        self._ended = 0
        self._most = self.room = _RECORDS_PER_THREAD * threads.count
        """How many more records fit in the block."""
        self._aside: list[tuple[str, Piece]] = []

    def __bool__(self) -> bool:
        return bool(self._prefixes)

    def set_aside(self, source: str, piece: Piece) -> None:
        """Add a run of a source, at most ``room`` records, to the block."""
        self._aside.append((source, piece))
        self.room -= piece.end - piece.start

    def execute(self) -> Iterator[tuple[str, Piece, list[Effects] | None]]:
        """Execute the block, and begin the next one.

        Returns:
            Source, run, and effects per record of the run, in the order in which they were taken. The effects are None if the source has
            no prefix.
        """
        pieces, self._aside, self.room = self._aside, [], self._most
        block = _Block.of([(source, piece) for source, piece in pieces if source in self._prefixes])
        self._run(block)
        effects = iter(block.effects)
        for source, piece in pieces:
            size = piece.end - piece.start
            yield source, piece, list(islice(effects, size)) if source in self._prefixes else None

    def take_figures(self) -> ThreadFigures:
        """Return the metrics and reset the counters."""
        figures = ThreadFigures(tuple(worker.take_executed() for worker in self._workers), self._ended)
        self._ended = 0
        return figures

    def _run(self, block: _Block) -> None:
        for worker in self._workers:
            worker.block = block
        alive = self._workers
        while block.lines:
            at_work = alive[: len(block.lines)]
            ended = self._threads.run([worker.work for worker in at_work])
            dead = [worker for worker, error in zip(at_work, ended) if error is not None]
            alive = [worker for worker in alive if worker not in dead]
            self._note(ended)
            if not alive:
                block.give_up()
                alive = self._workers

    def _note(self, ended: Sequence[BaseException | None]) -> None:
        runtime = self._compiled.runtime
        for error in ended:
            if error is not None:
                self._ended += 1
                runtime.notice(
                    f"a function raised {named(error)}, which ended a thread of task {runtime.task_id}; the other threads "
                    "take over its records"
                )


class _Record(NamedTuple):
    """A record of a block. ``number`` is its position in the block, ``chunk_index`` its index in the chunk of its run."""

    number: int
    source: str
    piece: Piece
    chunk_index: int


@dataclass
class _Block:
    """Records that are executed together. Shared by the threads.

    Attributes:
        effects: The effects of each record, by number.
        lines: Lines of records that are executed one after the other. A thread takes a whole line.
        failed_at: Number of the first record that stops the application. Later records are not executed.
        killers: Records that have ended a thread and have not been executed since, by number: the failure, and True if it stops the
            application.
    """

    effects: list[Effects]
    lines: deque[deque[_Record]]
    failed_at: int
    killers: dict[int, tuple[Effect, bool]] = field(default_factory=dict)

    @staticmethod
    def of(pieces: Sequence[tuple[str, Piece]]) -> _Block:
        lines: dict[object, deque[_Record]] = {}
        number = 0
        for source, piece in pieces:
            keys, row = piece.chunk.raw.keys, piece.chunk.row
            for index in range(piece.start, piece.end):
                key = keys[row(index)]
                line = lines.setdefault(number if key is None else key, deque())
                line.append(_Record(number, source, piece, index))
                number += 1
        return _Block([[] for _ in range(number)], deque(lines.values()), number)

    def finish(self, number: int, effects: Effects, *, stops: bool) -> None:
        self.effects[number] = effects
        self.killers.pop(number, None)
        if stops:
            self.failed_at = min(self.failed_at, number)

    def give_up(self) -> None:
        """Fail the records that have ended threads, because no thread is left to retry them."""
        for line in self.lines:
            if line[0].number in self.killers:
                number = line.popleft().number
                effect, stops = self.killers[number]
                self.finish(number, [effect], stops=stops)
        self.lines = deque(line for line in self.lines if line)


class _Worker:
    """Runs prefixes on the records of a block. Used by one thread at a time."""

    def __init__(self, prefixes: Mapping[str, SubTopology], compiled: Compiled) -> None:
        self._recorder = Recorder(compiled)
        self._entries: dict[str, Call] = {}
        for source, prefix in prefixes.items():
            self._entries[source] = Compiled(prefix, self._recorder).entries[source]
        self._line: deque[_Record] = deque()
        self._executed = 0
        self.block: _Block

    def take_executed(self) -> int:
        executed, self._executed = self._executed, 0
        return executed

    def work(self) -> bool:
        """Execute the next record. Return False if there is none."""
        if not self._line:
            try:
                self._line = self.block.lines.popleft()
            except IndexError:
                return False
        record = self._line.popleft()
        if record.number < self.block.failed_at:
            self._execute(record)
        return True

    def _execute(self, record: _Record) -> None:
        chunk, index, recorder = record.piece.chunk, record.chunk_index, self._recorder
        recorder.begin(record.piece, index)
        headers = () if chunk.headers is None else chunk.headers[index]
        entry = self._entries[record.source]
        try:
            entry(chunk.keys[index], chunk.values[index], chunk.timestamps[index], headers)
        except BaseException as error:
            self._hand_back(record, error)
            raise
        self._finish(record)

    def _finish(self, record: _Record) -> None:
        self.block.finish(record.number, self._recorder.effects, stops=self._recorder.stops)
        self._executed += 1

    def _hand_back(self, record: _Record, error: BaseException) -> None:
        """Return the unexecuted records of this thread, which ends, to the block."""
        block, recorder = self.block, self._recorder
        recorder.ended_by(error)
        if record.number in block.killers:
            self._finish(record)
        else:
            block.killers[record.number] = recorder.effects[0], recorder.stops
            self._line.appendleft(record)
        if self._line:
            block.lines.appendleft(self._line)
            self._line = deque()
