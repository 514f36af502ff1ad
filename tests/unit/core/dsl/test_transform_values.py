"""KTable.transform_values: a transformer with access to stores computes new rows."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError, TopologyError
from millstream.testing import TopologyTestDriver
from unit.helpers import Quiet

STRING, INT64 = ms.serdes.string, ms.serdes.int64


class Numbered(ms.ValueTransformer[str, str, str]):
    """Appends the number of changes of a row to its value; deletes the row for the value `gone`."""

    def transform(self, key: str, value: str | None) -> str | None:
        changes = self.context.state_store("changes")
        number = (changes.get(key) or 0) + 1
        changes.put(key, number)
        return None if value == "gone" else f"{value}{number}"


def with_store() -> ms.StreamsBuilder:
    return ms.StreamsBuilder().add_state_store(ms.stores.key_value("changes", STRING, INT64))


def send_changes(table: ms.KTable[Any, Any]) -> None:
    table.to_stream().to("out")


def test_the_transformer_is_called_for_every_change_including_deletions() -> None:
    builder = with_store()
    numbered = builder.table("in").transform_values(Numbered, stores=["changes"], store="numbered")
    send_changes(numbered)
    with TopologyTestDriver(builder.build()) as driver:
        for value, timestamp in (("a", 1), (None, 2), ("gone", 3), ("b", 4)):
            driver.pipe("in", "k", value, timestamp)
        assert [(r.value, r.timestamp) for r in driver.read("out")] == [
            ("a1", 1),
            ("None2", 2),
            (None, 3),
            ("b4", 4),
        ]
        assert driver.store("numbered").get("k") == ("b4", 4)


def test_downstream_operators_receive_the_old_result() -> None:
    builder = with_store()
    numbered = builder.table("in").transform_values(Numbered, stores=["changes"], store="numbered")
    counts = numbered.group_by(lambda key, value: (value, value)).count(store="counts")
    send_changes(counts.map_values(str))
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "k", "a")
        driver.pipe("in", "k", "a")
        assert [(r.key, r.value) for r in driver.read("out")] == [("a1", "1"), ("a1", "0"), ("a2", "1")]


def test_a_join_finds_the_transformed_rows() -> None:
    builder = with_store()
    numbered = builder.table("in").transform_values(Numbered, stores=["changes"], store="numbered")
    builder.stream("stream").join(numbered, lambda value, row: f"{value} {row}").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "k", "a")
        driver.pipe("stream", "k", "x")
        assert [record.value for record in driver.read("out")] == ["x a1"]


def test_a_transformer_cannot_forward_records() -> None:
    class Forwards(ms.ValueTransformer[str, str, str]):
        def transform(self, key: str, value: str | None) -> str | None:
            self.context.forward(ms.Record(key, value, 0))
            return value

    builder = ms.StreamsBuilder()
    send_changes(builder.table("in").transform_values(Forwards))
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(ProcessingError, match="a row has one value: return it"):
        driver.pipe("in", "k", "a")


def test_the_supplier_must_create_transformers() -> None:
    builder = ms.StreamsBuilder()
    supplier: Any = Numbered()
    with pytest.raises(TopologyError, match="supplier must be callable"):
        builder.table("in").transform_values(supplier)
    # Quiet lacks the method, which a type checker also finds.
    send_changes(builder.table("in2").transform_values(Quiet))  # type: ignore[arg-type, return-value]
    with pytest.raises(
        TopologyError, match=r"which has no transform\(\); derive its class from millstream.ValueT"
    ):
        TopologyTestDriver(builder.build())


def test_a_table_knows_the_name_of_its_store() -> None:
    builder = with_store()
    table = builder.table("in", store="rows")
    assert table.store_name == "rows"
    assert table.filter(lambda key, value: True).store_name is None
    assert table.filter(lambda key, value: True, store="kept").store_name == "kept"
    assert table.transform_values(Numbered, stores=["changes"], store="numbered").store_name == "numbered"


def test_a_transformer_reads_its_own_store() -> None:
    class Chain(ms.ValueTransformer[str, str, str]):
        def transform(self, key: str, value: str | None) -> str:
            before = self.context.state_store("chained").get(key)
            return f"{before.value if before else ''}{value}"

    builder = ms.StreamsBuilder()
    builder.table("in").transform_values(Chain, store="chained").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for value in "abc":
            driver.pipe("in", "k", value)
        assert [record.value for record in driver.read("out")] == ["a", "ab", "abc"]
