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
