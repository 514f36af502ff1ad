"""Types that mypy and pyright infer for operators, groupings and windows; `joins.py` explains how to read this file."""

from __future__ import annotations

import re
from typing import Any, TypeAlias, assert_type

import millstream as ms
from millstream.core.model.calls import Answer

Branches: TypeAlias = dict[str, ms.KStream[str, int]]

builder = ms.StreamsBuilder()
orders = builder.stream("orders", key=ms.serdes.string, value=ms.serdes.int64)
prices = builder.table("prices", key=ms.serdes.string, value=ms.serdes.float64)


def page_and_length(key: str, value: int) -> tuple[int, bytes]:
    return value, key.encode()


def halves(value: int) -> list[float]:
    return [value / 2, value / 2]


# Stateless operators.

assert_type(orders, ms.KStream[str, int])
assert_type(orders.filter(lambda key, value: key > "a" and value > 1), ms.KStream[str, int])
assert_type(orders.map_values(lambda value: value / 2), ms.KStream[str, float])
assert_type(
    orders.map_values(lambda key, value: (key, value), with_key=True), ms.KStream[str, tuple[str, int]]
)
assert_type(orders.flat_map_values(halves), ms.KStream[str, float])
assert_type(orders.map(page_and_length), ms.KStream[int, bytes])
assert_type(orders.flat_map(lambda key, value: [(value, key)]), ms.KStream[int, str])
assert_type(orders.select_key(lambda key, value: value), ms.KStream[int, int])
assert_type(orders.merge(orders), ms.KStream[str, int])
assert_type(orders.split().branch(lambda key, value: value > 1).no_default(), dict[str, ms.KStream[str, int]])
by_pattern = builder.stream(re.compile("orders-.*"), key=ms.serdes.string, value=ms.serdes.int64)
assert_type(by_pattern, ms.KStream[str, int])
more = orders.split().branch(lambda key, value: value > 1, then=lambda stream: stream.to("more"))
assert_type(more.default(then=lambda stream: stream.filter(lambda key, value: bool(key))), Branches)
assert_type(builder.stream("orders", value=ms.serdes.int64), ms.KStream[Any, int])
assert_type(builder.stream("orders", key=ms.serdes.int64, offset_reset="latest"), ms.KStream[int, Any])
assert_type(builder.stream("orders"), ms.KStream[Any, Any])
assert_type(builder.table("prices", value=ms.serdes.float64, store="prices"), ms.KTable[Any, float])
assert_type(builder.table("prices", key=ms.serdes.string), ms.KTable[str, Any])
assert_type(builder.table("prices"), ms.KTable[Any, Any])
assert_type(builder.global_table("towns", value=ms.serdes.string, name="towns"), ms.GlobalKTable[Any, str])
assert_type(builder.global_table("towns", key=ms.serdes.string), ms.GlobalKTable[str, Any])
builder.stream("orders", value=ms.serdes.int64, store="orders")  # type: ignore[call-overload]
builder.stream("orders", value=ms.serdes.int64).map_values(str.upper)  # type: ignore[arg-type]
orders.to("out", partitioner=lambda topic, key, value, partitions: range(partitions))
orders.split().branch(lambda key, value: True, then=lambda stream: stream.map_values(str))  # type: ignore[arg-type]
orders.map_values(lambda value: value.upper())  # type: ignore[attr-defined]
orders.filter(lambda key, value: key + value)  # type: ignore[operator]
orders.merge(orders.map_values(str))  # type: ignore[arg-type]

# Asynchronous operators.


async def price(value: int) -> float:
    return value / 2


async def name_or_nothing(key: str, value: int) -> bytes | Answer:
    return key.encode() if value else ms.skip()


async def prices_of(values: list[int]) -> list[float]:
    return [value / 2 for value in values]


async def charge(record: ms.Record[str, int], context: ms.CallContext) -> None:
    context.forward(record.with_value(str(record.value)))


assert_type(orders.map_values_async(price, timeout=5, retry=ms.Retry()), ms.KStream[str, float])
assert_type(orders.map_values_async(name_or_nothing, with_key=True), ms.KStream[str, bytes])
assert_type(orders.map_values_async(lambda value: value / 2), ms.KStream[str, float])
assert_type(orders.map_values_async(prices_of, batch=(10, 5)), ms.KStream[str, Any])
orders.process_async(charge)
orders.foreach_async(lambda key, value: key + str(value))
orders.map_values_async(lambda value: value.upper())  # type: ignore[attr-defined]

# Groupings.

grouped = orders.group_by_key()
assert_type(grouped, ms.KGroupedStream[str, int])
assert_type(orders.group_by(lambda key, value: value), ms.KGroupedStream[int, int])
assert_type(grouped.count(), ms.KTable[str, int])
assert_type(grouped.reduce(lambda left, right: left + right), ms.KTable[str, int])


def with_key(key: str, value: int, so_far: list[str]) -> list[str]:
    return [*so_far, key]


def together(key: str, left: list[str], right: list[str]) -> list[str]:
    return left + right


def no_names() -> list[str]:
    return []


names: ms.Serde[list[str]] = ms.serdes.json

assert_type(grouped.aggregate(no_names, with_key, value=names), ms.KTable[str, list[str]])
assert_type(grouped.cogroup(with_key), ms.CogroupedKStream[str, list[str]])
assert_type(grouped.cogroup(with_key).aggregate(no_names, value=names), ms.KTable[str, list[str]])
grouped.aggregate(int, with_key)  # type: ignore[misc]
grouped.aggregate(no_names, with_key, value=ms.serdes.int64)  # type: ignore[arg-type]
grouped.reduce(lambda left, right: str(left + right))  # type: ignore[arg-type, return-value]

assert_type(grouped.sum(), ms.KTable[str, int])
assert_type(grouped.mean(), ms.KTable[str, float])
assert_type(prices.group_by(lambda key, value: (key, value)).sum(), ms.KTable[str, float])
assert_type(prices.group_by(lambda key, value: (key, value)).mean(), ms.KTable[str, float])
orders.filter(ms.col() > 1).filter_not(ms.col().is_null())

# Windows.

per_minute = grouped.windowed_by(ms.TumblingWindows(60_000, grace=0))
visits = grouped.windowed_by(ms.SessionWindows(60_000, grace=0), emit=ms.on_window_close)
assert_type(per_minute, ms.TimeWindowedKStream[str, int])
assert_type(visits, ms.SessionWindowedKStream[str, int])
assert_type(per_minute.count(), ms.KTable[ms.Windowed[str], int])
assert_type(per_minute.max(), ms.KTable[ms.Windowed[str], int])
assert_type(visits.mean(), ms.KTable[ms.Windowed[str], float])
assert_type(per_minute.aggregate(no_names, with_key, value=names), ms.KTable[ms.Windowed[str], list[str]])
assert_type(visits.count(), ms.KTable[ms.Windowed[str], int])
assert_type(
    visits.aggregate(no_names, with_key, together, value=names), ms.KTable[ms.Windowed[str], list[str]]
)
assert_type(
    grouped.cogroup(with_key).windowed_by(ms.SlidingWindows(1, grace=0)).aggregate(no_names, value=names),
    ms.KTable[ms.Windowed[str], list[str]],
)
assert_type(per_minute.count().to_stream(lambda window, _: window.start), ms.KStream[int, int])
assert_type(per_minute.count().to_stream(lambda window, _: window.key), ms.KStream[str, int])

counts = per_minute.count().suppress(ms.Suppressed.until_window_closes())
assert_type(
    counts.filter(lambda window, count: window.key > "a" and count > 1), ms.KTable[ms.Windowed[str], int]
)
assert_type(
    counts.map_values(lambda window, count: window.key, with_key=True), ms.KTable[ms.Windowed[str], str]
)
assert_type(counts.to_stream().map(lambda window, count: (window.key, count)), ms.KStream[str, int])
assert_type(counts.to_stream().select_key(lambda window, _: window.key), ms.KStream[str, int])
assert_type(counts.to_stream().group_by(lambda window, _: window.key), ms.KGroupedStream[str, int])
assert_type(counts.group_by(lambda window, count: (window.key, count)), ms.KGroupedTable[str, int])
assert_type(
    counts.join(counts, lambda window, left, right: (window.key, left + right), with_key=True),
    ms.KTable[ms.Windowed[str], tuple[str, int]],
)
assert_type(
    counts.to_stream().left_join(counts, lambda count, other: (count, other)),
    ms.KStream[ms.Windowed[str], tuple[int, int | None]],
)
assert_type(
    counts.join(
        prices,
        lambda window, count, price: count * price,
        on=lambda window, count: window.key,
        with_key=True,
    ),
    ms.KTable[ms.Windowed[str], float],
)
assert_type(ms.serdes.time_windowed(ms.serdes.string, 60_000), ms.Serde[ms.Windowed[str]])
assert_type(ms.Windowed("a", 0, 1), ms.Windowed[str])
counts.join(prices, lambda count, price: price)  # type: ignore[arg-type]
counts.to_stream(lambda window, _: window.key + 1)  # type: ignore[operator]
visits.aggregate(no_names, with_key, value=names)  # type: ignore[call-arg]
assert_type(grouped.windowed_by(ms.UnlimitedWindows()), ms.TimeWindowedKStream[str, int])
late = grouped.cogroup(with_key).windowed_by(
    ms.SessionWindows(1, grace=0), late=lambda stream: stream.to("late")
)
assert_type(late.aggregate(no_names, together, value=names), ms.KTable[ms.Windowed[str], list[str]])
grouped.windowed_by(60_000)  # type: ignore[call-overload]

# Tables.

assert_type(prices, ms.KTable[str, float])
assert_type(prices.map_values(lambda price: str(price)), ms.KTable[str, str])
assert_type(prices.to_stream(), ms.KStream[str, float])
assert_type(prices.to_stream(lambda key, price: price), ms.KStream[float, float])
assert_type(prices.suppress(ms.Suppressed.until_time_limit(1), store="calm"), ms.KTable[str, float])
assert_type(prices.group_by(lambda key, price: (int(price), key)), ms.KGroupedTable[int, str])
assert_type(prices.group_by(lambda key, price: (int(price), key)).count(), ms.KTable[int, int])
prices.group_by(lambda key, price: price)  # type: ignore[arg-type, return-value]
