"""Taps in the engine: they sample the records that reach a node, and do not change results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

import millstream as ms
from millstream.core.asynchronous.call import Done
from millstream.core.engine import record_processing
from millstream.core.engine.compile import Compiled
from millstream.core.engine.step_outcome import Outcome
from millstream.core.taps.samples import KEY_BYTES, MAX_BYTES, MAX_RECORDS, VALUE_BYTES, Sample, TapReport
from unit.helpers import (
    Host,
    Row,
    ShuffledThreads,
    columnar,
    forwarding,
    processing,
    processor_topology,
    values,
)

ROWS: list[Row] = [("a", "1", 10), ("b", "2", 20), ("a", "3", 30)]


def only_report(outcome: Outcome) -> TapReport:
    (report,) = outcome.taps
    return report


def words() -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in", name="read").filter(lambda key, value: value != "2", name="odd")
    stream.map_values(lambda value: {"number": int(value)}, name="parsed").foreach(
        lambda key, value: None, name="end"
    )
    return builder.build()


def counted() -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in", name="read").group_by_key().count(store="counts", name="counted").to_stream(
        name="changes"
    ).to("out", value=ms.serdes.int64, name="sent")
    return builder.build()


def test_samples_contain_the_origin_of_the_records() -> None:
    host = Host(words(), taps=["end"], now_ms=77)
    report = only_report(host.run("in", *ROWS))
    assert report == TapReport(
        "end",
        77,
        2,
        (Sample("in", 0, 0, "a", {"number": 1}, 10), Sample("in", 0, 2, "a", {"number": 3}, 30)),
    )


@pytest.mark.parametrize(("node", "passed"), [("read", 3), ("odd", 3), ("parsed", 2), ("end", 2)])
def test_a_tap_sees_what_reaches_its_node(node: str, passed: int) -> None:
    assert only_report(Host(words(), taps=[node]).run("in", *ROWS)).passed == passed


def test_changes_of_a_table_show_the_new_value() -> None:
    last = Host(counted(), taps=["changes"]).run("in", *ROWS).taps[-1]
    assert [(sample.key, sample.value) for sample in last.samples] == [("a", 1), ("b", 1), ("a", 2)]


def test_headers_are_plain_data() -> None:
    host = Host(words(), taps=["end"])
    host.feed("in", [("a", "1", 10, (("trace", b"x"), ("none", None)))])
    assert only_report(host.step()).samples[0].headers == (("trace", "x"), ("none", None))


def test_many_headers_are_cut() -> None:
    host = Host(words(), taps=["end"])
    host.feed("in", [("a", "1", 10, tuple((f"name{n}", b"x") for n in range(5_000)))])
    sample = only_report(host.step()).samples[0]
    assert sample.cut
    assert len(str(sample.headers)) < 2 * KEY_BYTES


class UnreadableInt(int):
    """A timestamp that JSON would write as invalid text."""

    def __repr__(self) -> str:
        return "odd"


def test_a_sampled_timestamp_is_a_plain_int() -> None:
    topology = processor_topology(
        processing(
            lambda context, record: context.forward(record.with_timestamp(UnreadableInt(record.timestamp)))
        )
    )
    sample = only_report(Host(topology, taps=["sink"]).run("in", ROWS[0])).samples[0]
    assert type(sample.timestamp) is int


def test_only_tapped_nodes_are_wrapped() -> None:
    plain, tapped = Host(words()), Host(words(), taps=["parsed"])

    def wrapped(compiled: Compiled) -> list[str]:
        calls = {**compiled._calls, **compiled.entries}
        return [name for name, call in calls.items() if call.__qualname__.startswith("Compiled._tapped")]

    assert wrapped(plain.task._compiled) == []
    assert wrapped(tapped.task._compiled) == ["parsed"]
    assert plain.run("in", *ROWS).taps == ()


def test_columns_are_sampled_like_records() -> None:
    assert columnar(counted()) == ["read"]
    names = list(Host(counted()).sub.nodes)
    host = Host(counted(), taps=names)
    assert list(host.task._processing.columnar) == ["read"]
    in_columns = host.run("in", *ROWS)
    assert values(in_columns) == values(Host(counted()).run("in", *ROWS))
    with patch.object(record_processing, "columnar_entries", lambda sub, compiled: {}):
        host = Host(counted(), taps=names)
    assert host.run("in", *ROWS).taps == in_columns.taps


def test_a_long_batch_of_columns_is_counted_and_sampled_in_part() -> None:
    host = Host(counted(), taps=["read", "counted"])
    read, count = host.run("in", *[("a", "v", n) for n in range(3 * MAX_RECORDS)]).taps
    assert (read.passed, len(read.samples)) == (count.passed, len(count.samples)) == (300, MAX_RECORDS)


def test_records_that_a_serde_cannot_read_are_counted() -> None:
    def refuse(data: bytes) -> bytes:
        raise LookupError("unreadable")

    serde = replace(ms.serdes.string, deserialize=refuse)
    builder = ms.StreamsBuilder()
    grouped = builder.stream("in", key=serde, value=serde, name="read").group_by_key()
    grouped.count(store="counts").to_stream().to("out", value=ms.serdes.int64)
    assert columnar(builder.build()) == ["read"]
    host = Host(builder.build(), taps=["read"])
    report = only_report(host.run("in", *ROWS))
    assert (report.passed, report.samples) == (3, ())


def test_a_task_samples_a_limited_number_of_records_and_counts_the_others() -> None:
    host = Host(words(), taps=["read"])
    rows: list[Row] = [("a", str(n), n) for n in range(MAX_RECORDS)]
    first = only_report(host.run("in", *rows))
    again = only_report(host.run("in", *rows))
    assert (first.passed, len(first.samples)) == (MAX_RECORDS, MAX_RECORDS)
    assert (again.passed, again.samples) == (MAX_RECORDS, ())


def test_a_task_samples_a_limited_number_of_bytes() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in", name="read").foreach(lambda key, value: None, name="end")
    host = Host(builder.build(), taps=["read", "end"])
    taps = host.run("in", *[("a", "2" * 2 * VALUE_BYTES, n) for n in range(MAX_RECORDS)]).taps
    samples = [sample for tap in taps for sample in tap.samples]
    assert MAX_BYTES // VALUE_BYTES - 2 <= len(samples) <= MAX_BYTES // VALUE_BYTES
    assert all(sample.cut and len(sample.value) <= VALUE_BYTES + 1 for sample in samples)
    assert [tap.passed for tap in taps] == [MAX_RECORDS] * 2


def test_a_value_that_is_changed_in_place_is_shown_as_it_was() -> None:
    builder = ms.StreamsBuilder()
    lists = builder.stream("in").map_values(lambda value: [value])
    lists.foreach(lambda key, value: value.append("late"), name="changing")
    assert only_report(Host(builder.build(), taps=["changing"]).run("in", ROWS[0])).samples[0].value == ["1"]


class Unshowable:
    """A value that cannot be shown."""

    def __str__(self) -> str:
        raise LookupError("no text")


def test_a_value_that_cannot_be_shown_is_replaced_by_a_placeholder() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(lambda value: Unshowable()).foreach(lambda key, value: None, name="end")
    sample = only_report(Host(builder.build(), taps=["end"]).run("in", ROWS[0])).samples[0]
    assert sample.value == "<Unshowable without a text: LookupError>"


def test_a_record_that_a_punctuator_forwards_has_no_origin() -> None:
    def init(context: ms.ProcessorContext[Any, Any]) -> None:
        context.schedule(5, ms.wall_clock, lambda now_ms: context.forward(ms.Record("k", "tick", now_ms)))

    topology = processor_topology(processing(lambda context, record: None, init=init))
    host = Host(topology, taps=["sink"])
    assert only_report(host.step(now_ms=5)).samples == (Sample(None, -1, -1, "k", "tick", 5),)


def test_processors_can_be_tapped() -> None:
    host = Host(
        processor_topology(forwarding(lambda context, record: f"{record.value}!")), taps=["worker", "sink"]
    )
    worker, sink = host.run("in", ROWS[0]).taps
    assert (worker.samples[0].value, sink.samples[0].value) == ("1", "1!")


def failing(value: str) -> str:
    if value == "2":
        raise ValueError("two")
    return value


def again(context: ms.ErrorContext, error: Exception) -> Any:
    return "retry" if context.attempt < 3 else "skip"


def test_a_retried_record_is_counted_once() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(failing, name="failing").to("out", name="sent")
    host = Host(builder.build(), taps=["failing", "sent"], policies=ms.ErrorPolicies(process=again))
    assert {tap.node: tap.passed for tap in host.run("in", *ROWS).taps} == {"failing": 3, "sent": 2}


def test_threads_sample_in_the_order_of_the_records() -> None:
    def build() -> ms.Topology:
        builder = ms.StreamsBuilder()
        stream = builder.stream("in", name="read").map_values(lambda value: value + "!", name="mapped")
        stream.group_by_key().count(store="counts", name="counted").to_stream(name="changes").to(
            "out", value=ms.serdes.int64, name="sent"
        )
        return builder.build()

    rows: list[Row] = [("ab"[n % 2], str(n), n) for n in range(50)]
    names = list(Host(build()).sub.nodes)
    alone = Host(build(), taps=names).run("in", *rows)
    together = Host(build(), taps=names, threads=ShuffledThreads(3)).run("in", *rows)
    assert together.taps == alone.taps
    assert len(alone.taps) == len(names)
    assert values(together) == values(alone)


def test_the_result_of_a_call_has_the_origin_of_its_record() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values_async(str.upper, name="asked").to("out", name="sent")
    host = Host(builder.build(), taps=["asked", "sent"])
    outcome = host.run("in", ("k", "a", 1), ("l", "b", 2))
    assert [sample.value for sample in only_report(outcome).samples] == ["a", "b"]
    host.restart()
    for call in outcome.issue:
        host.task.done(call.ticket, Done(call.args[0].upper()))
    report = only_report(host.step())
    assert (report.node, [(sample.offset, sample.value) for sample in report.samples]) == (
        "sent",
        [(0, "A"), (1, "B")],
    )
