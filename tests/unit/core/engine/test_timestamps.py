"""Timestamps: extractors, partition time, and records that have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import DeserializationError, MillstreamError, ProcessingError
from unit.helpers import Host, processing, sent, values

Extractor = Callable[[ms.ConsumerRecord, int], int]


def extracting(extractor: Extractor | None) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in", timestamp=extractor).to("out")
    return builder.build()


def from_value(record: ms.ConsumerRecord, partition_time: int) -> int:
    return int(record.value)


def test_an_extractor_sets_the_timestamp_of_each_record() -> None:
    assert sent(Host(extracting(from_value)).run("in", ("a", "7", 1), ("b", "5", 2))) == [
        ("a", "7", 7),
        ("b", "5", 5),
    ]


def test_an_extractor_sees_the_whole_record() -> None:
    seen: list[Any] = []

    def note(record: ms.ConsumerRecord, partition_time: int) -> int:
        seen.append((record, partition_time))
        return 40

    host = Host(extracting(note))
    host.feed("in", [("k", "v", 3, (("h", b"1"),)), (None, None, 4)], partition=2)
    assert seen == [
        (ms.ConsumerRecord("in", 2, 0, 3, "k", "v", (("h", b"1"),)), -1),
        (ms.ConsumerRecord("in", 2, 1, 4, None, None, ()), 40),
    ]


def test_queues_are_chosen_by_extracted_timestamps() -> None:
    host = Host(extracting(from_value))
    host.feed("in", [(None, "9", 0)])
    host.feed("in", [(None, "1", 5), (None, "10", 5)], partition=1)
    # in-0: [9]
    # in-1: [1, 10]
    assert values(host.step()) == ["1", "9", "10"]


def test_partition_time_is_kept_for_each_partition() -> None:
    """The extractor uses it for records without a time."""

    def or_partition_time(record: ms.ConsumerRecord, partition_time: int) -> int:
        return int(record.value) if record.value else partition_time

    host = Host(extracting(or_partition_time))
    host.feed("in", [("a", "5", 0), ("b", "", 0)])
    host.feed("in", [("c", "9", 0), ("d", "3", 0), ("e", "", 0)], partition=1)
    assert sent(host.step()) == [("a", "5", 5), ("b", "", 5), ("c", "9", 9), ("d", "3", 3), ("e", "", 9)]
    host.restart()
    assert sent(host.run("in", ("f", "", 0))) == [("f", "", 5)]


def test_partition_time_includes_records_that_are_still_queued() -> None:
    host = Host(
        extracting(lambda record, partition_time: int(record.value) if record.value else partition_time)
    )
    host.feed("in", [("a", "5", 0), ("b", "8", 0)])
    host.step(budget=1)
    host.restart()
    host.feed("in", [("c", "", 0)])
    assert sent(host.step()) == [("b", "8", 8), ("c", "", 8)]


@pytest.mark.parametrize("policy", ["fail", "skip", "dead_letter"])
def test_a_negative_timestamp_drops_the_record_under_every_policy(policy: Any) -> None:
    host = Host(
        extracting(from_value), policies=ms.ErrorPolicies(deserialize=policy, dead_letter_topic="dead")
    )
    outcome = host.run("in", ("a", "1", 0), ("b", "-1", 0), ("c", "2", 0))
    assert (values(outcome), outcome.metrics.dropped) == (["1", "2"], {"negative timestamp": 1})
    assert [topic for topic, _ in outcome.sends] == ["out"]
    assert list(outcome.committable.values()) == [3]


def test_a_dropped_record_does_not_move_partition_time() -> None:
    seen: list[int] = []

    def note(record: ms.ConsumerRecord, partition_time: int) -> int:
        seen.append(partition_time)
        return int(record.value)

    Host(extracting(note)).feed("in", [(None, "3", 0), (None, "-9", 0), (None, "1", 0)])
    assert seen == [-1, 3, 3]


class TestWithoutATimestamp:
    def test_the_record_fails(self) -> None:
        with pytest.raises(
            DeserializationError,
            match=r"offset 1 .*: the record has no timestamp\. Set timestamp=\.\.\. on the source to extract one, or set on_",
        ):
            Host(extracting(None)).run("in", ("a", "x", 1), ("b", "y", -1))

    def test_the_record_can_be_skipped(self) -> None:
        host = Host(extracting(None), policies=ms.ErrorPolicies(deserialize="skip"))
        outcome = host.run("in", ("a", "x", 1), ("b", "y", -1), ("c", "z", 2))
        assert (values(outcome), outcome.metrics.dropped) == (["x", "z"], {"deserialize error": 1})

    def test_a_dead_letter_has_time_zero(self) -> None:
        host = Host(extracting(None), policies=ms.ErrorPolicies("dead_letter", dead_letter_topic="dead"))
        assert sent(host.run("in", ("b", "y", -1)), "dead") == [("b", "y", 0)]

    def test_an_extractor_can_supply_one(self) -> None:
        assert sent(Host(extracting(lambda record, time: 9)).run("in", ("b", "y", -1))) == [("b", "y", 9)]


def fails(record: ms.ConsumerRecord, partition_time: int) -> int:
    raise LookupError("no time")


@pytest.mark.parametrize(
    ("extractor", "cause"),
    [
        (fails, "LookupError: no time"),
        (lambda record, time: None, "the timestamp extractor returned"),
        (lambda record, time: 1.5, "the timestamp extractor returned"),
        (lambda record, time: 2**63, "the timestamp extractor returned"),
        (lambda record, time: "12", "the timestamp extractor returned"),
    ],
    ids=["raises", "None", "float", "too large", "text"],
)
class TestAnExtractorThatFails:
    def test_is_reported_with_the_offset_of_the_record(self, extractor: Extractor, cause: str) -> None:
        with pytest.raises(
            MillstreamError,
            match=rf"failed in stage 'deserialize' .* offset 0 .*{cause}.*\. Correct or replace the timestamp extractor, or",
        ):
            Host(extracting(extractor)).run("in", ("a", "x", 1))

    def test_can_be_skipped(self, extractor: Extractor, cause: str) -> None:
        host = Host(extracting(extractor), policies=ms.ErrorPolicies(deserialize="skip"))
        assert host.run("in", ("a", "x", 1)).metrics.dropped == {"deserialize error": 1}


def test_records_without_a_timestamp_can_be_skipped() -> None:
    outcome = Host(extracting(ms.timestamps.skip_invalid)).run("in", ("a", "x", -1), ("b", "y", 2))
    assert (sent(outcome), outcome.metrics.dropped) == ([("b", "y", 2)], {"negative timestamp": 1})


def test_records_without_a_timestamp_can_take_the_partition_time() -> None:
    host = Host(extracting(ms.timestamps.use_partition_time))
    assert sent(host.run("in", ("a", "x", 5), ("b", "y", -1))) == [("a", "x", 5), ("b", "y", 5)]
    with pytest.raises(DeserializationError, match="nor an earlier one of its partition"):
        Host(extracting(ms.timestamps.use_partition_time)).run("in", ("a", "x", -1))


def test_the_wall_clock_extractor_uses_the_time_of_the_micro_batch() -> None:
    host = Host(extracting(ms.timestamps.wall_clock), now_ms=50)
    assert sent(host.run("in", ("a", "x", -1), ("b", "y", 2))) == [("a", "x", 50), ("b", "y", 50)]
    host.step(now_ms=70)
    assert sent(host.run("in", ("a", "x", 99))) == [("a", "x", 70)]


def test_a_processor_of_a_global_store_has_no_stream_time() -> None:
    seen: list[str] = []

    def fill(context: ms.ProcessorContext, record: ms.Record) -> None:
        with pytest.raises(ProcessingError, match="has no stream time"):
            _ = context.stream_time_ms
        seen.append(record.value)

    builder = ms.StreamsBuilder()
    store = ms.stores.key_value("s", ms.serdes.string, ms.serdes.string)
    builder.add_global_store(store, "facts", processing(fill))
    builder.stream("in").to("out")
    with ms.testing.TopologyTestDriver(builder.build()) as driver:
        driver.pipe("facts", "a", "x")
    assert seen == ["x"]
