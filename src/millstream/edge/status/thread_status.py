"""The status and the metrics of the threads of tasks (KIP-408), from the reports of the tasks that have several."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from millstream.core.engine.threaded_nodes import ThreadFigures


@dataclass(frozen=True)
class ThreadStatus:
    """What the threads of a task have done since the application was started.

    Attributes:
        threads: How many there are.
        executed: Per thread, the records that it has executed: those whose functions it has called.
        ended: How often a function has ended a thread.
    """

    threads: int
    executed: tuple[int, ...]
    ended: int


def thread_status(figures: ThreadFigures) -> ThreadStatus:
    return ThreadStatus(len(figures.executed), figures.executed, figures.ended)


def thread_metrics(figures: Collection[ThreadFigures]) -> dict[str, int]:
    """Return the metrics of all tasks together; empty if every task has one thread."""
    if not figures:
        return {}
    return {
        "threads": sum(len(figure.executed) for figure in figures),
        "thread_records": sum(sum(figure.executed) for figure in figures),
        "threads_ended": sum(figure.ended for figure in figures),
    }
