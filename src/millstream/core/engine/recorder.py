"""Recorder: a runtime that does nothing, and writes down what it is told to do.

The operators of a front (``millstream.core.topology.analysis.threads_and_caches``) are compiled for each thread by the same closures as for the task itself. With
a recorder in the place of the task's runtime, what they drop, send, let fail or hand on beyond the front becomes a list of
*effects*, in program order. The task's own thread does them later, when it is the record's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.failures import Failure, last_line
from millstream.core.engine.policy import Fate
from millstream.core.engine.runtime import Piece, PlacedRow, Row, Runtime
from millstream.core.model.errors import ProcessingError
from millstream.core.taps.samples import TapPoint
from millstream.core.topology.analysis.threads_and_caches import Border

Effect = tuple[Callable[..., object], tuple[Any, ...]]
Effects = list[Effect]


def replay(effects: Effects, *_: Any) -> None:
    """Apply the effects of a record, in place of the function behind its source."""
    for call, args in effects:
        call(*args)


class Recorder(Runtime):
    """The runtime of a front in a thread. Used by one thread at a time.

    Attributes:
        beyond: Returns the task's function for a border of the front.
    """

    def __init__(self, compiled: Compiled) -> None:
        task = compiled.runtime
        super().__init__(
            task.application_id,
            task.task_id,
            {},
            task.policies,
            task.partitions_of,
            most_bytes_of=task.most_bytes_of,
        )
        self.taps = {
            node: TapPoint(sample, partial(self.do, note), skip)
            for node, (sample, note, skip) in task.taps.items()
        }
        self.beyond = compiled.call_named
        self.effects: Effects = []
        self.stops = False
        self.node = ""
        self._task = task

    def begin(self, piece: Piece, index: int) -> None:
        self.partition, self.chunk, self.index = piece.queue.partition, piece.chunk, index
        self.effects, self.stops = [], False

    def do(self, call: Callable[..., object], *args: Any) -> None:
        """Note an effect that the task will apply."""
        self.effects.append((call, args))

    def ended_by(self, error: BaseException) -> None:
        """Replace all effects by the failure of the record, which has ended its thread."""
        failure = ProcessingError(f"it ended the thread that executed it: {named(error)}")
        failure.__cause__ = error
        self.effects, self.stops = [], self.policies.of("process", self.node) == "fail"
        failed = failure.with_traceback(error.__traceback__)
        self.do(self._task.failed, Failure("process", self.node, failed, self._current()))

    def watched(self, node: str, call: Call, *, repeatable: bool) -> Call:
        """Wrap the function of a node, to note which node was called last."""
        noted = super().watched(node, call, repeatable=repeatable)

        def watched(*args: Any) -> None:
            self.node = node
            noted(*args)

        return watched

    def rows(self, topic: str) -> list[Row]:
        """Return a list-like object that notes the records for a topic."""
        return cast("list[Row]", _Outbox(self, self._task.rows, topic))

    def placed(self, topic: str) -> list[PlacedRow]:
        """Return the same for a topic with a partitioner."""
        return cast("list[PlacedRow]", _Outbox(self, self._task.placed, topic))

    def drop(self, reason: str, count: int = 1) -> None:
        self.do(self._task.drop, reason, count)

    def settle(self, failure: Failure, fate: Fate, handled: str = "") -> None:
        """Note the fate of a record that has failed for good."""
        self.stops = self.stops or fate == "fail"
        self.do(self._task.settle, failure, fate, handled)


class _Outbox:
    """Takes the place of the list of records for a topic in a front."""

    def __init__(self, recorder: Recorder, rows_of: Callable[[str], list[Any]], topic: str) -> None:
        self._recorder = recorder
        self._rows_of = rows_of
        self._topic = topic

    def append(self, row: Row) -> None:
        self._recorder.do(self._send, [row])

    def extend(self, rows: Sequence[Any]) -> None:
        self._recorder.do(self._send, rows)

    def _send(self, rows: Sequence[Any]) -> None:
        self._rows_of(self._topic).extend(rows)


@compile_node.register
def _compile_border(node: Border, compiled: Compiled) -> Call:
    recorder = compiled.runtime
    assert isinstance(recorder, Recorder)
    return partial(recorder.do, recorder.beyond(node.name))


def named(error: BaseException) -> str:
    return (
        f"{type(error).__name__}: {error}{last_line(error)}"
        if str(error)
        else f"{type(error).__name__}{last_line(error)}"
    )
