"""Taps: samples of the records that reach nodes of a task, for people who look.

A node that is tapped is compiled with a function in front of it, which notes the record and calls the node. Other nodes are compiled as
without taps. A sample holds plain data (``millstream.core.taps.excerpts``), because what follows may change a value in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millstream.core.model.record import RecordMetadata
from millstream.core.taps.excerpts import Excerpt

MAX_RECORDS: Final = 100
"""Samples of a node, in one task and micro-batch."""
MAX_BYTES: Final = 256 * 1024
"""Bytes of all samples of a task in a micro-batch, about."""
KEY_BYTES: Final = 2 * 1024
"""Bytes of the key of a sample; the headers have as many."""
VALUE_BYTES: Final = 12 * 1024
"""Bytes of the value of a sample."""
_OVERHEAD: Final = 300

Metadata = Callable[[], RecordMetadata | None]
"""Returns topic, partition and offset of the current record; None if it has none."""


class TapPoint(NamedTuple):
    """What a tapped node calls for each record, in front of its own function.

    Attributes:
        sample: Takes the arguments of the node and what returns the record's origin; returns the sample, with its size.
        note: Takes what ``sample`` returned.
        skip: Takes the number of records that pass without a sample.
    """

    sample: Callable[[tuple[Any, ...], Metadata], Sized | None]
    note: Callable[[Sized | None], None]
    skip: Callable[[int], None]


class Sample(NamedTuple):
    """A record that reached a node.

    Attributes:
        topic: The topic from which the task read the record that led to it; None if a punctuator sent it.
        partition: The partition of that record, -1 without one.
        offset: The offset of that record, -1 without one.
        key: The key, as plain data.
        value: The value, as plain data; of a change of a table the new one.
        timestamp: Milliseconds since the epoch.
        headers: Pairs of name and value, as plain data.
        cut: Whether something was too large to be shown as a whole.
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
"""A sample and its size in bytes, about."""


@dataclass(frozen=True)
class TapReport:
    """What reached a tapped node of a task.

    Attributes:
        node: The node.
        now_ms: The wall clock of the micro-batch, ms since the epoch.
        passed: How many records.
        samples: The first of them.
    """

    node: str
    now_ms: int
    passed: int
    samples: tuple[Sample, ...] = field(default=(), repr=False)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TapReport:
        """Return the report that JSON was made of, by ``dataclasses.asdict``."""
        samples = (
            Sample._make((*sample[:6], tuple(map(tuple, sample[6])), *sample[7:]))
            for sample in data["samples"]
        )
        return TapReport(**{**data, "samples": tuple(samples)})


class Taps:
    """The taps of a task, for one micro-batch. Owned by the task.

    Args:
        nodes: The nodes that are tapped.
    """

    def __init__(self, nodes: Collection[str]) -> None:
        self._left = MAX_BYTES
        self._on = {node: NodeTap(self) for node in nodes}

    def points(self) -> dict[str, TapPoint]:
        """Return what the nodes call."""
        return {node: TapPoint(tap.sample, tap.note, tap.skip) for node, tap in self._on.items()}

    def has_room(self) -> bool:
        """Return whether any further sample fits."""
        return self._left >= VALUE_BYTES + 2 * KEY_BYTES

    def taken(self, size: int) -> None:
        """Count the bytes of a sample."""
        self._left -= size

    def take(self, now_ms: int) -> tuple[TapReport, ...]:
        """Return what passed since the last call.

        Args:
            now_ms: The wall clock of the micro-batch, ms since the epoch.
        """
        reports = (TapReport(node, now_ms, *tap.take()) for node, tap in self._on.items())
        return tuple(report for report in reports if report.passed)


class NodeTap:
    """The tap of one node. Used by the task's thread, but for :meth:`sample`.

    Args:
        taps: The taps of the task, which share their room.
    """

    def __init__(self, taps: Taps) -> None:
        self._taps = taps
        self._room = MAX_RECORDS
        self._passed = 0
        self._samples: list[Sample] = []

    def note(self, sample: Sized | None) -> None:
        """Count a record, and keep its sample if there is room.

        Args:
            sample: What :meth:`sample` returned.
        """
        self._passed += 1
        if sample is not None and self._room and self._taps.has_room():
            self._room -= 1
            self._taps.taken(sample[1])
            self._samples.append(sample[0])

    def skip(self, count: int) -> None:
        """Count records that are not sampled."""
        self._passed += count

    def sample(self, args: tuple[Any, ...], metadata: Metadata) -> Sized | None:
        """Return the sample of a record and its size; None if there is no room for it.

        Args:
            args: What the node is called with.
            metadata: Returns where the record came from.
        """
        if not self._room or not self._taps.has_room():
            return None
        try:
            return _sampled(args, metadata())
        except Exception:  # nothing of a record that cannot be shown may fail the task
            return None

    def take(self) -> tuple[int, tuple[Sample, ...]]:
        """Return how many records passed since the last call, and their samples."""
        passed, samples = self._passed, tuple(self._samples)
        self._passed = 0
        self._samples.clear()
        return passed, samples


def _sampled(args: tuple[Any, ...], origin: RecordMetadata | None) -> Sized:
    topic, partition, offset = origin or (None, -1, -1)
    key, headers, value = Excerpt(KEY_BYTES), Excerpt(KEY_BYTES), Excerpt(VALUE_BYTES)
    shown: list[tuple[str, Any]] = []
    for name, content in args[-1]:
        if headers.full():
            break
        shown.append((headers.of(name), headers.of(content)))
    key_shown, value_shown = key.of(args[0]), value.of(args[1])
    cut = key.cut or headers.cut or value.cut
    sample = Sample(topic, partition, offset, key_shown, value_shown, int(args[-2]), tuple(shown), cut)
    left = key.left + headers.left + value.left
    return sample, VALUE_BYTES + 2 * KEY_BYTES - left + _OVERHEAD
