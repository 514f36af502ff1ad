"""Options of the stores of operators: an option without effect is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError


def windowed(builder: ms.StreamsBuilder, windows: Any) -> Any:
    return builder.stream("in").group_by_key().windowed_by(windows)


def identity(*args: Any) -> Any:
    return args[-1]


HISTORY = ms.stores.options("s", history_retention=10)
RETENTION = ms.stores.options("s", retention=10)
USES: dict[str, Callable[[ms.StreamsBuilder, ms.stores.StoreOptions], object]] = {
    "aggregation": lambda b, store: b.stream("in").group_by_key().count(store=store),
    "join of streams": lambda b, store: b.stream("in").join(
        b.stream("a"), identity, windows=ms.JoinWindows(1, 1, grace=0), store=store
    ),
    "join with a versioned table": lambda b, store: b.stream("in").join(
        b.table("a", store=ms.stores.options("rows", history_retention=10)), identity, grace=5, store=store
    ),
    "join of tables": lambda b, store: b.table("in").join(b.table("a"), identity, store=store),
    "join by a foreign key": lambda b, store: b.table("in").join(
        b.table("a"), identity, on=identity, store=store
    ),
    "suppression": lambda b, store: b.table("in").suppress(ms.Suppressed.until_time_limit(5), store=store),
    "calls": lambda b, store: b.stream("in").map_values_async(identity, store=store),
}
WINDOWS = {
    "tumbling": ms.TumblingWindows(5, grace=0),
    "sliding": ms.SlidingWindows(5, grace=0),
    "sessions": ms.SessionWindows(5, grace=0),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_stores_without_windows_or_versions_reject_retention_and_history_retention(
    use: Callable[[ms.StreamsBuilder, ms.stores.StoreOptions], object],
) -> None:
    with pytest.raises(TopologyError, match="store 's': history_retention applies only to tables"):
        use(ms.StreamsBuilder(), HISTORY)
    with pytest.raises(TopologyError, match="store 's': retention applies only to windowed aggregations"):
        use(ms.StreamsBuilder(), RETENTION)


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS.keys())
def test_windowed_aggregations_accept_retention_but_no_history_retention(windows: Any) -> None:
    with pytest.raises(TopologyError, match="store 's': history_retention applies only to tables"):
        windowed(ms.StreamsBuilder(), windows).count(store=HISTORY)
    windowed(ms.StreamsBuilder(), windows).count(store=RETENTION)


def test_versioned_tables_reject_retention() -> None:
    both = ms.stores.options("s", history_retention=10, retention=10)
    with pytest.raises(TopologyError, match="store 's': retention applies only to windowed aggregations"):
        ms.StreamsBuilder().table("in", store=both)


def test_the_window_size_of_a_serde_must_not_be_negative() -> None:
    with pytest.raises(TopologyError, match="the size of windows must not be negative, but is -1"):
        ms.serdes.time_windowed(ms.serdes.string, -1)
