"""Helpers of several proofs: topics with the arrival time of each record, and a sampler in the background."""

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
    """A record in an output topic: its value, and when the broker appended it, ms since the epoch."""

    value: bytes
    timestamp_ms: int


def clocked_topic(apps: Apps, name: str, partitions: int = 1, **config: str) -> str:
    """Create a topic in which the broker stores the arrival time of each record."""
    topic = f"{apps.id}-{name}"
    settings = {
        "message.timestamp.type": "LogAppendTime",
        **{k.replace("_", "."): v for k, v in config.items()},
    }
    apps.kafka.create_topic(topic, partitions, settings)
    return topic


def arrivals(kafka: EmbeddedKafka, topic: str) -> list[Arrival]:
    """Return the records of a clocked topic."""
    return [Arrival(record.value or b"", record.timestamp) for record in kafka.consume(topic)]


def has(apps: Apps, topic: str, records: int) -> bool:
    """Return whether a topic has this number of records."""
    return written(apps.kafka, topic) == records


def now_ms() -> float:
    """Return the time, ms since the epoch."""
    return time.time() * 1000  # noqa: TID251 - the time of external systems


def among(lines: Lines, numbers: range) -> Lines:
    """Return the lines of some records."""
    return lines[(lines["number"] >= numbers.start) & (lines["number"] < numbers.stop)]


def times_ms(lines: Lines) -> npt.NDArray[np.float64]:
    """Return the times of lines, ms since the epoch."""
    return lines["at_us"] / 1000


class Sample(NamedTuple, Generic[T]):
    """A value, and the time before it was requested, ms since the epoch."""

    asked_ms: float
    value: T


class Sampler(Generic[T]):
    """Requests a value periodically in a thread, until the end of its ``with``.

    Args:
        ask: Returns the value.
        every_s: Time between a value and the next request.
    """

    def __init__(self, ask: Callable[[], T], every_s: float = 0.1) -> None:
        self._ask = ask
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._error: Exception | None = None
        self.samples: list[Sample[T]] = []

    def __enter__(self) -> Sampler[T]:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join(30)
        if self._error is not None:
            raise self._error

    @property
    def values(self) -> list[T]:
        """All values, in order."""
        return [sample.value for sample in self.samples]

    def _sample(self) -> None:
        try:
            while not self._stopped.wait(self._every_s):
                asked_ms = now_ms()
                self.samples.append(Sample(asked_ms, self._ask()))
        except Exception as error:
            self._error = error


def calls_of(running: ms.RunningApplication, count: str) -> int:
    """Return the sum over all tasks of a count of calls in the status."""
    return sum(getattr(calls, count) for calls in running.status().calls.values())


def ratio(numerator: float, denominator: float) -> float:
    """Return a ratio, rounded for output."""
    return round(numerator / denominator, 2)


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return float(np.median(np.fromiter(values, float)))
