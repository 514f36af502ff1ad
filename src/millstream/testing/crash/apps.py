"""The applications of Millstream's own crash tests, each with its oracle.

* ``word-count``: a repartition through the shuffle and an aggregation of the DSL. Each result is the count of a word and the sum of the
  numbers of its lines. All lines of a word have the same key, so their order is also known after the repartition.
* ``windowed``: the count and the sum of numbers per key and window of ten seconds in a window store, over records that are out of order.
  Windows expire after two minutes of stream time, so slices of the store are dropped throughout the run.
* ``two-stores``: a processor that keeps the balance of an account in one store and the number of its bookings in another. Each result
  contains both, which reveals stores from different micro-batches. Both stores have changelog topics, so the application must survive the
  loss of its checkpoint.
* ``replay``: orders joined with a table of rates. Both topics are filled before the start, and one has thirty times as many records as
  the other. The results depend on processing the records in timestamp order.
* ``fan-out``: ``two-stores`` on a topic whose first partition is split and merged again and again.
* ``ranges``: the processor of ``two-stores`` in 16 key ranges of each partition. The harness cannot query the stores of a key range, but
  each result contains the values of both stores.
* ``ranges-in-kafka``: the same with changelog topics, so the application must survive the loss of its checkpoint.
* ``sums``: the sum of the amounts of an account, in 16 key ranges of each partition. Readers combine the records of a key.
* ``calls-in-ranges``: the asynchronous calls of ``calls`` in 16 key ranges of each partition.
* ``calls``: an asynchronous call of 0 to 20 ms for each record, of which one in twenty fails at first, followed by a processor that
  numbers the results of each key. All stores, including the store of unfinished records, have changelog topics, so the application must
  survive the loss of its checkpoint.
* ``many-calls``: the calls of ``calls`` for 10,000 keys, with up to 1,000 in flight per task, for runs of a million records.

Every record contributes differently to the results, so a lost record and a record that counts twice cannot cancel out. Each result has the
timestamp and the headers of the record from which it comes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from millstream.core.dsl.builder import StreamsBuilder
from millstream.core.model import serdes
from millstream.core.model.calls import Retry
from millstream.core.model.record import Record
from millstream.core.model.windowed import Windowed
from millstream.core.topology import stores
from millstream.core.topology.processor import Processor, ProcessorContext
from millstream.core.topology.stores import Changelog
from millstream.core.topology.topology import Topology
from millstream.testing.crash.app import App, Change, Expected, Journals, Topics, tell_contents
from millstream.testing.kafka import ConsumedRecord, Outgoing

_KEYS = [f"key-{number}" for number in range(16)]
_MANY_KEYS = [f"key-{number}" for number in range(10_000)]
_WORDS = {key: [f"word-{key}-{number}" for number in range(4)] for key in _KEYS}
_MOST = 10**12  # large, so that no two amounts of a run are equal
_BEGIN_MS = 1_700_000_000_000
_STEP_MS = 100
_DISORDER_MS = 15_000
_WINDOW_MS = 10_000
_RETENTION_MS = 120_000


def _one_more(counted: list[int], number: int) -> list[int]:
    return [counted[0] + 1, counted[1] + number]


def _numbered_words(line: str) -> list[tuple[str, int]]:
    """Return the words of a line, each with the number at the beginning of the line."""
    number, *words = line.split()
    return [(word, int(number)) for word in words]


def _word_count_topology(topics: Topics) -> Topology:
    builder = StreamsBuilder()
    words = builder.stream(topics.input).flat_map(lambda _, line: _numbered_words(line))
    counts = words.group_by_key(value=serdes.int64).aggregate(
        lambda: [0, 0],
        lambda _, number, counted: _one_more(counted, number),
        store="counts",
        value=serdes.json,
    )
    counts.to_stream().to(topics.output, value=serdes.json)
    return tell_contents(builder.build(), topics, ["counts"])


def _lines(count: int, seed: int) -> list[Outgoing]:
    chance = random.Random(f"lines {seed}")
    lines: list[Outgoing] = []
    for number in range(count):
        key = chance.choice(_KEYS)
        words = chance.choices(_WORDS[key], k=chance.randint(1, 5))
        lines.append((key, " ".join([f"{number}", *words]), _BEGIN_MS + number * _STEP_MS))
    return lines


def _word_counts(records: Sequence[ConsumedRecord]) -> Expected:
    journals = Journals()
    for record in records:
        for word, number in _numbered_words(_decoded(record.value)):
            journals.add(word, record, _one_more(journals.last_value(word, [0, 0]), number))
    return journals.expected(counts={word: values[-1] for word, values in journals.values.items()})


class _WindowCount(Processor[str, int, str, list[int]]):
    """Counts records and sums their numbers per key and window. The key of a result is ``key@start of the window``."""

    def init(self, context: ProcessorContext[str, list[int]]) -> None:
        super().init(context)
        self._counts = context.state_store("windows")

    def process(self, record: Record[str, int]) -> None:
        start = _window_start(record.timestamp)
        counted = _one_more(self._counts.fetch(record.key, start) or [0, 0], record.value)
        self._counts.put(record.key, counted, start)
        self.context.forward(Record(f"{record.key}@{start}", counted, record.timestamp, record.headers))


def _window_start(timestamp: int) -> int:
    return timestamp - timestamp % _WINDOW_MS


def _windowed_topology(topics: Topics) -> Topology:
    builder = StreamsBuilder()
    windows = stores.window("windows", serdes.string, serdes.json, retention=_RETENTION_MS, size=_WINDOW_MS)
    builder.add_state_store(windows)
    events = builder.stream(topics.input, value=serdes.int64)
    events.process(_WindowCount, stores=["windows"]).to(topics.output, value=serdes.json)
    return tell_contents(builder.build(), topics, ["windows"])


def _events(count: int, seed: int) -> list[Outgoing]:
    chance = random.Random(f"events {seed}")
    return [
        (
            chance.choice(_KEYS),
            serdes.int64.serialize(number),
            _BEGIN_MS + number * _STEP_MS - chance.randrange(_DISORDER_MS),
        )
        for number in range(count)
    ]


def _window_counts(records: Sequence[ConsumedRecord]) -> Expected:
    journals = Journals()
    latest: dict[int, int] = {}
    kept: dict[Windowed[str], tuple[int, list[int]]] = {}
    for record in records:
        key, start = _decoded(record.key), _window_start(record.timestamp)
        name = f"{key}@{start}"
        counted = _one_more(journals.last_value(name, [0, 0]), serdes.int64.deserialize(record.value or b""))
        journals.add(name, record, counted)
        kept[Windowed(key, start, start + _WINDOW_MS)] = record.partition, counted
        latest[record.partition] = max(start, latest.get(record.partition, 0))
    return journals.expected(
        windows={
            window: counted
            for window, (partition, counted) in kept.items()
            if window.start > latest[partition] - _RETENTION_MS
        }
    )


class _Booking(Processor[str, int, str, Any]):
    """Books an amount: a balance in one store, the number of bookings in another."""

    def init(self, context: ProcessorContext[str, Any]) -> None:
        super().init(context)
        self._balances = context.state_store("balances")
        self._bookings = context.state_store("bookings")

    def process(self, record: Record[str, int]) -> None:
        balance = (self._balances.get(record.key) or 0) + record.value
        number = (self._bookings.get(record.key) or 0) + 1
        self._balances.put(record.key, balance)
        self._bookings.put(record.key, number)
        self.context.forward(Record(record.key, [number, balance], record.timestamp, record.headers))


_BOOKING_STORES = ("balances", "bookings")


def _booking_topology(
    topics: Topics, changelog: Changelog, *, key_local: bool = False, fan_out: bool = False
) -> Topology:
    builder = StreamsBuilder()
    for store in _BOOKING_STORES:
        builder.add_state_store(stores.key_value(store, serdes.string, serdes.int64, changelog=changelog))
    amounts = builder.stream(topics.input, value=serdes.int64, fan_out=fan_out)
    booked = amounts.process(_Booking, stores=_BOOKING_STORES, key_local=key_local)
    booked.to(topics.output, value=serdes.json)
    return builder.build()


def _two_stores_topology(topics: Topics, *, fan_out: bool = False) -> Topology:
    return tell_contents(_booking_topology(topics, "kafka", fan_out=fan_out), topics, _BOOKING_STORES)


_ranges_topology = partial(_booking_topology, changelog="spark", key_local=True)
_ranges_in_kafka_topology = partial(_booking_topology, changelog="kafka", key_local=True)


def _amounts(count: int, seed: int) -> list[Outgoing]:
    chance = random.Random(f"amounts {seed}")
    return [
        (
            chance.choice(_KEYS),
            serdes.int64.serialize(chance.randint(-_MOST, _MOST)),
            _BEGIN_MS + number * _STEP_MS,
        )
        for number in range(count)
    ]


def _bookings(records: Sequence[ConsumedRecord]) -> Expected:
    return replace(_published_bookings(records), updates={})


def _published_bookings(records: Sequence[ConsumedRecord]) -> Expected:
    return replace(_balances(records), stores={})


def _balances(records: Sequence[ConsumedRecord]) -> Expected:
    journals = Journals()
    for record in records:
        amount = serdes.int64.deserialize(record.value or b"")
        journals.add(
            _decoded(record.key), record, _one_more(journals.last_value(_decoded(record.key), [0, 0]), amount)
        )
    updates = {"balances": journals.part(1), "bookings": journals.part(0)}
    stores = {name: {key: values[-1] for key, values in of.items()} for name, of in updates.items()}
    return replace(journals.expected(**stores), updates=updates)


def _sums_topology(topics: Topics) -> Topology:
    builder = StreamsBuilder()
    amounts = builder.stream(topics.input, value=serdes.int64)
    amounts.group_by_key().sum(store="sums").to_stream().to(topics.output, value=serdes.int64)
    return builder.build()


def _sums(records: Sequence[ConsumedRecord]) -> Expected:
    journals = Journals()
    for record in records:
        key, amount = _decoded(record.key), serdes.int64.deserialize(record.value or b"")
        journals.add(key, record, journals.last_value(key, 0) + amount)
    return journals.expected()


def _replay_topology(topics: Topics) -> Topology:
    builder = StreamsBuilder()
    rates = builder.table(topics.history, store="rates")
    orders = builder.stream(topics.input)
    orders.left_join(rates, lambda order, rate: f"{order}:{rate}").to(topics.output)
    return tell_contents(builder.build(), topics, ["rates"])


def _orders(count: int, seed: int, keys: Sequence[str] = _KEYS) -> list[Outgoing]:
    chance = random.Random(f"orders {seed}")
    return [
        (chance.choice(keys), f"order-{number}", _BEGIN_MS + number * _STEP_MS) for number in range(count)
    ]


def _rates(count: int, seed: int) -> list[Outgoing]:
    chance = random.Random(f"rates {seed}")
    times = sorted(chance.randrange(count) for _ in range(max(count // 30, 1)))
    return [
        (chance.choice(_KEYS), f"rate-{number}", _BEGIN_MS + time * _STEP_MS)
        for number, time in enumerate(times)
    ]


def _expected_join(records: Sequence[ConsumedRecord]) -> Expected:
    history = min(record.topic for record in records)
    rates: dict[str, str] = {}
    journals = Journals()
    for record in sorted(records, key=lambda r: (r.partition, r.timestamp, r.topic, r.offset)):
        key, value = _decoded(record.key), _decoded(record.value)
        if record.topic == history:
            rates[key] = value
        else:
            journals.add(key, record, f"{value}:{rates.get(key)}")
    return journals.expected(rates=rates)


_TRIED: Counter[str] = Counter()
"""The number of calls per record in this process, the async worker."""


async def called(value: str) -> str:
    """Return the value in capitals after 0 to 20 ms. For one record in twenty, the first two calls fail.

    Raises:
        ConnectionError: For some values, in the first two calls in a process.
    """
    _TRIED[value] += 1
    chance = random.Random(value)
    await asyncio.sleep(chance.random() / 50)
    if chance.random() < 0.05 and _TRIED[value] < 3:
        raise ConnectionError(f"no answer for {value} yet")
    return value.upper()


class _Numbering(Processor[str, str, str, Any]):
    def init(self, context: ProcessorContext[str, Any]) -> None:
        super().init(context)
        self._numbers = context.state_store("numbers")

    def process(self, record: Record[str, str]) -> None:
        number = (self._numbers.get(record.key) or 0) + 1
        self._numbers.put(record.key, number)
        self.context.forward(Record(record.key, [number, record.value], record.timestamp, record.headers))


def calling(call: Callable[[str], Awaitable[str]] = called, *, max_in_flight: int = 20) -> App:
    """Return the application ``calls`` with a function of your own.

    Args:
        call: A coroutine function with the results of :func:`called`. It may do more, for example write a journal.
    """

    def topology(topics: Topics) -> Topology:
        builder = StreamsBuilder()
        numbers = stores.key_value("numbers", serdes.string, serdes.int64, changelog="kafka")
        builder.add_state_store(numbers)
        answers = builder.stream(topics.input).map_values_async(
            call,
            store=stores.options("calls", changelog="kafka"),
            max_in_flight=max_in_flight,
            retry=Retry(initial=50),
        )
        answers.process(_Numbering, stores=["numbers"]).to(topics.output, value=serdes.json)
        return tell_contents(builder.build(), topics, ["numbers"])

    return App("calls", topology, _orders, _answers, value=serdes.json)


def _calls_in_ranges(topics: Topics) -> Topology:
    builder = StreamsBuilder()
    builder.add_state_store(stores.key_value("numbers", serdes.string, serdes.int64))
    answers = builder.stream(topics.input).map_values_async(called, max_in_flight=20, retry=Retry(initial=50))
    numbered = answers.process(_Numbering, stores=["numbers"], key_local=True)
    numbered.to(topics.output, value=serdes.json)
    return builder.build()


def _answers(records: Sequence[ConsumedRecord]) -> Expected:
    journals = Journals()
    for record in records:
        key = _decoded(record.key)
        journals.add(key, record, [journals.last_value(key, [0])[0] + 1, _decoded(record.value).upper()])
    return journals.expected(numbers={key: answered[-1][0] for key, answered in journals.values.items()})


def _decoded(data: bytes | None) -> str:
    return (data or b"").decode()


_in_ranges = partial(App, value=serdes.json, settings={"parallelism": 4}, changes="workers")


def _booking_app(name: str, topology: Callable[[Topics], Topology], changes: Change | None = None) -> App:
    return App(name, topology, _amounts, _balances, value=serdes.json, changes=changes)


APPS: Mapping[str, App] = {
    app.name: app
    for app in (
        App("word-count", _word_count_topology, _lines, _word_counts, value=serdes.json, merged=True),
        App("windowed", _windowed_topology, _events, _window_counts, value=serdes.json),
        _booking_app("two-stores", _two_stores_topology),
        App("replay", _replay_topology, _orders, _expected_join, history=_rates),
        _in_ranges("ranges", _ranges_topology, _amounts, _bookings, settings={}),
        App(
            "sums",
            _sums_topology,
            _amounts,
            _sums,
            value=serdes.int64,
            # The readers combine at least 64 records.
            settings={"parallelism": 4, "max_batch_records": 500},
            merged=True,
            changes="workers",
        ),
        _in_ranges("ranges-in-kafka", _ranges_in_kafka_topology, _amounts, _published_bookings),
        _booking_app("fan-out", partial(_two_stores_topology, fan_out=True), "splits"),
        _in_ranges(
            "calls-in-ranges", _calls_in_ranges, _orders, lambda read: replace(_answers(read), stores={})
        ),
        calling(),
        replace(
            calling(max_in_flight=1_000),
            name="many-calls",
            workload=partial(_orders, keys=_MANY_KEYS),
            settings={"max_batch_records": 10_000},
        ),
    )
}
