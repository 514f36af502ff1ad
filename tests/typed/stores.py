"""Types that mypy and pyright infer for the stores of processors; `joins.py` explains how to read this file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import millstream as ms
from millstream.core.state import keyvalue, session, versioned, window

COUNTS = ms.stores.key_value("counts", ms.serdes.string, ms.serdes.int64, ttl=60_000)
STAMPED = ms.stores.key_value("stamped", ms.serdes.string, ms.serdes.int64, timestamped=True)
RECENT = ms.stores.lru("recent", ms.serdes.string, ms.serdes.float64, capacity=10)
CLICKS = ms.stores.window("clicks", ms.serdes.string, ms.serdes.int64, retention=60_000, size=1_000)
VISITS = ms.stores.session("visits", ms.serdes.string, ms.serdes.int64, retention=60_000, order="time")
PRICES = ms.stores.versioned("prices", ms.serdes.string, ms.serdes.float64, history_retention=60_000)


class Counting(ms.Processor[str, str, str, int]):
    stores = (COUNTS, STAMPED, RECENT, CLICKS, VISITS, PRICES)

    def init(self, context: ms.ProcessorContext[str, int]) -> None:
        super().init(context)
        self.named: ms.stores.KeyValueStore[str, int] = context.state_store("counts")
        assert_type(context.state_store("counts"), Any)
        assert_type(context.state_store(RECENT), ms.stores.KeyValueStore[str, float])
        assert_type(context.state_store(CLICKS), ms.stores.WindowStore[str, int])
        assert_type(context.state_store(VISITS), ms.stores.SessionStore[str, int])
        assert_type(context.state_store(PRICES), ms.stores.VersionedKeyValueStore[str, float])
        self.counts = context.state_store(COUNTS)

    def process(self, record: ms.Record[str, str]) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        assert_type(count, int)
        self.counts.put(record.key, count)
        self.counts.put(record.key, "one")  # type: ignore[arg-type]
        self.counts.get(7)  # type: ignore[arg-type]
        self.named.put(record.key, "one")  # type: ignore[arg-type]
        self.context.forward(record.with_value(count))

    def further_kinds(self) -> None:
        context = self.context
        assert_type(context.state_store(STAMPED).get("tea"), ms.ValueAndTimestamp | None)
        clicks, visits, prices = map_stores(context)
        assert_type(clicks.fetch("tea", 0), int | None)
        assert_type(clicks.fetch("tea", 0, 9), Iterator[tuple[int, int]])
        assert_type(next(visits.fetch("tea")), tuple[ms.Windowed[str], int])
        assert_type(visits.find_sessions(0, 9), Iterator[tuple[ms.Windowed[str], int]])
        assert_type(prices.get("tea", 5), ms.VersionedRecord | None)
        prices.put("tea", "cheap", 5)  # type: ignore[arg-type]


def map_stores(
    context: ms.ProcessorContext[str, int],
) -> tuple[
    ms.stores.WindowStore[str, int],
    ms.stores.SessionStore[str, int],
    ms.stores.VersionedKeyValueStore[str, float],
]:
    return context.state_store(CLICKS), context.state_store(VISITS), context.state_store(PRICES)


ms.StreamsBuilder().add_state_store(COUNTS)
ms.stores.key_value("counts", ms.serdes.string, ms.serdes.int64, capacity=3)  # type: ignore[call-overload]
ms.stores.lru("recent", ms.serdes.string, ms.serdes.int64)  # type: ignore[call-overload]
mocked = ms.testing.MockProcessorContext(stores=[COUNTS])
assert_type(mocked.state_store(COUNTS), ms.stores.KeyValueStore[str, int])


# The stores of a task implement the public interfaces.


def key_value_store(store: keyvalue.KeyValueStore[str, int]) -> ms.stores.KeyValueStore[str, int]:
    return store


def window_store(store: window.WindowStore[str, int]) -> ms.stores.WindowStore[str, int]:
    return store


def session_store(store: session.SessionStore[str, int]) -> ms.stores.SessionStore[str, int]:
    return store


def versioned_store(
    store: versioned.VersionedStore[str, float],
) -> ms.stores.VersionedKeyValueStore[str, float]:
    return store
