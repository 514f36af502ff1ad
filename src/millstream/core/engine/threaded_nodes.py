"""Threads: how the fronts of a task are run by several threads, with the results of one (KIP-408).

Records are taken in their order, as always, and set aside until there is a *block* of them. Then

1. **issue**: the records of a block are put in *lines*, one for each key and one for each record without a key;
2. **execute**: each thread takes a line and runs the front (``millstream.core.topology.analysis.threads_and_caches``) on its records, in their order. The
   front is compiled once more for each thread, with a runtime that does nothing: what a record would do, it writes down
   (``millstream.core.engine.recorder``);
3. **commit in order**: when the block has been executed, the task's own thread does what was written down, record by record.

So everything that can be seen of a task, but for the moments at which functions are called, is what one thread would make of
it. Records of one key are executed one after the other. There is no lock: a thread owns the line that it has taken, every
record has a place of its own for its effects, and the lines are handed out by a ``deque``, whose operations are atomic.

A function that ends its thread (``SystemExit``, or anything else that is no ``Exception``) takes no record with it. The rest of
the line goes back to the others, and the record is tried once more. If it ends that thread too, or no thread is left, it
has failed, and the policy for records that fail decides. Threads that ended are replaced when a block has none left, and
at the next block.
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
from millstream.core.topology.analysis.threads_and_caches import front_of
from millstream.core.topology.plan import SubTopology

_RECORDS_PER_THREAD = 128
"""Records of a block per thread; so many calls may be wasted when a record fails."""


@dataclass(frozen=True)
class ThreadFigures:
    """Metrics of the threads of a task."""

    executed: tuple[int, ...]
    ended: int = 0

    def __add__(self, other: ThreadFigures) -> ThreadFigures:
        """Add the figures of the same threads at another time, or of other threads of the same task."""
        executed = zip_longest(self.executed, other.executed, fillvalue=0)
        return ThreadFigures(tuple(map(sum, executed)), self.ended + other.ended)


def added(figures: Iterable[ThreadFigures | None]) -> ThreadFigures | None:
    """Add figures up; None if there are none.

    Example:
        >>> added([ThreadFigures((3, 1)), None, ThreadFigures((1, 1), ended=1)])
        ThreadFigures(executed=(4, 2), ended=1)
    """
    known = [each for each in figures if each is not None]
    return reduce(operator.add, known) if known else None


class Fronts:
    """The fronts of a task, and the threads that run them. Owned by the task."""

    def __init__(self, sub: SubTopology, compiled: Compiled, threads: Threads) -> None:
        self._fronts = {
            source.name: front
            for source in sub.sources
            if threads.count > 1 and (front := front_of(sub, source)) is not None
        }
        self._compiled = compiled
        self._threads = threads
        self._workers = [_Worker(self._fronts, compiled) for _ in range(threads.count if self._fronts else 0)]
        self._ended = 0
        self._most = self.room = _RECORDS_PER_THREAD * threads.count
        """How many more records make a block."""
        self._aside: list[tuple[str, Piece]] = []

    def __bool__(self) -> bool:
        return bool(self._fronts)

    def set_aside(self, source: str, piece: Piece) -> None:
        """Add a run of a source to the block; at most ``room`` records."""
        self._aside.append((source, piece))
        self.room -= piece.end - piece.start

    def execute(self) -> Iterator[tuple[str, Piece, list[Effects] | None]]:
        """Execute the block, and begin the next.

        Returns:
            Source, run and effects per record, in the order taken; None for effects if the source has no front.
        """
        pieces, self._aside, self.room = self._aside, [], self._most
        block = _Block.of([(source, piece) for source, piece in pieces if source in self._fronts])
        self._run(block)
        effects = iter(block.effects)
        for source, piece in pieces:
            size = piece.end - piece.start
            yield source, piece, list(islice(effects, size)) if source in self._fronts else None

    def take_figures(self) -> ThreadFigures | None:
        """Return the metrics and reset the counters; None if no operator runs in threads."""
        if not self._fronts:
            return None
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
                    f"a thread of task {runtime.task_id} was ended by a function that raised {named(error)}; its records are taken "
                    "over by the others"
                )


class _Record(NamedTuple):
    """A record of a block: its number in the block, source, run, and index in the run's chunk."""

    number: int
    source: str
    piece: Piece
    chunk_index: int


@dataclass
class _Block:
    """Records that are executed together; shared by the threads.

    Attributes:
        lines: Records that are executed one after the other; a thread takes a whole line.
        failed_at: The first record that stops the application; none behind it is executed.
        killers: Records that have ended a thread and were not executed since, with their failure, and whether it stops the
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
        """Set the effects of a record.

        Args:
            stops: Whether the record stops the application, so that no record behind it is needed.
        """
        self.effects[number] = effects
        self.killers.pop(number, None)
        if stops:
            self.failed_at = min(self.failed_at, number)

    def give_up(self) -> None:
        """Fail the records that have ended threads: no thread is left to try them again."""
        for line in self.lines:
            if line[0].number in self.killers:
                number = line.popleft().number
                effect, stops = self.killers[number]
                self.finish(number, [effect], stops=stops)
        self.lines = deque(line for line in self.lines if line)


class _Worker:
    """Runs fronts on the records of a block. Used by one thread at a time."""

    def __init__(self, fronts: Mapping[str, SubTopology], compiled: Compiled) -> None:
        self._recorder = Recorder(compiled)
        self._entries: dict[str, Call] = {}
        for source, front in fronts.items():
            self._entries[source] = Compiled(front, self._recorder).entries[source]
        self._line: deque[_Record] = deque()
        self._executed = 0
        self.block: _Block

    def take_executed(self) -> int:
        executed, self._executed = self._executed, 0
        return executed

    def work(self) -> bool:
        """Execute the next record; return whether there was one."""
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
        """Return to the block what this thread, which ends, has not executed."""
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
