"""Batch plans: the planner's decisions about a micro-batch, which Spark's checkpoint stores as the end offset of the micro-batch.

When a micro-batch is run again, it finds the decisions of its first attempt here. A plan is JSON:

    {"topics": {topic: {partition: offset}}, "checkpoint": id, "batch": n, "tick": n, "now_ms": ms, "ahead_ms": ms,
     "stores": {store: fingerprint}, "internal": {repartition topic: partitions}, "unfinished": {store: kind},
     "parts": {number: [topics, stores, tasks]}, "topic_ids": {topic: id}, "routing": {...},
     "inputs": {...}, "begin": {...}, "woken": [task], "global": {topic: {partition: offset}},
     "times": {topic: {partition: ms}}, "run": id, "origins": [[n, {topic: {partition: offset}}]], "taps": [node]}

Older versions wrote fewer fields. A decoded plan has defaults for missing fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from millstream.core.model.positions import Offsets, positions_from_json, positions_to_json
from millstream.core.ports import BatchId
from millstream.core.runtime.origins import Begun, begun_from_json, begun_to_json
from millstream.core.runtime.remaining_inputs import RemainingInputs
from millstream.core.topology.evolution import Remembered

JsonObject = Mapping[str, Any]


class WallClock(NamedTuple):
    """The wall clock of a micro-batch.

    Attributes:
        now_ms: The application's wall clock, ms since the epoch.
        ahead_ms: By how much it was ahead of the clock of the planner's host, ms; 0 if it is the same clock.
    """

    now_ms: int
    ahead_ms: int = 0


class DividedState(NamedTuple):
    """State that was divided among more key ranges and is stored beside the checkpoint's own state.

    Attributes:
        name: Name of the directory with the shares of the tasks.
        subtopologies: The sub-topologies whose tasks begin with a share.
    """

    name: str
    subtopologies: tuple[int, ...]


@dataclass(frozen=True)
class Initialization:
    """What tasks do besides starting, in the first micro-batch of a run and in one that follows a repeated delivery.

    They also correct changelog topics of unfinished records.

    Attributes:
        rebuild: Whether tasks without state rebuild their stores from changelog topics.
        new_topics: Stores whose changelog topics are new and receive the whole content.
        divided: The divided state with which tasks of key ranges begin; None if the key ranges have not changed.
        resting: Numbers of the sub-topologies that are paused, and do not punctuate.
    """

    rebuild: bool = False
    new_topics: tuple[str, ...] = ()
    divided: DividedState | None = None
    resting: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"rebuild": self.rebuild, "new_topics": list(self.new_topics)}
        if self.divided is not None:
            data["divided"] = [self.divided.name, list(self.divided.subtopologies)]
        if self.resting:
            data["resting"] = list(self.resting)
        return data

    @staticmethod
    def from_json(data: JsonObject) -> Initialization:
        divided = None
        if "divided" in data:
            name, subtopologies = data["divided"]
            divided = DividedState(name, tuple(subtopologies))
        return Initialization(
            data.get("rebuild", False),
            tuple(data.get("new_topics", ())),
            divided,
            tuple(data.get("resting", ())),
        )

    def encode(self) -> bytes:
        return json.dumps(self.to_json()).encode()

    @staticmethod
    def decode(message: bytes) -> Initialization:
        return Initialization.from_json(json.loads(message))


@dataclass(frozen=True)
class BatchPlan:
    """A planned micro-batch: its end offsets, and the decisions with which it was planned.

    Attributes:
        topology: The topology for which it was planned, and the offset at which each partition ends.
        tick: Increases when tasks run without records: all tasks in the first micro-batch of a run, otherwise those that are woken.
        inputs: What remains of the inputs for which tasks may wait; None if no task has to know.
        initialization: What tasks do besides starting; None unless the micro-batch starts all tasks.
        woken: Tasks with work that is due without records: punctuation by the wall clock, calls, ends of waits, queries.
            If ``tick`` increases and no task is woken, all tasks take part.
        global_ends: Offsets up to which global stores are filled; None without global stores.
        times: Partition times at the beginning of the micro-batch; None if no reader extracts timestamps.
        origins: Start positions of the micro-batches that may have unfinished records; None if no topic is committed by them.
        taps: Nodes whose records are sampled.
    """

    id: BatchId
    topology: Remembered
    tick: int = 0
    clock: WallClock = field(default_factory=lambda: WallClock(0))
    inputs: RemainingInputs | None = None
    initialization: Initialization | None = None
    woken: tuple[str, ...] = ()
    global_ends: Offsets | None = None
    times: Offsets | None = None
    origins: tuple[Begun, ...] | None = None
    taps: tuple[str, ...] = ()

    @property
    def positions(self) -> Offsets:
        return self.topology.positions

    def at(self, positions: Offsets) -> BatchPlan:
        """Return a copy that ends at other positions."""
        return replace(self, topology=replace(self.topology, positions=positions))

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "topics": positions_to_json(self.positions),
            "checkpoint": self.id.checkpoint,
            "batch": self.id.number,
            "tick": self.tick,
            "now_ms": self.clock.now_ms,
        }
        if self.clock.ahead_ms:
            data["ahead_ms"] = self.clock.ahead_ms
        data.update(self.topology.to_json())
        if self.inputs is not None:
            data["inputs"] = self.inputs.to_json()
        if self.initialization is not None:
            data["begin"] = self.initialization.to_json()
        if self.woken:
            data["woken"] = list(self.woken)
        if self.global_ends is not None:
            data["global"] = positions_to_json(self.global_ends)
        if self.times is not None:
            data["times"] = positions_to_json(self.times)
        data["run"] = self.id.run
        if self.origins is not None:
            data["origins"] = begun_to_json(self.origins)
        if self.taps:
            data["taps"] = list(self.taps)
        return data

    @staticmethod
    def from_json(data: JsonObject) -> BatchPlan:
        """Decode an offset of Spark's checkpoint, including offsets that an older version wrote."""
        return BatchPlan(
            batch_id(data),
            Remembered.from_offset(data),
            data.get("tick", 0),
            WallClock(data.get("now_ms", 0), data.get("ahead_ms", 0)),
            RemainingInputs.from_json(data["inputs"]) if "inputs" in data else None,
            Initialization.from_json(data["begin"]) if "begin" in data else None,
            tuple(data.get("woken", ())),
            positions_from_json(data["global"]) if "global" in data else None,
            positions_from_json(data["times"]) if "times" in data else None,
            begun_from_json(data["origins"]) if "origins" in data else None,
            tuple(data.get("taps", ())),
        )


def batch_id(offset: JsonObject) -> BatchId:
    """Return the id of the micro-batch that ends at an offset."""
    return BatchId(offset.get("checkpoint", ""), offset.get("batch", 0), offset.get("run", ""))
