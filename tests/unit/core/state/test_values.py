"""A value that is serialised to None counts as missing in every operator that stores it, wherever micro-batches are cut."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from unit.helpers import Host, sent

SOME: ms.Serde[Any] = ms.serdes.of(
    lambda text: None if "-" in text else text.encode(),  # type: ignore[arg-type, return-value]
    lambda data: data.decode(),
    name="some",
    immutable=True,
)


def of_table(stream: ms.KStream[Any, Any]) -> Any:
    table = stream.to_table(store="t")
    return stream.left_join(table, lambda _, row: str(row))


def of_reduce(stream: ms.KStream[Any, Any]) -> Any:
    return stream.group_by_key().reduce(lambda old, new: old + new, store="t").to_stream()


def of_windows(stream: ms.KStream[Any, Any]) -> Any:
    windows = stream.group_by_key().windowed_by(ms.TumblingWindows(timedelta(seconds=1), grace=0))
    return windows.reduce(lambda old, new: old + new, store="t").to_stream(lambda w, _: w.key)


def of_sessions(stream: ms.KStream[Any, Any]) -> Any:
    sessions = stream.group_by_key().windowed_by(ms.SessionWindows(timedelta(seconds=1), grace=0))
    return sessions.reduce(lambda old, new: old + new, store="t").to_stream(lambda w, _: w.key)


def of_suppressed(stream: ms.KStream[Any, Any]) -> Any:
    table = stream.to_table(store="t")
    return table.suppress(ms.Suppressed.until_time_limit(2), store="held").to_stream()


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("operator", [of_table, of_reduce, of_windows, of_sessions, of_suppressed])
def test_a_value_that_is_serialised_to_none_counts_as_missing(
    operator: Callable[..., Any], cache_bytes: int
) -> None:
    rows = [("a", "1", 0), ("a", "-", 1), ("a", "2", 2), ("b", "3", 3), ("b", "4", 4), ("c", "-", 9)]

    def results(cuts: bool) -> tuple[list[Any], list[Any]]:
        builder = ms.StreamsBuilder()
        operator(builder.stream("in", value=SOME)).map_values(str).to("out")
        host = Host(builder.build(), cache_bytes=cache_bytes)
        batches = [[row] for row in rows] if cuts else [rows]
        out = [row for batch in batches for row in sent(host.run("in", *batch))]
        kept = [(getattr(key, "key", key), value) for key, value in host.store("t").all()]
        return out, kept

    (cut, kept_cut), (whole, kept_whole) = results(True), results(False)
    assert kept_cut == kept_whole
    assert not any("-" in getattr(value, "value", value) for _, value in kept_whole)
    if not cache_bytes:
        assert cut == whole
