"""What proofs of waiting have in common: topics that tell when a record came, and somebody who looks on while a proof runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

import millstream as ms
from integration.helpers import Apps, written
from millstream.testing import EmbeddedKafka

from .journal import Lines

T = TypeVar("T")


class Arrival(NamedTuple):
    """A record in an output topic: its value, and when the broker got it, ms since the epoch."""

    value: bytes
    at_ms: int


def clocked_topic(apps: Apps, name: str, partitions: int = 1, **config: str) -> str:
    """Create a topic in which the broker notes the time at which each record comes."""
    topic = f"{apps.id}-{name}"
    settings = {
        "message.timestamp.type": "LogAppendTime",
        **{k.replace("_", "."): v for k, v in config.items()},
    }
    apps.kafka.create_topic(topic, partitions, settings)
    return topic


def arrivals(kafka: EmbeddedKafka, topic: str) -> list[Arrival]:
    """Give what is in a clocked topic."""
    return [Arrival(record.value or b"", record.timestamp) for record in kafka.consume(topic)]


def has(apps: Apps, topic: str, records: int) -> bool:
    """Tell whether a topic has so many records."""
    return written(apps.kafka, topic) == records


def now_ms() -> float:
    """Give the time, ms since the epoch."""
    return time.time() * 1000  # noqa: TID251 - of the world outside


def among(lines: Lines, numbers: range) -> Lines:
    """Give the lines of some records."""
    return lines[(lines["number"] >= numbers.start) & (lines["number"] < numbers.stop)]


def at_ms(lines: Lines) -> npt.NDArray[np.float64]:
    """Give the times of lines, ms since the epoch."""
    return lines["at_us"] / 1000


class Look(NamedTuple, Generic[T]):
    """What was seen, and when: ms since the epoch, before it was asked for."""

    at_ms: float
    seen: T


class Looking(Generic[T]):
    """Asks the same question again and again in a thread, until the end of its ``with``.

    Args:
        ask: The question.
        every_s: How long to wait between an answer and the next question.
    """

    def __init__(self, ask: Callable[[], T], every_s: float = 0.1) -> None:
        self._ask = ask
        self._every_s = every_s
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._error: Exception | None = None
        self.looks: list[Look[T]] = []

    def __enter__(self) -> Looking[T]:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._enough.set()
        self._thread.join(30)
        if self._error is not None:
            raise self._error

    @property
    def seen(self) -> list[T]:
        """What was seen, in order."""
        return [look.seen for look in self.looks]

    def _look(self) -> None:
        try:
            while not self._enough.wait(self._every_s):
                at = now_ms()
                self.looks.append(Look(at, self._ask()))
        except Exception as error:
            self._error = error


def calls_of(running: ms.RunningApplication, what: str) -> int:
    """Add up over all tasks what the status says of their calls."""
    return sum(getattr(calls, what) for calls in running.status().calls.values())


def ratio(one: float, other: float) -> float:
    """Give a ratio as it is told to people."""
    return round(one / other, 2)


def median(values: Iterable[float]) -> float:
    """Give the middle one."""
    return float(np.median(np.fromiter(values, float)))
