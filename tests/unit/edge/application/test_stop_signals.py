"""How a program that runs an application is asked to stop."""

from __future__ import annotations

import queue
import signal

import pytest

from millstream.edge.application.stop_signals import exiting_on_sigterm, stopping_on_signals


def test_a_second_signal_cuts_the_stop_short() -> None:
    requests = queue.Queue[str]()
    before = signal.getsignal(signal.SIGTERM)
    with stopping_on_signals(lambda: requests.put("stop"), hurry=lambda: requests.put("hurry")):
        for number, expected in (
            (signal.SIGTERM, "stop"),
            (signal.SIGINT, "hurry"),
            (signal.SIGTERM, "hurry"),
        ):
            signal.raise_signal(number)
            assert requests.get(timeout=60) == expected
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_during_the_start_ends_the_program_after_cleanup() -> None:
    before, closed = signal.getsignal(signal.SIGTERM), []

    def start() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            closed.append("lease")

    with pytest.raises(SystemExit) as ended, exiting_on_sigterm():
        start()
    assert (ended.value.code, closed) == (128 + signal.SIGTERM, ["lease"])
    assert signal.getsignal(signal.SIGTERM) is before
