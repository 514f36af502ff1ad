"""Topics with several partitions in the test driver, and inputs that a task waits for or that are held back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import CoPartitioningError, SettingsError, StoreError, TopicNotFoundError
from millstream.core.model.partitioning import partition_of
from unit.helpers import processing, processor_topology

Driver = ms.testing.TopologyTestDriver
INT = ms.serdes.int64
KEYS = [f"k{number}" for number in range(20)]
PARTITIONS = {key: partition_of(key.encode(), 4) for key in KEYS}


def locating_topology(**options: Any) -> ms.Topology:
    """Forward each record with its partition, its offset and its task as the value."""

    def forward_location(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
        metadata = context.record_metadata
        assert metadata is not None
        context.forward(record.with_value(f"{metadata.partition}@{metadata.offset} in {context.task_id}"))

    return processor_topology(processing(forward_location), **options)


def counts(**repartition: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in").select_key(lambda key, value: value)
    if repartition:
        stream = stream.repartition(name="again", **repartition)
    stream.group_by_key().count(store="counts").to_stream().to("out", value=INT)
    return builder.build()


class TestPartitions:
    def test_keys_are_partitioned_as_by_java_producers(self) -> None:
        assert set(PARTITIONS.values()) == {0, 1, 2, 3}
        with Driver(locating_topology(), partitions=4) as driver:
            for key in KEYS:
                driver.pipe("in", key, "v")
            received = {record.key: record.value for record in driver.read("out")}
            assert {key: int(value[0]) for key, value in received.items()} == PARTITIONS
            assert all(value.endswith(f"in 0_{PARTITIONS[key]}") for key, value in received.items())
            assert {p: driver.committed_offset("in", p) for p in range(4)} == {
                p: list(PARTITIONS.values()).count(p) for p in range(4)
            }

    def test_records_without_a_key_are_distributed_round_robin(self) -> None:
        with Driver(locating_topology(), partitions={"in": 3}) as driver:
            for _ in range(4):
                driver.pipe("in", None, "v")
            assert [record.value for record in driver.read("out")] == [
                "0@0 in 0_0",
                "1@0 in 0_1",
                "2@0 in 0_2",
                "0@1 in 0_0",
            ]

    def test_a_record_may_be_piped_into_a_chosen_partition(self) -> None:
        with Driver(locating_topology(), partitions=4) as driver:
            driver.pipe("in", "k0", "v", partition=3)
            driver.input_topic("in").pipe("k0", "v", partition=3)
            assert [record.value for record in driver.read("out")] == ["3@0 in 0_3", "3@1 in 0_3"]

    @pytest.mark.parametrize("partition", [4, -1, "1"])
    def test_that_do_not_exist_are_refused(self, partition: Any) -> None:
        with Driver(locating_topology(), partitions=4) as driver:
            for use in (
                lambda: driver.pipe("in", "k", "v", partition=partition),
                lambda: driver.committed_offset("in", partition),
            ):
                with pytest.raises(
                    TopicNotFoundError, match=f"'in' has no partition {partition!r}; it has 4"
                ):
                    use()

    def test_each_topic_has_one_partition_unless_the_driver_is_given_more(self) -> None:
        with Driver(counts(partitions=8)) as driver:
            for key in KEYS:
                driver.pipe("in", None, key)
            assert driver.store("counts").get("k3") == (1, 0)

    @pytest.mark.parametrize(("repartition", "tasks"), [({}, 3), ({"partitions": 8}, 8)])
    def test_a_repartition_topic_has_its_own_number_of_partitions(self, repartition: Any, tasks: int) -> None:
        with Driver(counts(**repartition), partitions={"in": 3}) as driver:
            for key in [*KEYS, *KEYS]:
                driver.pipe("in", None, key)
            assert driver.output_topic("out").read_as_table() == dict.fromkeys(KEYS, 2)
            for number in range(tasks):
                own_keys = [key for key in KEYS if partition_of(key.encode(), tasks) == number]
                assert [key for key, _ in driver.store("counts", partition=number).all()] == sorted(own_keys)
                assert list(driver.stores(partition=number)) == ["counts"]

    def test_a_store_of_several_tasks_must_be_requested_with_a_partition(self) -> None:
        with Driver(counts(), partitions=3) as driver:
            for use in (lambda: driver.store("counts"), driver.stores):
                with pytest.raises(StoreError, match=r"'counts' is in 3 tasks.* give partition=0 to 2"):
                    use()
            with pytest.raises(
                StoreError, match=r"'counts' is in no task of partition 3, but in those of \[0, 1, 2\]"
            ):
                driver.store("counts", partition=3)

    def test_a_partitioner_receives_the_number_of_partitions(self) -> None:
        seen: list[int] = []
        builder = ms.StreamsBuilder()
        builder.stream("in").to("out", partitioner=lambda topic, k, v, partitions: seen.append(partitions))
        with Driver(builder.build(), partitions={"out": 5}) as driver:
            driver.pipe("in", "k", "v")
        assert seen == [5]

    def test_a_partitioner_chooses_the_partitions_of_a_topic_that_is_read_again(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").to("between", partitioner=lambda topic, k, v, partitions: [0, 2])
        builder.stream("between").process(_ForwardingPartition).to("out")
        with Driver(builder.build(), partitions={"between": 3}) as driver:
            driver.pipe("in", "k", "v")
            assert [record.value for record in driver.read("out")] == ["0", "2"]

    def test_joined_topics_need_equal_numbers_of_partitions(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("a").join(builder.table("b"), lambda a, b: a + b).to("out")
        with pytest.raises(CoPartitioningError):
            Driver(builder.build(), partitions={"a": 2})

    def test_a_global_table_has_the_rows_of_all_partitions(self) -> None:
        builder = ms.StreamsBuilder()
        builder.global_table("rates", store="rates")
        builder.stream("in").to("out")
        with Driver(builder.build(), partitions=4) as driver:
            for key in KEYS:
                driver.pipe("rates", key, key)
            assert sum(1 for _ in driver.store("rates").all()) == len(KEYS)

    def test_a_topic_of_a_pattern_has_its_own_number_of_partitions(self) -> None:
        builder = ms.StreamsBuilder()
        stream = builder.stream(re.compile("in-.*"))
        stream.group_by(lambda key, value: value).count(store="counts").to_stream().to("out", value=INT)
        with Driver(builder.build(), partitions={"in-a": 3}) as driver:
            for topic in ("in-a", "in-b"):
                for key in KEYS:
                    driver.pipe(topic, key, key)
            assert driver.output_topic("out").read_as_table() == dict.fromkeys(KEYS, 2)

    @pytest.mark.parametrize("partitions", [0, -1, 1.5, "2", {"in": 0}])
    def test_numbers_of_partitions_must_be_whole_and_positive(self, partitions: Any) -> None:
        with pytest.raises(SettingsError, match=r"^partitions=.* whole number of partitions, at least 1"):
            Driver(locating_topology(), partitions=partitions)

    def test_of_a_topic_that_is_neither_read_nor_written_are_refused(self) -> None:
        with pytest.raises(
            SettingsError, match="names 'im', which the topology neither reads nor writes; it does: in, out"
        ):
            Driver(locating_topology(), partitions={"im": 2})


class _ForwardingPartition(ms.Processor[str, str, str, str]):
    def process(self, record: ms.Record[str, str]) -> None:
        self.context.forward(record.with_value(str(self.context.task_id.partition)))


def merged() -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).process(_Forwarding).to("out")
    return builder.build()


class _Forwarding(ms.Processor[str, str, str, str]):
    def process(self, record: ms.Record[str, str]) -> None:
        self.context.forward(record)


class TestWaiting:
    def read_timestamps(self, driver: Driver) -> list[int]:
        return [record.timestamp for record in driver.read("out")]

    def test_a_task_does_not_wait_without_max_task_idle_ms(self) -> None:
        with Driver(merged()) as driver:
            driver.hold("b")
            driver.pipe("b", "k", "v", 1)
            driver.pipe("a", "k", "v", 2)
            assert (self.read_timestamps(driver), driver.waiting()) == ([2], {})
            assert "enforced_records" not in driver.metrics()
            driver.release("b")
            assert self.read_timestamps(driver) == [1]

    def test_a_task_waits_for_an_input_that_is_held_back(self) -> None:
        with Driver(merged(), max_task_idle_ms=0) as driver:
            driver.hold("b")
            driver.pipe("b", "k", "v", 1)
            for timestamp in (2, 3):
                driver.pipe("a", "k", "v", timestamp)
            driver.advance_wall_clock(timedelta(days=1))
            assert self.read_timestamps(driver) == []
            assert driver.waiting() == {
                "0_0": "waits for b-0, which is empty here and has more records on the broker"
            }
            assert driver.committed_offset("a") == 0
            driver.release("b")
            assert (self.read_timestamps(driver), driver.waiting()) == ([1, 2, 3], {})
            assert (driver.committed_offset("a"), driver.metrics()["enforced_records"]) == (2, 2)

    def test_a_task_waits_for_an_empty_input_until_max_task_idle_ms_have_passed(self) -> None:
        with Driver(merged(), max_task_idle_ms=500) as driver:
            driver.pipe("a", "k", "v", 2)
            driver.advance_wall_clock(499)
            assert self.read_timestamps(driver) == []
            driver.pipe("b", "k", "v", 1)
            assert self.read_timestamps(driver) == [1]
            driver.advance_wall_clock(500)
            assert (self.read_timestamps(driver), driver.metrics()["enforced_records"]) == ([2], 1)

    def test_waiting_records_outlive_their_micro_batch(self) -> None:
        with Driver(merged(), max_task_idle_ms=500, keep_processors=False) as driver:
            for timestamp in range(5):
                driver.pipe("a", "k", "v", timestamp)
            assert self.read_timestamps(driver) == []
            driver.pipe("b", "k", "v", 9)
            assert self.read_timestamps(driver) == [0, 1, 2, 3, 4]

    def test_a_task_does_not_wait_if_max_task_idle_ms_is_minus_one(self) -> None:
        with Driver(merged(), max_task_idle_ms=-1) as driver:
            driver.pipe("a", "k", "v", 2)
            assert (self.read_timestamps(driver), driver.waiting()) == ([2], {})

    def test_a_task_waits_for_a_topic_that_feeds_its_input_through_a_repartition(self) -> None:
        builder = ms.StreamsBuilder()
        again = builder.stream("b").select_key(lambda key, value: value).repartition(name="again")
        builder.stream("a").merge(again).process(_Forwarding).to("out")
        with Driver(builder.build(), max_task_idle_ms=0) as driver:
            driver.hold("b")
            driver.pipe("b", "k", "v", 1)
            driver.pipe("a", "k", "v", 2)
            assert self.read_timestamps(driver) == []
            driver.release("b")
            assert self.read_timestamps(driver) == [1, 2]

    def test_records_through_the_shuffle_arrive_in_the_same_micro_batch(self) -> None:
        builder = ms.StreamsBuilder()
        again = builder.stream("b").select_key(lambda key, value: value).repartition(name="again")
        builder.stream("a").merge(again).process(_Forwarding).to("out")
        with Driver(builder.build(), commit_every=3) as driver:
            for topic, timestamp in (("a", 2), ("b", 1), ("b", 3)):
                driver.pipe(topic, "k", "v", timestamp)
            assert self.read_timestamps(driver) == [1, 2, 3]

    def test_each_task_waits_independently(self) -> None:
        with Driver(merged(), max_task_idle_ms=0, partitions=2) as driver:
            driver.hold("b")
            driver.pipe("b", "k", "v", 1, partition=1)
            for partition in (0, 1):
                driver.pipe("a", "k", "v", 2 + partition, partition=partition)
            assert (self.read_timestamps(driver), list(driver.waiting())) == ([2], ["0_1"])

    def test_a_topic_that_is_not_read_cannot_be_held_back(self) -> None:
        with Driver(merged()) as driver, pytest.raises(TopicNotFoundError, match="does not read topic 'c'"):
            driver.hold("c")

    @pytest.mark.parametrize("idle", [-2, 1.5, "1"])
    def test_max_task_idle_ms_must_be_a_whole_number(self, idle: Any) -> None:
        with pytest.raises(SettingsError, match=r"^max_task_idle_ms=.* whole number of ms"):
            Driver(merged(), max_task_idle_ms=idle)


def test_the_number_of_partitions_does_not_change_results() -> None:
    tables: list[Mapping[str, int]] = []
    for partitions in (None, 1, 4):
        with Driver(counts(), partitions=partitions) as driver:
            for number in range(100):
                driver.pipe("in", f"k{number % 7}", KEYS[number % 13])
            tables.append(driver.output_topic("out").read_as_table())
    assert tables[0] == tables[1] == tables[2]
