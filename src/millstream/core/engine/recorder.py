"""Recorder: a runtime that records effects instead of applying them.

The operators of a prefix (``millstream.core.topology.analysis.threads_and_caches``) are compiled for each thread, by the same compilers as
for the task itself. A recorder replaces the task's runtime. Drops, sends, failures and records that leave the prefix become a list of
*effects*, in program order. The task's own thread applies them later, when it is the record's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.failures import Failure, raised_in
from millstream.core.engine.policy import Fate
from millstream.core.engine.runtime import Piece, Row, Runtime
from millstream.core.model.errors import ProcessingError
from millstream.core.taps.samples import TapPoint
from millstream.core.topology.analysis.threads_and_caches import Border

Effect = tuple[Callable[..., object], tuple[Any, ...]]
Effects = list[Effect]


def replay(effects: Effects, *_: Any) -> None:
    """Apply the effects of a record. Called in place of the function that follows its source."""
    for call, args in effects:
        call(*args)


class Recorder(Runtime):
    """The runtime of a prefix in a thread. Used by one thread at a time.

    Attributes:
        beyond: Returns the task's function of a node, by name, for the borders of the prefix.
        stops: True if the failure of the current record stops the application.
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
        self.effects.append((call, args))

    def ended_by(self, error: BaseException) -> None:
        """Replace all effects with the failure of the record, which ended its thread."""
        failure = ProcessingError(f"it ended the thread that executed it: {named(error)}")
        failure.__cause__ = error
        self.effects, self.stops = [], self.policies.of("process", self.node) == "fail"
        failed = failure.with_traceback(error.__traceback__)
        self.do(self._task.handle_failure, Failure("process", self.node, failed, self._current()))

    def watched(self, node: str, call: Call, *, repeatable: bool) -> Call:
        """Wrap the function of a node to remember the node that was called last."""
        noted = super().watched(node, call, repeatable=repeatable)

        def watched(*args: Any) -> None:
            self.node = node
            noted(*args)

        return watched

    def rows(self, topic: str, *, placed: bool = False) -> list[Any]:
        """Return a list-like object that records the sends to a topic."""
        return cast("list[Any]", _Outbox(self, partial(self._task.rows, topic, placed=placed)))

    def drop(self, reason: str, count: int = 1) -> None:
        self.do(self._task.drop, reason, count)

    def settle(self, failure: Failure, fate: Fate, handled: str = "") -> None:
        self.stops = self.stops or fate == "fail"
        self.do(self._task.settle, failure, fate, handled)


class _Outbox:
    """Replaces the list of records for a topic."""

    def __init__(self, recorder: Recorder, rows: Callable[[], list[Any]]) -> None:
        self._recorder = recorder
        self._rows = rows

    def append(self, row: Row) -> None:
        self._recorder.do(self._send, [row])

    def extend(self, rows: Sequence[Any]) -> None:
        self._recorder.do(self._send, rows)

    def _send(self, rows: Sequence[Any]) -> None:
        self._rows().extend(rows)


@compile_node.register
def _compile_border(node: Border, compiled: Compiled) -> Call:
    recorder = compiled.runtime
    assert isinstance(recorder, Recorder)
    return partial(recorder.do, recorder.beyond(node.name))


def named(error: BaseException) -> str:
    return (
        f"{type(error).__name__}: {error}{raised_in(error)}"
        if str(error)
        else f"{type(error).__name__}{raised_in(error)}"
    )
