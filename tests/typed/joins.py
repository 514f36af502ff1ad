"""Types that mypy and pyright infer for joins, and calls that they must refuse. `make check` checks this file; it never runs.

A line that both must refuse has a `type: ignore`. If one of them accepts the line, it reports an unused ignore, which is an error.
"""

from __future__ import annotations

from typing import assert_type

import millstream as ms

builder = ms.StreamsBuilder()
orders = builder.stream("orders", key=ms.serdes.string, value=ms.serdes.int64)
prices = builder.table("prices", key=ms.serdes.string, value=ms.serdes.float64)
makers = builder.table("makers", key=ms.serdes.int64, value=ms.serdes.bytes)
colours = builder.global_table("colours", key=ms.serdes.int64, value=ms.serdes.bytes)
near = ms.JoinWindows(before=1, after=1, grace=0)


def pair(order: int, price: float | None) -> tuple[int, float | None]:
    return order, price


# A stream and a table.

assert_type(orders.join(prices, lambda order, price: order * price), ms.KStream[str, float])
assert_type(
    orders.left_join(prices, lambda order, price: (order, price)), ms.KStream[str, tuple[int, float | None]]
)
assert_type(orders.left_join(prices, pair, grace=5, name="pair"), ms.KStream[str, tuple[int, float | None]])
assert_type(
    orders.join(prices, lambda key, order, price: (key, order, price), with_key=True),
    ms.KStream[str, tuple[str, int, float]],
)
orders.left_join(prices, lambda order, price: order * price)  # type: ignore[operator]
orders.join(makers, lambda order, maker: maker)  # type: ignore[arg-type]

# A stream and a global table.

assert_type(
    orders.join(colours, lambda _, order: order, lambda order, colour: colour), ms.KStream[str, bytes]
)
assert_type(
    orders.left_join(colours, lambda _, order: order, lambda order, colour: colour),
    ms.KStream[str, bytes | None],
)
orders.join(colours, lambda key, _: key, lambda order, colour: colour)  # type: ignore[arg-type, return-value]

# Two streams.

assert_type(orders.join(orders, lambda left, right: left + right, windows=near), ms.KStream[str, int])
assert_type(
    orders.outer_join(orders, lambda left, right: (left, right), windows=near),
    ms.KStream[str, tuple[int | None, int | None]],
)
orders.join(orders, lambda left, right: left)  # type: ignore[call-overload]

# Two tables.

assert_type(prices.join(prices, lambda left, right: left + right), ms.KTable[str, float])
assert_type(
    prices.outer_join(prices, lambda left, right: (left, right)),
    ms.KTable[str, tuple[float | None, float | None]],
)
prices.join(makers, lambda price, maker: maker)  # type: ignore[arg-type]

# Two tables by a foreign key.

assert_type(
    prices.join(makers, lambda price, maker: maker, on=lambda price: int(price)), ms.KTable[str, bytes]
)
assert_type(
    prices.left_join(
        makers,
        lambda key, price, maker: (key, price, maker),
        on=lambda key, price: int(price) if key else None,
        with_key=True,
    ),
    ms.KTable[str, tuple[str, float, bytes | None]],
)
prices.join(makers, lambda price, maker: maker, on=lambda price: str(price))  # type: ignore[arg-type, return-value]
