"""The stores of a key-local processor have the entries of its task's key range only."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError
from millstream.core.state.keyvalue import KeyValueStore
from millstream.testing import TopologyTestDriver
from unit.helpers import processing


def storing(process: Any) -> ms.Topology:
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


def test_many_entries_are_put_if_all_are_in_the_range() -> None:
    with TopologyTestDriver(storing(put_all), parallelism=4) as driver:
        driver.pipe("words", "to", "to to")
        assert [record.value for record in driver.read("out")] == ["to"]


def test_many_entries_with_one_of_another_range_are_refused() -> None:
    with (
        TopologyTestDriver(storing(put_all), parallelism=4) as driver,
        pytest.raises(ProcessingError, match=r"'keep' promises key_local=True, but uses key 'be'"),
    ):
        driver.pipe("words", "to", "to be")


def test_windows_are_keys_of_a_key_value_store() -> None:
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


def test_sessions_of_another_range_are_not_iterated_backwards() -> None:
    def look(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
        list(context.state_store("kept").reverse_find_sessions(record.value, 0, 1))

    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.session("kept", ms.serdes.string, ms.serdes.string, retention=1_000))
    builder.stream("words").process(processing(look), stores=["kept"], key_local=True, name="look")
    with (
        TopologyTestDriver(builder.build(), parallelism=4) as driver,
        pytest.raises(ProcessingError, match="uses key 'be'"),
    ):
        driver.pipe("words", "to", "be")


def test_each_key_is_checked_though_the_last_one_was_in_the_range() -> None:
    def use(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
        store = context.state_store("kept")
        store.put(record.key, record.value)
        assert store.get(record.key) == record.value
        store.get(record.value)

    with (
        TopologyTestDriver(storing(use), parallelism=4) as driver,
        pytest.raises(ProcessingError, match="uses key 'be'"),
    ):
        driver.pipe("words", "to", "be")
