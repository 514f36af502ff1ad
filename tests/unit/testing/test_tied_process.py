"""A tied process that is suspended and resumed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from millstream.testing._java import TiedProcess

_TIMES = 2_000
_WAIT_S = 60


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[TiedProcess]:
    process = TiedProcess(["sleep", "600"], log=Path(os.devnull), directory=tmp_path)
    yield process
    process.end()


def test_a_suspension_ends_when_another_thread_resumes_the_process(sleeper: TiedProcess) -> None:
    """The process may be resumed before it has stopped: the thread that suspends it must not wait forever."""
    done = threading.Event()

    def suspend() -> None:
        for _ in range(_TIMES):
            sleeper.signal(signal.SIGSTOP)
        done.set()

    def resume() -> None:
        while not done.is_set():
            sleeper.signal(signal.SIGCONT)

    threads = [threading.Thread(target=each, daemon=True) for each in (suspend, resume)]
    for thread in threads:
        thread.start()
    suspended = done.wait(_WAIT_S)
    done.set()
    sleeper.signal(signal.SIGCONT)
    assert suspended
    for thread in threads:
        thread.join(_WAIT_S)


def test_a_process_has_stopped_when_its_suspension_returns(sleeper: TiedProcess) -> None:
    for _ in range(2):
        for _ in range(2):
            sleeper.signal(signal.SIGSTOP)
            assert psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED
        sleeper.signal(signal.SIGCONT)
        assert psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED


def test_suspending_an_ended_process_does_not_wait(sleeper: TiedProcess) -> None:
    sleeper.signal(signal.SIGKILL)
    sleeper.signal(signal.SIGSTOP)
    sleeper.end()
    sleeper.signal(signal.SIGSTOP)
