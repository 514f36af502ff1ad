"""Recordings, and the ways to replay them.

A replay is a function `(topology, recording) -> Replayed`. It hands the inputs of a recording to a topology batch by
batch, and gives back what came out in the recording's own terms, so that tests compare plain values. A further way of
running topologies joins by being added to `REPLAYS`.

A recording has one input per batch. `Recording.in_batches_of` makes larger ones: the meaning of a topology does not
depend on batches, so the same records have to come out, only less is known about what they came after.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.testing import TopologyTestDriver

from .scenarios import SCENARIOS

DATA = Path(__file__).parent / "data"
APPLICATION_ID = "oracle"

Entry = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """What Kafka Streams was given and what it made of it."""

    scenario: str
    topics: tuple[str, ...]
    batches: list[list[Entry]]
    outputs: list[Entry]
    stores: dict[str, list[Any]]
    dropped: int

    @classmethod
    def load(cls, path: Path) -> Recording:
        content = json.loads(path.read_text())
        return cls(
            scenario=content["scenario"],
            topics=SCENARIOS[content["scenario"]].topics,
            batches=[[entry] for entry in content["inputs"]],
            outputs=content["outputs"],
            stores=content["stores"],
            dropped=content["dropped"],
        )

    @property
    def has_headers(self) -> bool:
        return "headers" in self.batches[0][0]

    def in_batches_of(self, size: int) -> Recording:
        """Join up to `size` inputs per batch, and give the outputs as they are read after such batches."""
        inputs = [entry for batch in self.batches for entry in batch]
        batches = list(batched(inputs, size))
        last = {entry["i"]: batch[-1]["i"] for batch in batches for entry in batch}
        moved = [{**output, "after": last[output["after"]]} for output in self.outputs]
        moved.sort(key=lambda output: (output["after"], self.topics.index(output["topic"])))
        return replace(self, batches=batches, outputs=moved)


def batched(inputs: Iterable[Entry], size: int) -> Iterator[list[Entry]]:
    """Cut inputs into batches of neighbours of one topic: which topic is next is the recording's choice."""
    batch: list[Entry] = []
    for entry in inputs:
        if batch and (len(batch) == size or not may_share_batch(batch[-1], entry)):
            yield batch
            batch = []
        batch.append(entry)
    yield batch


def may_share_batch(one: Entry, other: Entry) -> bool:
    return "topic" in one and one["topic"] == other.get("topic")


@dataclass(frozen=True)
class Replayed:
    """What a topology made of a recording's inputs, in the recording's terms."""

    outputs: list[Entry] = field(default_factory=list)
    stores: dict[str, list[Any]] = field(default_factory=dict)
    dropped: int = 0


Replay = Callable[[ps.Topology, Recording], Replayed]


def with_test_driver(topology: ps.Topology, recording: Recording) -> Replayed:
    """Replay with the public TopologyTestDriver, which processes each record to the end."""
    driver = TopologyTestDriver(topology, wall_clock_ms=0, application_id=APPLICATION_ID)
    try:
        outputs = [output for batch in recording.batches for output in outputs_of(driver, batch, recording)]
        stores = {name: dump(driver.store(name)) for name in recording.stores}
        return Replayed(outputs, stores, driver.metrics()["dropped_records"])
    finally:
        driver.close()


REPLAYS: dict[str, Replay] = {"test-driver": with_test_driver}


def outputs_of(driver: TopologyTestDriver, batch: list[Entry], recording: Recording) -> Iterator[Entry]:
    for entry in batch:
        feed(driver, entry)
    for topic in recording.topics:
        for record in driver.read(topic):
            yield {"after": batch[-1]["i"], **spell(topic, record, headers=recording.has_headers)}


def feed(driver: TopologyTestDriver, entry: Entry) -> None:
    if "advance_wall_clock_ms" in entry:
        driver.advance_wall_clock(entry["advance_wall_clock_ms"])
        return
    headers = tuple((name, value.encode()) for name, value in entry.get("headers", ()))
    driver.pipe(entry["topic"], entry["key"], entry["value"], entry["timestamp"], headers=headers)


def spell(topic: str, record: ps.Record, *, headers: bool) -> Entry:
    """Write an output record as a recording does."""
    spelled = {"topic": topic, "key": record.key, "value": record.value, "timestamp": record.timestamp}
    if headers:
        spelled["headers"] = [[name, value.decode()] for name, value in record.headers]
    return spelled


def dump(store: Any) -> list[Any]:
    """List a key-value store as a recording does: with timestamps where the store keeps them."""
    return [spell_entry(key, value) for key, value in store.all()]


def spell_entry(key: str, value: Any) -> list[Any]:
    if isinstance(value, ps.ValueAndTimestamp):
        return [key, value.value, value.timestamp]
    return [key, value]
