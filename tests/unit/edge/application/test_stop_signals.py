"""How a program that runs an application is asked to stop."""

from __future__ import annotations

import queue
import signal

from millstream.edge.application.stop_signals import stopping_on_signals


def test_a_second_signal_hurries() -> None:
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
