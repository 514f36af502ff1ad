"""Columns: invalid records that only the store or a serde detects, and the order of records."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.task import Task
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.state.memory import MemoryStores
from unit.helpers import columnar, records, sent, values


def counting() -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts").to_stream().to("out", value=ms.serdes.json)
    return builder.build()


def task_over(stores: MemoryStores) -> Task:
    (sub,) = counting().plan("app").subtopologies
    skip = ErrorPolicies(process="skip")
    task = Task(sub, TaskId(0, 0), application_id="app", stores=stores, policies=skip)
    task.init(0)
    return task


def test_a_store_entry_that_cannot_be_read_fails_only_its_records() -> None:
    stores = MemoryStores()
    stores.apply({"counts": [(b"b", b"short")]})
    task = task_over(stores)
    rows = [("a", "x", 1), ("b", "x", 2), ("a", "x", 3), ("b", "x", 4)]
    task.feed(TopicPartition("in", 0), records(rows), 4)
    outcome = task.step(0)
    assert sent(outcome) == [("a", "1", 1), ("a", "2", 3)]
    assert outcome.metrics.dropped == {"process error": 2}
    assert ["offset 1" in outcome.notices[0], "offset 3" in outcome.notices[1]] == [True, True]
    assert [key for key, _ in outcome.changes["counts"]] == [b"a"]


def test_a_count_continues_from_the_stored_count() -> None:
    stores = MemoryStores()
    for expected in (1, 2):
        task = task_over(stores)
        task.feed(TopicPartition("in", 0), records([("a", "x", 10 - expected)]), expected)
        outcome = task.step(0)
        stores.apply(outcome.changes)
        assert sent(outcome) == [("a", str(expected), 9)]


@pytest.mark.parametrize(
    ("serde", "good", "bad"),
    [
        (ms.serdes.string, ["", "ü", "a\nb"], [b"\xff", b"\xc3", b"\xbc"]),
        (ms.serdes.int64, [0, -1, 1 << 62], [b"", b"1234567", b"123456789"]),
        (ms.serdes.bytes, [b"", b"\xff"], ["text"]),
    ],
    ids=["string", "int64", "bytes"],
)
def test_a_verbatim_serde_rejects_data_that_it_cannot_deserialize(
    serde: ms.Serde, good: list[object], bad: list[bytes]
) -> None:
    written = [serde.serialize(value) for value in good]
    assert serde.verbatim is not None
    serde.verbatim([])
    serde.verbatim(written)
    assert [serde.serialize(serde.deserialize(data)) for data in written] == written
    for data in bad:
        with pytest.raises((ValueError, TypeError)):
            serde.verbatim([*written, data, *written])


def test_records_of_two_sources_are_processed_in_the_order_of_time() -> None:
    builder = ms.StreamsBuilder()
    number = ms.serdes.int64
    plain, negated = builder.stream("plain", value=number), builder.stream("negated", value=number)
    both = plain.merge(negated.map_values(0 - ms.col()))
    both.group_by_key(value=number).sum(store="sums").to_stream().to("out", value=ms.serdes.json)
    topology = builder.build()
    assert len(columnar(topology)) == 2
    (sub,) = topology.plan("app").subtopologies
    task = Task(sub, TaskId(0, 0), application_id="app", stores=MemoryStores())
    task.init(0)
    for topic, times in (("plain", (1, 4, 5)), ("negated", (2, 3, 6))):
        rows = [("k", number.serialize(10**timestamp), timestamp) for timestamp in times]
        task.feed(TopicPartition(topic, 0), records(rows), 3)
    expected = [10, -90, -1_090, 8_910, 108_910, -891_090]
    assert sent(task.step(0)) == [
        ("k", str(total), timestamp) for timestamp, total in enumerate(expected, start=1)
    ]


def test_a_stream_that_updates_its_joined_table_finds_the_row_as_of_each_record() -> None:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by_key().count(store="counts")
    counts.to_stream().join(counts, lambda count, row: f"{count} {row}").to("out")
    topology = builder.build()
    (sub,) = topology.plan("app").subtopologies
    task = Task(sub, TaskId(0, 0), application_id="app", stores=MemoryStores())
    task.init(0)
    task.feed(TopicPartition("in", 0), records([("a", "x", 1), ("a", "x", 2)]), 2)
    assert values(task.step(0)) == ["1 1", "2 2"]
    assert columnar(topology) == []
