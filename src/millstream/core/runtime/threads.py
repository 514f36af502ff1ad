"""Threads of tasks: how many of an application's threads each task gets (KIP-408).

A task has as many threads as it may have, ``num_threads_per_task``, unless the tasks that run at the same time would then have
more than ``num_stream_threads`` together. Those share the limit evenly, and the first tasks, in the order of their ids, get what
remains. So any tasks that run at once keep to it. A task has at least one thread, the one that it runs on: how many tasks run at once
is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.core.model.errors import SettingsError
from millstream.core.model.ids import TaskId


def check_threads(per_task: int, total: int | None) -> None:
    """Refuse numbers of threads that cannot be.

    Args:
        per_task: The setting ``num_threads_per_task``.
        total: The setting ``num_stream_threads``; None is no limit.

    Raises:
        SettingsError: If a number is no whole number, a task is to have no thread, or there are fewer threads than one task is to
            have.

    Source: KIP-408, "Proposed Changes" (``IllegalArgumentException``).
    """
    given = {"num_threads_per_task": per_task, "num_stream_threads": 1 if total is None else total}
    for name, count in given.items():
        if not isinstance(count, int):
            raise SettingsError(f"{name} is a whole number of threads, not {count!r}")
    if per_task < 1:
        raise SettingsError(f"num_threads_per_task is at least 1, not {per_task}: a task needs a thread")
    if total is not None and total < per_task:
        raise SettingsError(
            f"num_stream_threads={total} is less than num_threads_per_task={per_task}: not even one task could have its threads; "
            f"set num_stream_threads to {per_task} or more, set num_threads_per_task to {total} or less, or leave num_stream_threads "
            "out, which gives every task as many as it may have"
        )


def threads_of_tasks(
    tasks: Iterable[TaskId], per_task: int, total: int | None = None, *, at_once: int = 1
) -> dict[TaskId, int]:
    """Return the number of threads of each task.

    Args:
        tasks: All tasks of the application.
        per_task: The setting ``num_threads_per_task``.
        total: The setting ``num_stream_threads``; None is no limit.
        at_once: How many tasks may run at the same time, at least 1.

    Raises:
        SettingsError: If there are fewer threads than one task is to have.

    Example:
        >>> tasks = [TaskId(0, n) for n in range(4)]
        >>> [str(task) + ": " + str(n) for task, n in threads_of_tasks(tasks, 4, 8, at_once=3).items()]
        ['0_0: 3', '0_1: 3', '0_2: 2', '0_3: 2']

    Source: KIP-408, "Proposed Changes".
    """
    check_threads(per_task, total)
    share, rest = divmod(per_task * at_once if total is None else total, at_once)
    return {task: max(1, min(per_task, share + (number < rest))) for number, task in enumerate(sorted(tasks))}
