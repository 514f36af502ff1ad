"""Which state can be divided among key ranges, and the errors for other state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import IncompatibleTopologyError, StoreError
from millstream.core.model.ids import TaskId
from millstream.core.model.partitioning import range_of
from millstream.core.state.division.entry_keys import EntryKeys, entry_keys
from millstream.core.state.division.shares import Division, divisions
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from millstream.core.topology import stores
from millstream.core.topology.analysis.ranges import divided_plan
from millstream.core.topology.evolution import ComparedPart, Remembered
from millstream.core.topology.layout import lay_out
from millstream.core.topology.routing import routing_of
from unit.helpers import Quiet


def keys_of(build: Callable[[ms.StreamsBuilder], object]) -> EntryKeys:
    builder = ms.StreamsBuilder()
    build(builder)
    plan = divided_plan(builder.build().plan("app"), 4)
    return entry_keys(plan, plan.subtopologies[-1])


def joined(builder: ms.StreamsBuilder) -> object:
    windows = ms.JoinWindows(before=10, after=10, grace=0)
    return builder.stream("a").join(builder.stream("b"), str, windows=windows)


def with_keys(serde: ms.Serde[object]) -> Callable[[ms.StreamsBuilder], object]:
    return lambda builder: builder.stream("words", key=serde).group_by_key().count(store="counts")


def regrouped_as_json(builder: ms.StreamsBuilder) -> object:
    words = builder.stream("words")
    return words.group_by(lambda key, value: [value], key=ms.serdes.json).count(store="counts")


def published(builder: ms.StreamsBuilder) -> object:
    counts_options = ms.stores.options("counts", changelog="kafka")
    return builder.stream("words").group_by_key().count(store=counts_options)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (joined, r"the stores of node .* \(StreamJoin\)"),
        (with_keys(ms.serdes.json), r"serdes\.json, so the bytes of a key may differ"),
        (with_keys(ms.serdes.float32), r"serdes\.float32, so the bytes of a key may differ"),
        (
            lambda builder: builder.stream("in", name="read").group_by_key(key=ms.serdes.bytes).count(),
            r"serdes\.bytes, so the bytes of a key may differ from those that 'read' reads with serdes\.string",
        ),
        (published, "the changelog topic of store 'counts' has a partition per task"),
    ],
)
def test_state_that_cannot_be_divided_is_refused_with_the_reason(
    build: Callable[[ms.StreamsBuilder], object], why: str
) -> None:
    with pytest.raises(IncompatibleTopologyError, match=why):
        keys_of(build)


@pytest.mark.parametrize("serde", [ms.serdes.bytes, ms.serdes.int64, ms.serdes.int32, ms.serdes.float64])
def test_the_key_of_an_entry_is_that_of_its_record(serde: ms.Serde[object]) -> None:
    assert keys_of(with_keys(serde)).of("counts")(b"key") == b"key"


TEXT = ms.serdes.string
TIMED: dict[str, stores.TimedSpec] = {
    "windows": stores.window("kept", TEXT, TEXT, retention=100, size=10),
    "windows by time": stores.window("kept", TEXT, TEXT, retention=100, size=10, order="time"),
    "windows with duplicates": stores.window(
        "kept", TEXT, TEXT, retention=100, size=10, retain_duplicates=True
    ),
    "sessions": stores.session("kept", TEXT, TEXT, retention=100),
    "sessions by time": stores.session("kept", TEXT, TEXT, retention=100, order="time"),
}


@pytest.mark.parametrize("key", ["", "a", "a\x00", "\x00\x00b"])
@pytest.mark.parametrize("kind", TIMED)
def test_the_key_of_an_entry_with_a_time_is_that_of_its_record(kind: str, key: str) -> None:
    spec = TIMED[kind]

    def with_store(builder: ms.StreamsBuilder) -> None:
        builder.add_state_store(spec)
        builder.stream("words").process(Quiet, stores=["kept"], key_local=True)

    store: Any = open_store(spec, MemoryStores())
    store.put(*((key, "v", 7) if isinstance(spec, stores.WindowSpec) else (ms.Windowed(key, 3, 7), "v")))
    ((byte_store, ((entry, _),)),) = store.drain().changes.items()
    assert keys_of(with_store).of(byte_store)(entry) == key.encode()


@pytest.mark.parametrize("emit", [ms.on_window_update, ms.on_window_close])
def test_the_key_of_an_open_session_follows_its_times(emit: Any) -> None:
    def sessions(builder: ms.StreamsBuilder) -> None:
        grouped = builder.stream("words").group_by_key()
        grouped.windowed_by(ms.SessionWindows(20, grace=10), emit=emit).count(store="sessions")

    others = [key for name, key in keys_of(sessions).of_stores.items() if name != "sessions"]
    assert [key(bytes(16) + b"key") for key in others] == [b"key"] * (emit is ms.on_window_close)


def test_keys_that_the_application_writes_itself_may_be_json() -> None:
    assert keys_of(regrouped_as_json).of("counts")(b'["a"]') == b'["a"]'


def test_a_store_that_the_topology_does_not_have_is_refused() -> None:
    with pytest.raises(IncompatibleTopologyError, match="a store 'other', which this topology does not have"):
        keys_of(with_keys(ms.serdes.string)).of("other/7")


def test_only_an_increase_of_key_ranges_is_a_division() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("words").group_by_key().count(store="counts")
    plans = {workers: divided_plan(builder.build().plan("app"), workers) for workers in (1, 2, 17)}
    remembered = {}
    for workers, plan in plans.items():
        routing = routing_of(plan, lay_out(plan, {"words": 2}))
        remembered[workers] = Remembered(parts={0: ComparedPart(("words",), ("counts",), 2)}, routing=routing)
    assert divisions(plans[2], remembered[1]) == {0: Division(1, 16)}
    assert divisions(plans[17], remembered[2]) == {0: Division(16, 64)}
    for now, before in ((1, 1), (2, 2), (2, 17)):
        assert divisions(plans[now], remembered[before]) == {}
    assert divisions(plans[2], Remembered()) == {}


def test_a_task_with_a_key_of_another_range_cannot_be_divided() -> None:
    key = next(b"%d" % number for number in range(99) if range_of(b"%d" % number, 16) == 3)
    division = Division(16, 64)
    (task,) = division.shares(TaskId(0, 16 + 3), [(key, b"")], bytes)
    assert task in division.tasks(TaskId(0, 19))
    with pytest.raises(StoreError, match="task 0_18 cannot be divided: it has keys of other key ranges"):
        division.shares(TaskId(0, 18), [(key, b"")], bytes)
