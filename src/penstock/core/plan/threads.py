"""Threads of tasks: how many of an application's threads each task gets (KIP-408).

The threads are put into groups of ``num_threads_per_task``; what remains is a group of its own. The tasks are dealt to the
groups in the order of their ids, and a task runs on as many threads as its group has. So no thread belongs to no group, and no
task has more threads than it was allowed.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.model.errors import SettingsError
from penstock.core.model.ids import TaskId


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


def groups_of_threads(per_task: int, total: int | None) -> tuple[int, ...]:
    """Give the number of threads of each group.

    Args:
        per_task: The setting ``num_threads_per_task``.
        total: The setting ``num_stream_threads``; None is no limit.

    Raises:
        SettingsError: If there are fewer threads than one task is to have.

    Example:
        >>> groups_of_threads(3, 8)
        (3, 3, 2)
    """
    check_threads(per_task, total)
    whole, rest = divmod(per_task if total is None else total, per_task)
    return (per_task,) * whole + ((rest,) if rest else ())


def threads_of_tasks(tasks: Iterable[TaskId], per_task: int, total: int | None = None) -> dict[TaskId, int]:
    """Give the number of threads of each task.

    Args:
        tasks: All tasks of the application.
        per_task: The setting ``num_threads_per_task``.
        total: The setting ``num_stream_threads``; None is no limit.

    Raises:
        SettingsError: If there are fewer threads than one task is to have.

    Example:
        >>> tasks = [TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)]
        >>> [str(task) + ": " + str(n) for task, n in threads_of_tasks(tasks, 2, 3).items()]
        ['0_0: 2', '0_1: 1', '0_2: 2']

    Source: KIP-408, "Proposed Changes".
    """
    groups = groups_of_threads(per_task, total)
    return {task: groups[number % len(groups)] for number, task in enumerate(sorted(tasks))}
