"""Thread counts: the number of threads of each task (KIP-408).

Each task has ``num_threads_per_task`` threads, unless concurrently running tasks would then exceed ``num_stream_threads`` in total. In
that case they share this limit evenly, and the first tasks by id receive the remainder. Any set of concurrently running tasks therefore
respects the limit. A task has at least one thread, the one on which it runs: this module does not decide how many tasks run concurrently.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.core.model.errors import SettingsError
from millstream.core.model.ids import TaskId


def check_threads(per_task: int, total: int | None) -> None:
    """Check the settings for threads.

    Raises:
        SettingsError: If a number is not an int, ``per_task`` is below 1, or ``total`` is below ``per_task``.

    Source: KIP-408, "Proposed Changes" (``IllegalArgumentException``).
    """
    given = {"num_threads_per_task": per_task, "num_stream_threads": 1 if total is None else total}
    for name, count in given.items():
        if not isinstance(count, int):
            raise SettingsError(f"{name} must be a whole number of threads, not {count!r}")
    if per_task < 1:
        raise SettingsError(f"num_threads_per_task must be at least 1, not {per_task}: a task needs a thread")
    if total is not None and total < per_task:
        raise SettingsError(
            f"num_stream_threads={total} is less than num_threads_per_task={per_task}: not even one task could have its threads; "
            f"set num_stream_threads to {per_task} or more, set num_threads_per_task to {total} or less, or leave num_stream_threads "
            "out, which does not limit the threads of a task"
        )


def threads_of_tasks(
    tasks: Iterable[TaskId], per_task: int, total: int | None = None, *, at_once: int = 1
) -> dict[TaskId, int]:
    """Return the number of threads of each task.

    Args:
        per_task: The setting ``num_threads_per_task``.
        total: The setting ``num_stream_threads``; None means no limit.
        at_once: Maximum number of concurrent tasks, at least 1.

    Example:
        >>> tasks = [TaskId(0, n) for n in range(4)]
        >>> [str(task) + ": " + str(n) for task, n in threads_of_tasks(tasks, 4, 8, at_once=3).items()]
        ['0_0: 3', '0_1: 3', '0_2: 2', '0_3: 2']

    Source: KIP-408, "Proposed Changes".
    """
    check_threads(per_task, total)
    share, rest = divmod(per_task * at_once if total is None else total, at_once)
    return {task: max(1, min(per_task, share + (number < rest))) for number, task in enumerate(sorted(tasks))}
