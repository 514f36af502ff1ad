"""The stores of a key-local processor contain only entries of its task's key range."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError
from millstream.core.state.keyvalue import KeyValueStore
from millstream.testing import TopologyTestDriver
from unit.helpers import processing


def key_local_topology(process: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.key_value("kept", ms.serdes.string, ms.serdes.string))
    words = builder.stream("words")
    words.process(processing(process), stores=["kept"], key_local=True, name="keep").to("out")
    return builder.build()


def put_all(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
    store = context.state_store("kept")
    assert isinstance(store, KeyValueStore)
    store.put_all((key, record.key) for key in record.value.split())
    context.forward(record.with_value(" ".join(key for key, _ in store.all())))


def test_put_all_accepts_keys_of_the_own_key_range() -> None:
    with TopologyTestDriver(key_local_topology(put_all), parallelism=4) as driver:
        driver.pipe("words", "to", "to to")
        assert [record.value for record in driver.read("out")] == ["to"]


def test_put_all_refuses_a_key_of_another_key_range() -> None:
    with (
        TopologyTestDriver(key_local_topology(put_all), parallelism=4) as driver,
        pytest.raises(ProcessingError, match=r"'keep' promises key_local=True, but uses key 'be'"),
    ):
        driver.pipe("words", "to", "to be")


def test_windowed_keys_may_be_keys_of_a_key_value_store() -> None:
    windowed = ms.serdes.time_windowed(ms.serdes.string, 10)

    def keep(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
        store = context.state_store("kept")
        assert isinstance(store, KeyValueStore)
        store.put(record.key, record.value)
        context.forward(record.with_key("k").with_value(str(store.get(record.key))))

    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.key_value("kept", windowed, ms.serdes.int64))
    windows = builder.stream("words").group_by_key().windowed_by(ms.TumblingWindows(10, grace=0))
    counts = windows.count(store="counts").to_stream()
    counts.process(processing(keep), stores=["kept"], key_local=True, name="keep").to("out")
    with TopologyTestDriver(builder.build(), parallelism=4) as driver:
        driver.pipe("words", "to", "v", 5)
        assert [record.value for record in driver.read("out")] == ["1"]


def test_a_reverse_search_for_sessions_of_another_key_range_is_refused() -> None:
    def find_sessions(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
        list(context.state_store("kept").reverse_find_sessions(record.value, 0, 1))

    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.session("kept", ms.serdes.string, ms.serdes.string, retention=1_000))
    builder.stream("words").process(processing(find_sessions), stores=["kept"], key_local=True, name="look")
    with (
        TopologyTestDriver(builder.build(), parallelism=4) as driver,
        pytest.raises(ProcessingError, match="uses key 'be'"),
    ):
        driver.pipe("words", "to", "be")


def test_each_key_is_checked_even_after_a_key_in_the_range() -> None:
    def use(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
        store = context.state_store("kept")
        store.put(record.key, record.value)
        assert store.get(record.key) == record.value
        store.get(record.value)

    with (
        TopologyTestDriver(key_local_topology(use), parallelism=4) as driver,
        pytest.raises(ProcessingError, match="uses key 'be'"),
    ):
        driver.pipe("words", "to", "be")
