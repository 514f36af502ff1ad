"""Sinks: fixed topics, chosen topics, chosen partitions."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.step_outcome import Outcome
from millstream.core.engine.task import Task
from millstream.core.model.errors import ProductionError
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.partitioning import partition_of
from millstream.core.state.memory import MemoryStores
from unit import helpers
from unit.helpers import Host, sent


def sending(**sink: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").to(**sink)
    return builder.build()


def test_a_function_names_the_topic_of_each_record() -> None:
    outcome = Host(sending(topic=lambda key, value, context: f"to-{key}")).run(
        "in", ("a", "1", 0), ("b", "2", 0), ("a", "3", 0)
    )
    assert (sent(outcome, "to-a"), sent(outcome, "to-b")) == ([("a", "1", 0), ("a", "3", 0)], [("b", "2", 0)])


def test_the_topic_function_receives_the_origin_of_the_record() -> None:
    seen: list[ms.RecordContext] = []

    def topic(key: Any, value: Any, context: ms.RecordContext) -> str:
        seen.append(context)
        return "out"

    host = Host(sending(topic=topic))
    host.feed("in", [("a", "1", 3, (("h", b"x"),))], partition=4)
    host.step()
    assert seen == [ms.RecordContext("in", 4, 0, 3, (("h", b"x"),))]


def test_a_chosen_topic_that_is_not_a_name_is_a_production_error() -> None:
    with pytest.raises(
        ProductionError, match=r"offset 0 .*\. Correct the function that chooses the topic, or set "
    ):
        Host(sending(topic=lambda key, value, context: None)).run("in", ("a", "1", 0))


def test_the_error_of_a_failing_partitioner_advises_to_correct_it() -> None:
    def raises(topic: str, key: Any, value: Any, partitions: int) -> int:
        raise LookupError("no such region")

    for partitioner in (raises, lambda topic, key, value, partitions: 99):
        with pytest.raises(ProductionError, match=r"topic 'out': .*\. Correct the partitioner, or set "):
            Host(sending(topic="out", partitioner=partitioner), partitions={"out": 4}).run(
                "in", ("a", "1", 0)
            )


def test_the_error_for_a_key_that_does_not_fit_advises_to_set_serdes() -> None:
    topology = sending(topic="out", key=ms.serdes.int64, partitioner=lambda *_: 0)
    with pytest.raises(ProductionError, match=r"\. Set serdes that fit the records on the sink, or set "):
        Host(topology).run("in", ("a", "1", 0))


def test_a_partitioner_chooses_a_partition_or_leaves_the_choice_to_the_key() -> None:
    partitioner_calls: list[Any] = []

    def partitioner(topic: str, key: Any, value: Any, partitions: int) -> int | None:
        partitioner_calls.append((topic, key, value, partitions))
        return None if key is None else int(value) % partitions

    host = Host(sending(topic="out", partitioner=partitioner), partitions={"out": 4})
    ((topic, columns),) = host.run("in", ("a", "5", 0), (None, "6", 0)).sends
    assert (topic, columns.partitions, columns.values) == ("out", [1, -1], [b"5", b"6"])
    assert partitioner_calls == [("out", "a", "5", 4), ("out", None, "6", 4)]


def test_a_partitioner_may_choose_several_partitions_or_none() -> None:
    chosen: dict[str, Any] = {"all": range(3), "twice": [1, 1], "none": [], "key": None}
    host = Host(sending(topic="out", partitioner=lambda t, k, v, n: chosen[v]), partitions={"out": 3})
    outcome = host.run("in", *(("a", value, 0) for value in chosen))
    ((_, columns),) = outcome.sends
    placed = [*zip(columns.values, columns.partitions or [], strict=True)]
    assert placed == [(b"all", 0), (b"all", 1), (b"all", 2), (b"twice", 1), (b"key", -1)]
    assert outcome.metrics.dropped == {"no partition chosen": 1}


@pytest.mark.parametrize("choice", [3, -1, [0, 3], "x"])
def test_a_partition_that_the_topic_does_not_have_is_a_production_error(choice: Any) -> None:
    host = Host(sending(topic="out", partitioner=lambda t, k, v, n: choice), partitions={"out": 3})
    with pytest.raises(ProductionError, match=r"of topic 'out', which has the partitions 0 to 2"):
        host.run("in", ("a", "x", 0))


def test_topic_and_partition_can_both_be_chosen() -> None:
    host = Host(
        sending(topic=lambda k, v, c: k, partitioner=lambda t, k, v, n: n - 1), partitions={"x": 3, "y": 5}
    )
    sends = dict(host.run("in", ("x", "1", 0), ("y", "2", 0)).sends)
    assert {topic: columns.partitions for topic, columns in sends.items()} == {"x": [2], "y": [4]}


def test_without_a_partitioner_the_partition_is_chosen_later_by_the_key() -> None:
    ((_, columns),) = Host(sending(topic="out")).run("in", ("a", "1", 0)).sends
    assert columns.partitions is None


def test_two_sinks_of_one_topic_keep_the_order_of_forwarding() -> None:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    stream.to("out")
    stream.map_values(str.upper).to("out")
    outcome = Host(builder.build()).run("in", ("k", "a", 0), ("k", "b", 0))
    assert [value for _, value, _ in sent(outcome)] == ["a", "A", "b", "B"]


WINDOWS = [(key, start) for key in ("a", "bb", "ccc") for start in range(0, 50, 10)]


def windowed_counts(windows: Any, to: Any, name: str = "sessions") -> ms.Topology:
    builder = ms.StreamsBuilder()
    windowed = builder.stream("in").group_by_key().windowed_by(windows)
    windowed.count(store=name).to_stream().to(to, value=ms.serdes.int64)
    return builder.build()


@pytest.mark.parametrize(
    ("windows", "window_bytes"),
    [
        (ms.TumblingWindows(10, grace=1000), 8),
        (ms.SessionWindows(5, grace=1000), 16),
        (ms.SlidingWindows(5, grace=1000), 8),
    ],
    ids=["tumbling, in columns", "sessions", "sliding"],
)
@pytest.mark.parametrize(
    "to", ["out", lambda key, value, context: "out"], ids=["fixed topic", "chosen topic"]
)
def test_all_windows_of_a_key_go_to_the_partition_of_the_key(
    windows: Any, window_bytes: int, to: Any
) -> None:
    host = Host(windowed_counts(windows, to), partitions={"out": 5})
    sends = host.run("in", *((key, "v", start) for key, start in WINDOWS)).sends
    partitions_of_key: dict[bytes, set[int]] = {}
    for topic, records in sends:
        assert topic == "out"
        for key, partition in zip(records.keys, records.partitions or [], strict=True):
            partitions_of_key.setdefault((key or b"")[:-window_bytes], set()).add(partition)
    assert partitions_of_key == {key.encode(): {partition_of(key.encode(), 5)} for key in ("a", "bb", "ccc")}


def test_windowed_keys_of_a_topic_with_unknown_partitions_are_left_to_the_producer() -> None:
    host = Host(windowed_counts(ms.TumblingWindows(10, grace=0), "out"))
    assert [records.partitions for _, records in host.run("in", ("a", "v", 0)).sends] == [None]


def test_a_null_windowed_key_may_go_to_any_partition() -> None:
    key = ms.serdes.time_windowed(ms.serdes.string, 10)
    builder = ms.StreamsBuilder()
    builder.stream("in").select_key(lambda k, v: ms.Windowed(k, 0, 10) if v == "v" else None).to(
        "out", key=key
    )
    host = Host(builder.build(), partitions={"out": 5})
    ((_, records),) = host.run("in", ("a", "v", 0), ("a", "null", 0)).sends
    assert records.partitions == [partition_of(b"a", 5), -1]


def test_a_partitioner_and_a_sink_of_the_processor_api_see_the_whole_windowed_key() -> None:
    key = ms.serdes.time_windowed(ms.serdes.string, 10)
    builder = ms.StreamsBuilder()
    builder.stream("in", key=key).to("out", partitioner=lambda topic, k, v, n: k.start % n)
    topology = builder.build()
    topology.add_sink("plain", "plain", "KSTREAM-SOURCE-0000000000", key=key)
    host = Host(topology, partitions={"out": 5, "plain": 5})
    outcome = host.run("in", (key.serialize(ms.Windowed("a", 3, 13)), "v", 0))
    assert {topic: records.partitions for topic, records in outcome.sends} == {"out": [3], "plain": None}


def test_windowed_and_other_keys_can_share_a_topic() -> None:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    counts = stream.group_by_key().windowed_by(ms.TumblingWindows(10, grace=0)).count(store="c")
    counts.to_stream().to("out", value=ms.serdes.int64)
    stream.to("out")
    outcome = Host(builder.build(), partitions={"out": 5}).run("in", ("a", "v", 0), ("a", "v", 1))
    assert [(len(records), records.partitions) for _, records in outcome.sends] == [
        (2, None),
        (2, [partition_of(b"a", 5)] * 2),
    ]


class TestRecordsThatAreTooLarge:
    """For every kind of sink, the error policy decides before a record is handed to the producer."""

    ROWS = (("a", "x" * 50, 1), ("b", "x" * 500, 2), ("c", "y" * 50, 3))

    def step(self, topology: ms.Topology, policies: ErrorPolicies, *rows: Any) -> Outcome:
        (sub,) = topology.plan("app").subtopologies
        task = Task(
            sub,
            TaskId(0, 0),
            application_id="app",
            stores=MemoryStores(),
            policies=policies,
            partitions_of=lambda topic: 1,
            most_bytes_of={"out": 400, "dead": 0}.__getitem__,
        )
        task.init(0)
        task.feed(TopicPartition("in", 0), helpers.records(rows), len(rows))
        try:
            return task.step(0)
        finally:
            task.close()

    @pytest.mark.parametrize(
        "topology",
        [
            sending(topic="out"),
            sending(topic=lambda key, value, context: "out"),
            sending(topic="out", partitioner=lambda topic, key, value, partitions: 0),
        ],
        ids=["columns", "a topic that is chosen", "a partition that is chosen"],
    )
    def test_are_handled_by_the_error_policy(self, topology: ms.Topology) -> None:
        outcome = self.step(topology, ErrorPolicies(produce="skip"), *self.ROWS)
        assert [key for key, _, _ in sent(outcome)] == ["a", "c"]
        assert outcome.metrics.dropped == {"produce error": 1}
        assert "the record has 601 bytes, but topic 'out' accepts at most 400" in outcome.notices[0]

        outcome = self.step(
            topology, ErrorPolicies(produce="dead_letter", dead_letter_topic="dead"), *self.ROWS
        )
        assert [key for key, _, _ in sent(outcome)] == ["a", "c"]
        assert [key for key, _, _ in sent(outcome, "dead")] == ["b"]

        with pytest.raises(
            ProductionError, match=r"offset 1 .* 601 bytes.*raise the producer setting message\.max\.bytes"
        ):
            self.step(topology, ErrorPolicies(), *self.ROWS)

    def test_are_also_detected_by_their_headers(self) -> None:
        rows = [("a", "x", 1, (("h", b"x" * 50),)), ("b", "x", 2, (("h", b"x" * 500),))]
        outcome = self.step(sending(topic="out"), ErrorPolicies(produce="skip"), *rows)
        assert [key for key, _, _ in sent(outcome)] == ["a"]

    def test_are_detected_per_record_although_two_records_have_a_large_key_and_value(self) -> None:
        outcome = self.step(sending(topic="out"), ErrorPolicies(), ("k" * 250, "x", 1), ("b", "x" * 250, 2))
        assert len(sent(outcome)) == 2

    def test_are_passed_to_the_handler_with_the_target_topic(self) -> None:
        seen: list[ms.ErrorContext] = []

        def handler(context: ms.ErrorContext, error: Exception) -> str:
            seen.append(context)
            return "skip"

        self.step(sending(topic="out"), ErrorPolicies(produce=handler), *self.ROWS)
        assert [(context.target, context.side, context.offset) for context in seen] == [("out", None, 1)]
