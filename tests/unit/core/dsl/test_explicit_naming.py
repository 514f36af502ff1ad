"""An application can require explicit names for state and internal topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError

WINDOWS = ms.JoinWindows(1, 1, 1)
TUMBLING = ms.TumblingWindows(10, grace=0)
SESSIONS = ms.SessionWindows(10, grace=0)


def first(key: Any, value: Any) -> Any:
    return value


def both(left: Any, right: Any) -> Any:
    return left


UNNAMED: dict[str, tuple[Callable[[ms.StreamsBuilder], object], list[str]]] = {
    "count": (
        lambda b: b.stream("in").group_by_key().count(),
        ["store 'in-count' of operator KSTREAM-AGGREGATE-0000000002, downstream of topic 'in'"],
    ),
    "grouping of a count without a name": (
        lambda b: b.stream("in").group_by(first).count(),
        ["store 'in-rekeyed-count'", "internal topic 'in-rekeyed-count', downstream of topic 'in'"],
    ),
    "windowed count": (
        lambda b: b.stream("in").group_by_key().windowed_by(TUMBLING).count(),
        ["store 'in-windowed-count'"],
    ),
    "sessions at their close": (
        lambda b: b.stream("in").group_by_key().windowed_by(SESSIONS, emit=ms.on_window_close).count(),
        ["store 'in-session-count'", "store 'in-session-count-open'"],
    ),
    "repartition": (
        lambda b: b.stream("in").repartition(),
        ["internal topic 'in-repartitioned'"],
    ),
    "table of a stream": (lambda b: b.stream("in").to_table(), ["store 'in-table'"]),
    "join of streams": (
        lambda b: b.stream("in").select_key(first).join(b.stream("other"), both, windows=WINDOWS),
        [
            "store 'in-rekeyed-other-join-left' of operator KSTREAM-JOINTHIS-0000000008, downstream of topic 'in'",
            "store 'in-rekeyed-other-join-right'",
            "internal topic 'in-rekeyed-other-join-left'",
        ],
    ),
    "join with a table": (
        lambda b: b.stream("in").select_key(first).join(b.table("table"), both),
        ["store 'table-table'", "internal topic 'in-rekeyed-table-join'"],
    ),
    "foreign key": (
        lambda b: b.table("in").join(b.table("table"), both, on=str),
        [
            "internal topic 'in-table-join-subscription-registration'",
            "store 'in-table-join-store'",
            "store 'in-table'",
        ],
    ),
    "suppress": (
        lambda b: b.table("in").suppress(ms.Suppressed.until_time_limit(10)),
        ["store 'in-suppress'"],
    ),
}


@pytest.mark.parametrize(("define", "expected"), UNNAMED.values(), ids=UNNAMED.keys())
def test_the_error_for_a_generated_name_says_which_operator_needs_a_name(
    define: Callable[[ms.StreamsBuilder], object], expected: list[str]
) -> None:
    builder = ms.StreamsBuilder()
    define(builder)
    with pytest.raises(TopologyError, match=r"build\(explicit_names=True\) requires") as raised:
        builder.build(explicit_names=True)
    for part in expected:
        assert part in str(raised.value)
    assert builder.build().nodes


NAMED: dict[str, Callable[[ms.StreamsBuilder], object]] = {
    "count": lambda b: b.stream("in").group_by(first).count(store="counts"),
    "windowed count": lambda b: b.stream("in").group_by_key().windowed_by(TUMBLING).count(store="counts"),
    "repartition": lambda b: b.stream("in").repartition(name="by-key"),
    "table of a stream": lambda b: b.stream("in").to_table(store="rows"),
    "join of streams": lambda b: (
        b.stream("in").select_key(first).outer_join(b.stream("other"), both, windows=WINDOWS, name="pairs")
    ),
    "join with a table": lambda b: (
        b.stream("in").select_key(first).join(b.table("t", store="t"), both, name="rich")
    ),
    "foreign key": lambda b: b.table("in", store="in").join(
        b.table("t", name="t"), both, on=str, name="named"
    ),
    "suppress": lambda b: b.table("in", store="in").suppress(
        ms.Suppressed.until_time_limit(10), store="held"
    ),
    "names of operators": lambda b: (
        b.stream("in")
        .group_by_key()
        .count(name="counts")
        .suppress(ms.Suppressed.until_time_limit(10), name="held")
    ),
    "begins as a generated one": lambda b: (
        b.stream("in").group_by_key().count(store="counts"),
        b.stream("other").group_by_key().count(store="in-count-daily"),
    ),
    "a global table": lambda b: b.stream("in").join(b.global_table("t"), first, both),
    "nothing to keep": lambda b: b.stream("in").map_values(str).select_key(first).to("out"),
}


@pytest.mark.parametrize("define", NAMED.values(), ids=NAMED.keys())
def test_explicit_names_and_names_derived_from_them_are_accepted(
    define: Callable[[ms.StreamsBuilder], object],
) -> None:
    builder = ms.StreamsBuilder()
    define(builder)
    builder.build(explicit_names=True)


def test_numbered_names_count_as_generated_names() -> None:
    builder = ms.StreamsBuilder(names="numbered")
    builder.stream("in").group_by(first).count()
    with pytest.raises(TopologyError, match="store 'KSTREAM-AGGREGATE-STATE-STORE-0000000002'"):
        builder.build(explicit_names=True)


def test_all_missing_names_are_reported_at_once() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("a").group_by_key().count()
    builder.stream("b").group_by_key().count()
    with pytest.raises(TopologyError, match=r"(?s)downstream of topic 'a'.*downstream of topic 'b'"):
        builder.build(explicit_names=True)
