"""Real threads: each piece of work has its own, a thread that ended is not restarted, the others are reused."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable

import pytest

from millstream.drivers.threads import TaskThreads


def times(count: int, call: Callable[[], object]) -> Callable[[], bool]:
    """Return work that calls a function that many times."""
    left = [count]

    def work() -> bool:
        if left[0]:
            left[0] -= 1
            call()
            return True
        return False

    return work


def test_each_piece_of_work_is_completed_in_its_own_thread() -> None:
    together = threading.Barrier(3, timeout=30)
    seen: list[set[int]] = [set(), set(), set()]

    def note(number: int) -> None:
        together.wait()
        seen[number].add(threading.get_ident())

    ended = TaskThreads(3).run([times(4, lambda n=n: note(n)) for n in range(3)])
    assert ended == (None, None, None)
    assert [len(threads) for threads in seen] == [1, 1, 1]
    assert len(set.union(*seen)) == 3
    assert threading.get_ident() not in set.union(*seen)


def test_a_thread_whose_work_raises_an_error_ends_and_is_not_reused() -> None:
    raised = SystemExit(3)
    dead: list[threading.Thread] = []

    def end() -> bool:
        dead.append(threading.current_thread())
        raise raised

    assert TaskThreads(2).run([end, times(1, lambda: None)]) == (raised, None)
    dead[0].join(30)
    assert not dead[0].is_alive()
    assert TaskThreads(2).run([times(1, lambda: None)] * 2) == (None, None)


def test_threads_are_reused_by_the_next_task() -> None:
    seen: list[int] = []
    for _ in range(5):
        TaskThreads(1).run([times(1, lambda: seen.append(threading.get_ident()))])
    assert len(set(seen)) == 1


def test_work_is_abandoned_when_the_waiting_thread_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    started, release, calls = threading.Event(), threading.Event(), []

    def slow() -> bool:
        calls.append(1)
        started.set()
        assert release.wait(30)
        ended.set()
        return True

    ended = threading.Event()
    wait = threading.Event.wait

    def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is None and threading.current_thread() is threading.main_thread():
            assert wait(started, 30)
            raise KeyboardInterrupt
        return wait(event, timeout)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            TaskThreads(1).run([slow])
    release.set()
    assert ended.wait(30)
    TaskThreads(2).run([times(1, lambda: None)] * 2)
    assert calls == [1]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_has_its_own_threads() -> None:
    TaskThreads(1).run([times(1, lambda: None)])
    child = multiprocessing.get_context("fork").Process(target=_works, daemon=True)
    child.start()
    child.join(30)
    assert child.exitcode == 0


def _works() -> None:
    assert TaskThreads(2).run([times(1, lambda: None)] * 2) == (None, None)
