"""Remaining inputs: what remains on the broker, after a micro-batch, of the inputs for which tasks may wait.

The planner knows what remains; a task knows what it has buffered. The planner therefore writes :class:`RemainingInputs` into the plan of
the micro-batch, and each task that takes part receives what it must know of its own inputs (:class:`TaskInput`).
``millstream.core.engine.records.readiness`` contains the rules that a task follows, and ``millstream.core.runtime.alignment`` those for
how far to read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from millstream.core.engine.records.readiness import InputFacts
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import flat, nested, positions_from_json, positions_to_json
from millstream.core.runtime.inputs import Input


@dataclass(frozen=True)
class RemainingInputs:
    """What remains on the broker, after a micro-batch, of the inputs for which tasks may wait.

    Attributes:
        lag: Number of remaining records, for partitions that have any.
        until: For partitions with lag, a time (ms) that no remaining record precedes, if one is known.
        bounded: Whether this is a bounded run, after whose end nothing is read.
        unknown: Whether no broker could report how much remains.
        to_be_written: By repartition topic, a time (ms) that no record still to be written to it precedes, if one is known.
        closed: Logs of split partitions from which nothing more is read in the epoch that is being read.
    """

    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    until: Mapping[TopicPartition, int] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    bounded: bool = False
    unknown: bool = False
    to_be_written: Mapping[str, int] = field(default_factory=dict)
    closed: frozenset[TopicPartition] = frozenset()

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "lag": positions_to_json(nested(self.lag)),
            "until": positions_to_json(nested(self.until)),
            "paused": sorted(self.paused),
            "bounded": self.bounded,
        }
        if self.unknown:
            data["unknown"] = True
        if self.to_be_written:
            data["written"] = dict(self.to_be_written)
        if self.closed:
            data["closed"] = sorted(self.closed)
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RemainingInputs:
        return RemainingInputs(
            flat(positions_from_json(data["lag"])),
            flat(positions_from_json(data["until"])),
            frozenset(data["paused"]),
            data["bounded"],
            data.get("unknown", False),
            data.get("written", {}),
            _partitions(data.get("closed", ())),
        )


@dataclass(frozen=True)
class TaskInput:
    """What remains on the broker of the inputs of one task.

    Attributes:
        lag: Number of remaining records, for inputs that have any.
        until: For inputs with lag, a time (ms) that no remaining record precedes, if one is known.
        ended: Inputs that a bounded run has read to its end.
        unknown: Whether no broker could report how much remains.
        closed: Logs of split partitions from which nothing more is read in the epoch that is being read.
    """

    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    until: Mapping[TopicPartition, int] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    ended: frozenset[TopicPartition] = frozenset()
    unknown: bool = False
    closed: frozenset[TopicPartition] = frozenset()

    def facts(self, inputs: Collection[Input]) -> InputFacts:
        return InputFacts(
            tuple(each.partition for each in inputs),
            self.lag,
            self.until,
            self.unknown,
            self.paused,
            frozenset(each.partition.topic for each in inputs if each.shuffled),
            self.ended,
            self.closed,
        )

    def encode(self) -> bytes:
        data = {
            "lag": positions_to_json(nested(self.lag)),
            "until": positions_to_json(nested(self.until)),
            "paused": sorted(self.paused),
            "ended": sorted(self.ended),
            "unknown": self.unknown,
            "closed": sorted(self.closed),
        }
        return json.dumps(data).encode()

    @staticmethod
    def decode(message: bytes) -> TaskInput:
        data = json.loads(message)
        return TaskInput(
            flat(positions_from_json(data["lag"])),
            flat(positions_from_json(data["until"])),
            frozenset(data["paused"]),
            _partitions(data["ended"]),
            data["unknown"],
            _partitions(data["closed"]),
        )


Remaining = TypeVar("Remaining", RemainingInputs, TaskInput)


def lets_tasks_continue(before: Remaining | None, now: Remaining) -> bool:
    """Return whether tasks may now process records that had to wait before. The size of a lag makes no difference."""
    return before is None or _without_sizes(before) != _without_sizes(now)


def _partitions(data: Iterable[tuple[str, int]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(*partition) for partition in data)


def _without_sizes(remaining: Remaining) -> Remaining:
    return replace(remaining, lag=dict.fromkeys(remaining.lag, 0))
