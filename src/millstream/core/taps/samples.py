"""Samples: a limited number of the records that reach tapped nodes of a task, for inspection.

A tapped node is compiled with a preceding function that notes the record and then calls the node. Other nodes are compiled as without
taps. A sample contains plain data (``millstream.core.taps.excerpts``), because downstream functions may change a value in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millstream.core.model.record import RecordMetadata
from millstream.core.taps.excerpts import Excerpt

MAX_RECORDS: Final = 100
"""Maximum number of samples per node, task and micro-batch."""
MAX_BYTES: Final = 256 * 1024
"""Approximate maximum size of all samples of a task in a micro-batch, bytes."""
KEY_BYTES: Final = 2 * 1024
"""Maximum size of the key of a sample, bytes; the headers have the same limit."""
VALUE_BYTES: Final = 12 * 1024
"""Maximum size of the value of a sample, bytes."""
_OVERHEAD: Final = 300

Metadata = Callable[[], RecordMetadata | None]
"""Returns topic, partition and offset of the current record, or None if it has none."""


class TapPoint(NamedTuple):
    """The functions that run for each record before the function of a tapped node.

    Attributes:
        sample: Takes the arguments of the node and a function that returns the record's origin; returns the sample with its size.
        note: Takes the result of ``sample``.
        skip: Takes the number of records that pass without a sample.
    """

    sample: Callable[[tuple[Any, ...], Metadata], Sized | None]
    note: Callable[[Sized | None], None]
    skip: Callable[[int], None]


class Sample(NamedTuple):
    """A record that reached a node.

    Attributes:
        topic: The topic from which the task read the original record; None if a punctuator sent the record.
        partition: The partition of the original record; -1 without one.
        offset: The offset of the original record; -1 without one.
        value: The value, as plain data; for a change of a table, the new value.
        cut: Whether a part was too large to be shown in full.
    """

    topic: str | None
    partition: int
    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: tuple[tuple[str, Any], ...] = ()
    cut: bool = False


Sized = tuple[Sample, int]
"""A sample and its approximate size in bytes."""


@dataclass(frozen=True)
class TapReport:
    """The records that reached a tapped node of a task.

    Attributes:
        now_ms: The wall clock of the micro-batch, ms since the epoch.
    """

    node: str
    now_ms: int
    passed: int
    samples: tuple[Sample, ...] = field(default=(), repr=False)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TapReport:
        """Decode a report that ``dataclasses.asdict`` has converted to JSON-compatible data."""
        samples = (
            Sample._make((*sample[:6], tuple(map(tuple, sample[6])), *sample[7:]))
            for sample in data["samples"]
        )
        return TapReport(**{**data, "samples": tuple(samples)})


class Taps:
    """The taps of a task, for one micro-batch. Owned by the task."""

    def __init__(self, nodes: Collection[str]) -> None:
        self._left = MAX_BYTES
        self._on = {node: NodeTap(self) for node in nodes}

    def points(self) -> dict[str, TapPoint]:
        return {node: TapPoint(tap.sample, tap.note, tap.skip) for node, tap in self._on.items()}

    def has_room(self) -> bool:
        return self._left >= VALUE_BYTES + 2 * KEY_BYTES

    def spend(self, size: int) -> None:
        self._left -= size

    def take(self, now_ms: int) -> tuple[TapReport, ...]:
        """Return the reports since the last call."""
        reports = (TapReport(node, now_ms, *tap.take()) for node, tap in self._on.items())
        return tuple(report for report in reports if report.passed)


class NodeTap:
    """The tap of one node. Used by the task's thread, except for :meth:`sample`.

    Args:
        taps: The taps of the task, which share their room.
    """

    def __init__(self, taps: Taps) -> None:
        self._taps = taps
        self._room = MAX_RECORDS
        self._passed = 0
        self._samples: list[Sample] = []

    def note(self, sample: Sized | None) -> None:
        """Count a record, and keep its sample if there is room."""
        self._passed += 1
        if sample is not None and self._room and self._taps.has_room():
            self._room -= 1
            self._taps.spend(sample[1])
            self._samples.append(sample[0])

    def skip(self, count: int) -> None:
        self._passed += count

    def sample(self, args: tuple[Any, ...], metadata: Metadata) -> Sized | None:
        """Return the sample of a record and its size, or None if there is no room for it."""
        if not self._room or not self._taps.has_room():
            return None
        try:
            return _sampled(args, metadata())
        except Exception:  # a record that cannot be shown must not fail the task
            return None

    def take(self) -> tuple[int, tuple[Sample, ...]]:
        """Return the number of records since the last call, and their samples."""
        passed, samples = self._passed, tuple(self._samples)
        self._passed = 0
        self._samples.clear()
        return passed, samples


def _sampled(args: tuple[Any, ...], origin: RecordMetadata | None) -> Sized:
    topic, partition, offset = origin or (None, -1, -1)
    key, headers, value = Excerpt(KEY_BYTES), Excerpt(KEY_BYTES), Excerpt(VALUE_BYTES)
    shown: list[tuple[str, Any]] = []
    for name, content in args[-1]:
        if headers.is_full():
            break
        shown.append((headers.of(name), headers.of(content)))
    key_shown, value_shown = key.of(args[0]), value.of(args[1])
    cut = key.cut or headers.cut or value.cut
    sample = Sample(topic, partition, offset, key_shown, value_shown, int(args[-2]), tuple(shown), cut)
    left = key.left + headers.left + value.left
    return sample, VALUE_BYTES + 2 * KEY_BYTES - left + _OVERHEAD
