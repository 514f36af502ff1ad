"""Changes that users make while an application runs: splits and merges of a partition, and other numbers of workers."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final, final

from millstream.drivers.kafka.fanout.coordinator import Coordinator
from millstream.testing._broker import QUIET_CLIENT
from millstream.testing.crash.app import Change

_PARTITION: Final = 0
_RANGES: Final = (1, 2, 3, 4, 8)
_WORKERS: Final = (4, 16, 3, 1)
_PAUSES_S: Final[Mapping[Change, tuple[float, float]]] = {"splits": (0.5, 5.0), "workers": (2.0, 15.0)}
"""The shortest and the longest time between two changes."""
_WORK: Final = 2
"""The time between two changes is at least this multiple of the time that a change takes."""
_RETRY_S: Final = 0.5
"""The shortest time between a change that failed, because the application starts or recovers, and the next attempt."""


@final
class Changes(threading.Thread):
    """Makes changes of one kind again and again, until it is closed.

    Attributes:
        done: The number of changes that succeeded.

    Args:
        kind: What changes; None makes no changes.
        home: The directory of the application's state, with the name of the application.
        seed: Determines the changes and the pauses between them.
    """

    def __init__(self, kind: Change | None, servers: str, topic: str, home: Path, seed: int) -> None:
        super().__init__(name="changes", daemon=True)
        self.done = 0
        self._kind, self._servers, self._topic, self._home = kind, servers, topic, home
        self._chance = random.Random(f"{kind} {seed}")
        self._closed = threading.Event()

    def start(self) -> None:
        if self._kind is not None:
            super().start()

    def run(self) -> None:
        assert self._kind is not None
        numbers = cycle(_WORKERS) if self._kind == "workers" else _ranges(self._chance)
        number, pause_s = next(numbers), self._pause_s()
        with self._changing() as change:
            while not self._closed.wait(pause_s):
                began = time.monotonic()
                pause_s = _RETRY_S
                # A producer cancels a split, or the application is killed during a change and raises anything: the run goes on.
                with suppress(Exception):
                    change(number)
                    self.done, number = self.done + 1, next(numbers)
                    pause_s = self._pause_s()
                # On a slow machine, pauses are longer, so that the application also processes records.
                pause_s = max(pause_s, _WORK * (time.monotonic() - began))

    def close(self) -> None:
        """End after the change that is under way."""
        self._closed.set()
        if self.ident is not None:
            self.join()

    def _pause_s(self) -> float:
        """Return a time until the next change, seconds."""
        assert self._kind is not None
        return self._chance.uniform(*_PAUSES_S[self._kind])

    @contextmanager
    def _changing(self) -> Iterator[Callable[[int], object]]:
        """Yield a function that changes the number of key ranges of a partition, or of workers."""
        if self._kind == "workers":
            yield partial(_set_workers, self._home)
            return
        with closing(
            Coordinator({"bootstrap.servers": self._servers, **QUIET_CLIENT}, self._topic)
        ) as coordinator:
            yield lambda ranges: coordinator.change(_PARTITION, ranges)


def _set_workers(home: Path, workers: int) -> None:
    """Run the command that a user would run."""
    command = ("-m", "millstream", "parallelism", home.name, str(workers), "--state-dir", str(home.parent))
    subprocess.run([sys.executable, *command], check=True, capture_output=True)


def _ranges(chance: random.Random) -> Iterator[int]:
    ranges = 1
    while True:
        ranges = chance.choice([number for number in _RANGES if number != ranges])
        yield ranges
