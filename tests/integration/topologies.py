"""Topologies of the tests, in a module that Python workers can import without pytest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import millstream as ms


def word_count(source: str, sink: str) -> ms.Topology:
    """The first program of the documentation: count words."""
    builder = ms.StreamsBuilder()
    lines = builder.stream(source, key=ms.serdes.string, value=ms.serdes.string)
    counts = lines.flat_map_values(str.split).group_by(lambda _, word: word).count(store="counts")
    counts.to_stream().to(sink, value=ms.serdes.int64)
    return builder.build()


def counts_in_kafka(source: str, sink: str, changelog: Any = "kafka") -> ms.Topology:
    """Re-key and count: under exactly once the re-keying goes through a topic, else through Spark's shuffle."""
    builder = ms.StreamsBuilder()
    words = builder.stream(source).flat_map_values(str.split).group_by(lambda _, word: word)
    counts = words.count(store=ms.stores.options("counts", changelog=changelog))
    counts.to_stream().to(sink, value=ms.serdes.int64)
    return builder.build()


def key_count(source: str, sink: str) -> ms.Topology:
    """Count by the unchanged key, so nothing runs before the shuffle."""
    builder = ms.StreamsBuilder()
    counts = builder.stream(source).group_by_key().count(store="counts")
    counts.to_stream().to(sink, value=ms.serdes.int64)
    return builder.build()


def shout(source: str, sink: str) -> ms.Topology:
    """A stateless map, with nothing to shuffle."""
    builder = ms.StreamsBuilder()
    builder.stream(source).map_values(_upper).to(sink)
    return builder.build()


class _Committing(ms.Processor[str, str, str, str]):
    """Forwards records, and requests a commit at each record with the value "commit"."""

    def process(self, record: ms.Record[str, str]) -> None:
        self.context.forward(record)
        if record.value == "commit":
            self.context.commit()


def committing_copy(source: str, sink: str) -> ms.Topology:
    """Copy a topic, with commits that records request."""
    builder = ms.StreamsBuilder()
    builder.stream(source).process(_Committing).to(sink)
    return builder.build()


def _upper(text: str | None) -> str | None:
    return None if text is None else text.upper()


def people_per_region(people: str, sink: str) -> ms.Topology:
    """Re-key after a store: the table of people is state, so its repartition goes through a Kafka topic."""
    builder = ms.StreamsBuilder()
    regions = builder.table(people).group_by(lambda _, region: (region, "1")).count(store="per-region")
    regions.to_stream().to(sink, value=ms.serdes.int64)
    return builder.build()


def with_processor(
    supplier: Any, source: str, sink: str, *stores: Any, value: ms.Serde[Any] = ms.serdes.string
) -> ms.Topology:
    """Use the low-level API: a source, one processor with its stores, and a sink."""
    topology = ms.Topology().add_source("source", source)
    for store in stores:
        topology.add_state_store(store)
    topology.add_processor("processor", supplier, ["source"], stores=[store.name for store in stores])
    return topology.add_sink("sink", sink, ["processor"], value=value)


class Numbered(ms.Processor[str, str, str, str]):
    """Appends to each value how often its key has been seen; keeps timestamp and headers."""

    store = ms.stores.key_value("seen", ms.serdes.string, ms.serdes.int64)

    def process(self, record: ms.Record[str, str]) -> None:
        seen = self.context.state_store("seen")
        number = (seen.get(record.key) or 0) + 1
        seen.put(record.key, number)
        self.context.forward(record.with_value(f"{record.value}/{number}"))


class Ledger(ms.Processor[str, str, str, str]):
    """Keeps the newest value of each key, drops the key for a null, and forwards all it has for the key ``?``."""

    store = ms.stores.key_value("ledger", ms.serdes.string, ms.serdes.string)

    def process(self, record: ms.Record[str, str]) -> None:
        ledger = self.context.state_store("ledger")
        if record.key == "?":
            for key, value in ledger.all():
                self.context.forward(record.with_key(key).with_value(value))
        elif record.value is None:
            ledger.delete(record.key)
        else:
            ledger.put(record.key, record.value)


class EveryStore(ms.Processor[str, str, str, str]):
    """Puts each record into stores of all kinds with expiry, and forwards what it finds in them."""

    stores = (
        ms.stores.window("windows", ms.serdes.string, ms.serdes.string, retention=120_000, size=10_000),
        ms.stores.session("sessions", ms.serdes.string, ms.serdes.string, retention=120_000),
        ms.stores.versioned("versions", ms.serdes.string, ms.serdes.string, history_retention=120_000),
        ms.stores.key_value("expiring", ms.serdes.string, ms.serdes.string, ttl=90_000),
        ms.stores.lru("recent", ms.serdes.string, ms.serdes.string, capacity=3),
    )

    def process(self, record: ms.Record[str, str]) -> None:
        windows, sessions, versions, expiring, recent = (
            self.context.state_store(store.name) for store in self.stores
        )
        key, value, timestamp = record.key, record.value, record.timestamp
        windows.put(key, value, timestamp)
        sessions.put(ms.Windowed(key, timestamp - 1_000, timestamp), value)
        seen = [
            list(windows.fetch(key, 0, timestamp)),
            list(sessions.all()),
            versions.put(key, value, timestamp),
            versions.get(key, timestamp - 50_000),
            expiring.put_if_absent(key, value),
            recent.put(key, value) or list(recent.all()),
        ]
        self.context.forward(record.with_value(repr(seen)))


class Clock(ms.Processor[str, str, str, str]):
    """Counts the ticks of the wall clock in a store and forwards each number."""

    store = ms.stores.key_value("ticks", ms.serdes.string, ms.serdes.int64)

    def init(self, context: ms.ProcessorContext[str, str]) -> None:
        super().init(context)
        context.schedule(300, ms.wall_clock, self.tick)

    def process(self, record: ms.Record[str, str]) -> None:
        """Ignore the record; only the ticks matter, but a topology needs a source."""

    def tick(self, now_ms: int) -> None:
        ticks = self.context.state_store("ticks")
        number = (ticks.get("") or 0) + 1
        ticks.put("", number)
        self.context.forward(ms.Record(str(self.context.task_id), str(number), now_ms))


class TickingCopy(ms.Processor[str, str, str, str]):
    """Copies records, and forwards the time at each tick of the wall clock, with its task as the key."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms

    def init(self, context: ms.ProcessorContext[str, str]) -> None:
        super().init(context)
        context.schedule(self._interval_ms, ms.wall_clock, self.tick)

    def process(self, record: ms.Record[str, str]) -> None:
        self.context.forward(record)

    def tick(self, now_ms: int) -> None:
        self.context.forward(ms.Record(str(self.context.task_id), str(now_ms), now_ms))


class EverySecond(ms.Processor[str, str, str, str]):
    """Forwards stream time at the start of each of its seconds."""

    store = ms.stores.key_value("unused", ms.serdes.string, ms.serdes.string)

    def init(self, context: ms.ProcessorContext[str, str]) -> None:
        super().init(context)
        context.schedule(1_000, ms.stream_time, self.tick)

    def process(self, record: ms.Record[str, str]) -> None:
        """Do nothing; the record advances stream time."""

    def tick(self, stream_time_ms: int) -> None:
        self.context.forward(ms.Record("second", str(stream_time_ms), stream_time_ms))


def numbers(source: str, sink: str) -> ms.Topology:
    """Sum 64-bit integers per key; other values cannot be deserialised."""
    builder = ms.StreamsBuilder()
    sums = builder.stream(source, value=ms.serdes.int64).group_by_key().reduce(_plus, store="sums")
    sums.to_stream().to(sink)
    return builder.build()


def _plus(left: int, right: int) -> int:
    return left + right


def parsed(source: str, sink: str) -> ms.Topology:
    """A stateless map with a bug of the user: `int` raises for a value that is not a number."""
    builder = ms.StreamsBuilder()
    builder.stream(source).map_values(int, name="parse").to(sink, value=ms.serdes.int64)
    return builder.build()


class Picky(ms.Processor[str, str, str, str]):
    """Counts in a store, and raises when it meets the value "bad"."""

    store = ms.stores.key_value("picky", ms.serdes.string, ms.serdes.int64)

    def process(self, record: ms.Record[str, str]) -> None:
        seen = self.context.state_store("picky")
        number = (seen.get(record.key) or 0) + 1
        seen.put(record.key, number)
        if record.value == "bad":
            raise LookupError(f"no idea what {record.value!r} means")
        self.context.forward(record.with_value(str(number)))


class Patient(Picky):
    """Counts like `Picky`, but never raises."""

    def process(self, record: ms.Record[str, str]) -> None:
        super().process(record.with_value("good"))


class Gate(ms.Processor[str, str, str, str]):
    """Blocks every batch until the test opens the gate by creating a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def init(self, context: ms.ProcessorContext[str, str]) -> None:
        super().init(context)
        (self._directory / "closed").touch()
        deadline = time.monotonic() + 60
        while not (self._directory / "open").exists():
            if time.monotonic() > deadline:
                raise TimeoutError("nobody opened the gate")
            time.sleep(0.02)

    def process(self, record: ms.Record[str, str]) -> None:
        self.context.forward(record)


class WindowCounts(ms.Processor[str, str, str, int]):
    """Counts per key and window of ten seconds, in a window store."""

    def init(self, context: ms.ProcessorContext[str, int]) -> None:
        super().init(context)
        self.windows = context.state_store("windows")

    def process(self, record: ms.Record[str, str]) -> None:
        start = record.timestamp - record.timestamp % 10_000
        if self.windows.fetch(record.key, start) is None:
            self.windows.put(record.key, 0, start)
        count = self.windows.fetch(record.key, start)
        if count is not None:
            self.windows.put(record.key, count + 1, start)
            self.context.forward(ms.Record(f"{record.key}@{start}", count + 1, record.timestamp))


def ticking_copies(interval_ms: int, sinks: Mapping[str, str]) -> ms.Topology:
    """Copy each source to its sink, a sub-topology each, with the ticks of the wall clock in between."""
    builder = ms.StreamsBuilder()
    for source, sink in sinks.items():
        builder.stream(source).process(partial(TickingCopy, interval_ms)).to(sink)
    return builder.build()


def offers(orders: str, products: str, prices: str, sink: str) -> ms.Topology:
    """Orders with the names of products, from a global table, and their prices, from a store that a processor fills."""
    builder = ms.StreamsBuilder()
    names = builder.global_table(products, store="names")
    string = ms.serdes.string
    builder.add_global_store(ms.stores.key_value("changes", string, string), prices, Changes)
    stream = builder.stream(orders).left_join(names, _product, _named)
    stream.process(Priced).to(sink)
    return builder.build()


def _product(key: str, order: str) -> str:
    return order


def _named(order: str, product: str | None) -> str:
    return product or "unknown"


class Changes(ms.Processor[str, str, str, str]):
    """Keeps all prices of a product, so that results show a record that is read twice."""

    def process(self, record: ms.Record[str, str]) -> None:
        store = self.context.state_store("changes")
        store.put(record.key, ",".join(filter(None, (store.get(record.key), record.value))))


class Priced(ms.Processor[str, str, str, str]):
    """Appends the prices to the name; the key of an order begins with its product."""

    def process(self, record: ms.Record[str, str]) -> None:
        prices = self.context.state_store("changes").get(record.key.split("/")[0])
        self.context.forward(record.with_value(f"{record.value} at {prices}"))


class Tally(ms.Processor[str, str, str, int]):
    """Counts per key."""

    def init(self, context: ms.ProcessorContext[str, int]) -> None:
        super().init(context)
        self._tally = context.state_store("tally")

    def process(self, record: ms.Record[str, str]) -> None:
        count = (self._tally.get(record.key) or 0) + 1
        self._tally.put(record.key, count)
        self.context.forward(record.with_value(count))
