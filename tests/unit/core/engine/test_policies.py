"""What happens to records that fail, per stage, and how errors are reported."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Literal

import pytest

import millstream as ms
from millstream.core.engine.step_outcome import Outcome
from millstream.core.model.errors import (
    DeserializationError,
    MillstreamError,
    ProcessingError,
    ProductionError,
    TopologyError,
)
from millstream.core.topology.nodes import Node
from unit.helpers import Host, processing, processor_topology, sent, values

Stage = Literal["deserialize", "process", "produce"]
HEADERS = (("mine", b"1"),)
BAD = (b"k\xff", "x", 7, HEADERS)


def fails_in(stage: Stage) -> ms.Topology:
    """Fail on the second of three records in one stage: its key is not text, or its value makes a function or a sink fail."""

    def step(context: ms.ProcessorContext, record: ms.Record) -> None:
        bad = record.key == b"k\xff"
        if bad and stage == "process":
            raise LookupError("no such thing")
        context.forward(ms.Record("k", 5 if bad else record.value, record.timestamp))

    serde = ms.serdes.string if stage == "deserialize" else ms.serdes.bytes
    return processor_topology(processing(step), key=serde)


def policies(stage: Stage, policy: Any) -> ms.ErrorPolicies:
    return ms.ErrorPolicies(**{stage: policy}, dead_letter_topic="dead")


def run(stage: Stage, policy: Any) -> tuple[Host, Outcome]:
    host = Host(fails_in(stage), policies=policies(stage, policy))
    host.feed("in", [("a", "first", 1)], partition=3)
    host.feed("in", [BAD, ("b", "last", 9)], partition=3)
    return host, host.step()


STAGES: list[tuple[Stage, type[MillstreamError], str, str, str]] = [
    ("deserialize", DeserializationError, "source", r"UnicodeDecodeError: .*", "Set the serdes of the topic's producers on the source"),
    ("process", ProcessingError, "worker", r"LookupError: no such thing \(.*test_policies\.py, line \d+, in step\)", "Correct the function"),
    ("produce", ProductionError, "sink", r"the value does not fit its serde, sending to topic 'out': serdes\.string takes str, but got int 5; .*", "Set serdes that fit the records on the sink"),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "kind", "node", "cause", "advice"), STAGES)
def test_the_fail_policy_reports_the_position_the_cause_and_the_remedy(
    stage: Stage, kind: type[MillstreamError], node: str, cause: str, advice: str
) -> None:
    where = r"at topic 'in', partition 3, offset 1 \(key b'k\\xff', value b'x'\)"
    out = rf"set on_{stage}_error='skip' to drop such records, or 'dead_letter' to send them to a separate topic"
    message = rf"^{node} failed in stage '{stage}' of task 0_0 {where}: {cause}\. {advice}, or {out}$"
    with pytest.raises(kind, match=message) as caught:
        run(stage, "fail")
    assert caught.value.__cause__ is not None


def test_an_error_in_a_library_names_the_line_of_user_code_that_called_it() -> None:
    def step(context: ms.ProcessorContext, record: ms.Record) -> None:
        json.loads("{")

    message = r"JSONDecodeError: .* \(.*test_policies\.py, line \d+, in step\)"
    with pytest.raises(ProcessingError, match=message):
        Host(processor_topology(processing(step))).run("in", ("k", "v", 1))


def number_of(value: str) -> int:
    return len(value)


def test_an_error_outside_of_user_code_names_the_called_function() -> None:
    """No frame of the traceback is in user code: the function returned an unusable result, or was not called at all."""
    builder = ms.StreamsBuilder()
    builder.stream("in").flat_map_values(number_of).to("out")  # type: ignore[arg-type, var-annotated]
    line = number_of.__code__.co_firstlineno
    message = rf"TypeError: 'int' object is not iterable \(.*test_policies\.py, line {line}, in the call of number_of\)"
    with pytest.raises(ProcessingError, match=message):
        Host(builder.build()).run("in", ("k", "v", 1))


@pytest.mark.parametrize(("stage", "kind", "node", "cause", "advice"), STAGES)
def test_the_skip_policy_drops_the_record_counts_it_and_adds_a_notice(
    stage: Stage, kind: type[MillstreamError], node: str, cause: str, advice: str
) -> None:
    host, outcome = run(stage, "skip")
    assert values(outcome) == ["first", "last"]
    assert outcome.metrics.dropped == {f"{stage} error": 1}
    (notice,) = outcome.notices
    assert notice.startswith(
        f"{node} failed in stage '{stage}' of task 0_0 at topic 'in', partition 3, offset 1 "
    )
    assert notice.endswith(". The record was skipped")
    assert sorted(topic for topic, _ in outcome.sends) == ["out"]
    assert list(outcome.committable.values()) == [3]
    assert host.step().metrics.dropped == {}


@pytest.mark.parametrize(("stage", "kind", "node", "cause", "advice"), STAGES)
def test_a_dead_letter_contains_the_original_record_and_the_error_in_headers(
    stage: Stage, kind: type[MillstreamError], node: str, cause: str, advice: str
) -> None:
    _, outcome = run(stage, "dead_letter")
    assert values(outcome) == ["first", "last"]
    assert outcome.metrics.dropped == {f"{stage} error": 1}
    (letter,) = [records for topic, records in outcome.sends if topic == "dead"]
    assert (letter.keys, letter.values, letter.timestamps) == ([b"k\xff"], [b"x"], [7])
    (notice,) = outcome.notices
    assert notice.endswith(". The record was sent to the dead-letter topic 'dead'")
    assert letter.headers is not None
    original, *added = letter.headers[0]
    assert original == ("mine", b"1")
    prefix = "millstream.error."
    facts = {name.removeprefix(prefix): value for name, value in added if name.startswith(prefix)}
    assert facts.pop("traceback", b"").startswith(b"Traceback (most recent call last)")
    error = facts.pop("error", b"").decode()
    assert facts == {
        "stage": stage.encode(),
        "node": node.encode(),
        "topic": b"in",
        "partition": b"3",
        "offset": b"1",
        "record": b"read",
    }
    assert error.split(":")[0] in ("UnicodeDecodeError", "LookupError", "SerdeError")
    prefix = "__streams.errors."  # KIP-1034
    kafka_headers = {
        name.removeprefix(prefix): value or b"" for name, value in added if name.startswith(prefix)
    }
    assert list(kafka_headers) == ["exception", "message", "stacktrace", "topic", "partition", "offset"]
    assert kafka_headers["exception"].decode().split(".")[-1] == error.split(":")[0]
    assert kafka_headers["message"].decode() == error.partition(": ")[2]
    assert kafka_headers["stacktrace"].startswith(b"Traceback (most recent call last)")
    assert [kafka_headers[name] for name in ("topic", "partition", "offset")] == [b"in", b"3", b"1"]


@pytest.mark.parametrize("stage", ["deserialize", "process", "produce"])
def test_a_dead_letter_reports_one_error_only(stage: Stage) -> None:
    _, outcome = run(stage, "dead_letter")
    (letter,) = [records for topic, records in outcome.sends if topic == "dead"]
    traceback = dict(letter.headers[0])["millstream.error.traceback"]  # type: ignore[index]
    assert traceback is not None
    assert b"During handling of the above exception" not in traceback


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_a_policy_applies_only_to_its_own_stage(policy: Any) -> None:
    for stage, kind, *_ in STAGES:
        others = {other: policy for other, *_ in STAGES if other != stage}
        host = Host(fails_in(stage), policies=ms.ErrorPolicies(**others, dead_letter_topic="dead"))
        with pytest.raises(kind):
            host.run("in", BAD)


def test_a_dead_letter_needs_a_topic() -> None:
    host = Host(fails_in("process"), policies=ms.ErrorPolicies(process="dead_letter"))
    with pytest.raises(
        ProductionError, match=r"a dead-letter policy needs the setting dead_letter_topic='\.\.\.'"
    ):
        host.run("in", BAD)


def test_the_number_of_notices_is_limited() -> None:
    host = Host(fails_in("process"), policies=policies("process", "skip"))
    outcome = host.run("in", *[BAD] * 50)
    assert (outcome.metrics.dropped, len(outcome.notices)) == ({"process error": 50}, 5)


def test_a_long_record_is_shortened_in_the_error() -> None:
    host = Host(fails_in("process"))
    with pytest.raises(ProcessingError, match=r"value b'x{40}'\.\.\. of 1000 bytes\)"):
        host.run("in", (b"k\xff", "x" * 1000, 0))


@pytest.mark.parametrize(
    ("size", "shown"), [(40, rf"b'{'x' * 40}'\)"), (41, r"b'x{40}'\.\.\. of 41 bytes\)")]
)
def test_at_most_forty_bytes_of_a_value_are_shown(size: int, shown: str) -> None:
    def step(context: ms.ProcessorContext, record: ms.Record) -> None:
        raise LookupError

    with pytest.raises(ProcessingError, match=f"value {shown}"):
        Host(processor_topology(processing(step))).run("in", ("k", "x" * size, 1))


def test_a_null_is_shown_as_null() -> None:
    def fail(context: ms.ProcessorContext, record: ms.Record) -> None:
        raise ValueError

    with pytest.raises(ProcessingError, match=r"\(key null, value null\): ValueError: "):
        Host(processor_topology(processing(fail))).run("in", (None, None, 0))


class TestNesting:
    def failing_child(self) -> ms.Topology:
        def outer(context: ms.ProcessorContext, record: ms.Record) -> None:
            context.forward(record)
            context.forward(record.with_value("sibling"), child="sink")

        def inner(context: ms.ProcessorContext, record: ms.Record) -> None:
            raise LookupError("inner breaks")

        topology = processor_topology(processing(outer))
        return topology.add_processor("inner", processing(inner), "worker")

    def test_the_error_of_a_child_is_reported_once_and_names_the_child(self) -> None:
        with pytest.raises(
            ProcessingError, match=r"^inner failed in stage 'process'.*: LookupError: inner breaks "
        ) as caught:
            Host(self.failing_child()).run("in", (None, "x", 0))
        assert caught.value.message.count("failed in stage") == 1

    def test_the_error_of_a_child_stops_the_task_even_if_its_parent_catches_it(self) -> None:
        def step(context: ms.ProcessorContext, record: ms.Record) -> None:
            with suppress(Exception):
                context.forward(record.with_value(5))

        with pytest.raises(ProductionError, match="the value does not fit its serde"):
            Host(processor_topology(processing(step))).run("in", ("k", "v", 1))

    def test_a_skipped_error_of_a_child_does_not_stop_its_parent(self) -> None:
        host = Host(self.failing_child(), policies=policies("process", "skip"))
        outcome = host.run("in", (None, "x", 0))
        assert (values(outcome), outcome.metrics.dropped) == (["x", "sibling"], {"process error": 1})

    @pytest.mark.parametrize("kind", [ProcessingError, DeserializationError, ProductionError])
    def test_a_millstream_error_raised_by_user_code_is_located_like_any_other(
        self, kind: type[MillstreamError]
    ) -> None:
        def step(context: ms.ProcessorContext, record: ms.Record) -> None:
            raise kind("as the user says")

        with pytest.raises(MillstreamError, match=r"at topic 'in', partition 0, offset 0.*as the user says"):
            Host(processor_topology(processing(step))).run("in", (None, "x", 0))
        outcome = Host(processor_topology(processing(step)), policies=policies("process", "skip")).run(
            "in", (None, "x", 0)
        )
        assert outcome.metrics.dropped == {"process error": 1}


class TestErrorsInUserFunctions:
    """All operators that call user functions handle the errors of these functions in the same way."""

    def boom(self, *args: Any) -> Any:
        raise LookupError("boom")

    @pytest.mark.parametrize(
        "operator",
        ["filter", "filter_not", "map", "map_values", "flat_map", "flat_map_values", "select_key", "peek"],
    )
    def test_stream_operators_skip_a_failing_record(self, operator: str) -> None:
        builder = ms.StreamsBuilder()
        getattr(builder.stream("in"), operator)(self.boom, name="mine").to("out")
        host = Host(builder.build(), policies=policies("process", "skip"))
        outcome = host.run("in", ("k", "v", 0))
        assert (values(outcome), outcome.metrics.dropped) == ([], {"process error": 1})
        assert outcome.notices[0].startswith("mine failed in stage 'process' of task 0_0 at topic 'in'")

    @pytest.mark.parametrize("operator", ["map_values", "flat_map_values"])
    def test_operators_that_take_the_key_skip_a_failing_record(self, operator: str) -> None:
        builder = ms.StreamsBuilder()
        getattr(builder.stream("in"), operator)(self.boom, with_key=True, name="mine").to("out")
        host = Host(builder.build(), policies=policies("process", "skip"))
        assert host.run("in", ("k", "v", 0)).metrics.dropped == {"process error": 1}

    def test_branches_skip_a_failing_record(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").split().branch(self.boom).default()["0"].to("out")
        host = Host(builder.build(), policies=policies("process", "skip"))
        outcome = host.run("in", ("k", "v", 0))
        assert (values(outcome), outcome.metrics.dropped) == ([], {"process error": 1})

    @pytest.mark.parametrize("operator", ["filter", "filter_not", "map_values"])
    def test_table_operators_skip_a_failing_record(self, operator: str) -> None:
        builder = ms.StreamsBuilder()
        getattr(builder.table("in"), operator)(self.boom, name="mine").to_stream().to("out")
        host = Host(builder.build(), policies=policies("process", "skip"))
        outcome = host.run("in", ("k", "v", 0))
        assert (values(outcome), outcome.metrics.dropped) == ([], {"process error": 1})

    def test_grouped_tables_skip_a_failing_record(self) -> None:
        builder = ms.StreamsBuilder()
        builder.table("in").group_by(self.boom).count(store="counts")
        host = Host(builder.build(), policies=policies("process", "skip"))
        assert host.run("in", ("k", "v", 0)).metrics.dropped == {"process error": 1}

    def test_aggregations_skip_a_failing_record(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").group_by_key().aggregate(str, self.boom, store="all").to_stream().to("out")
        host = Host(builder.build(), policies=policies("process", "skip"))
        outcome = host.run("in", ("k", "v", 0))
        assert (values(outcome), outcome.metrics.dropped, outcome.changes) == ([], {"process error": 1}, {})

    @pytest.mark.parametrize("own", [False, True])
    def test_a_record_in_several_windows_fails_once(self, own: bool) -> None:
        hopping: Any = ms.HoppingWindows(10, advance=2, grace=0)

        class Own(ms.Windows):
            def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
                return [(start, start + 10) for start in hopping.starts(timestamp)]

        def add(key: str, value: str, total: str) -> str:
            raise LookupError(value)

        builder = ms.StreamsBuilder()
        grouped = builder.stream("in").group_by_key()
        grouped.windowed_by(Own(10, 0) if own else hopping).aggregate(str, add, store="all")
        outcome = Host(builder.build(), policies=policies("process", "dead_letter")).run("in", ("k", "x", 99))
        assert sent(outcome, "dead") == [("k", "x", 99)]
        assert outcome.metrics.dropped == {"process error": 1}

    def test_topic_functions_and_partitioners_skip_a_failing_record(self) -> None:
        for sink_options in ({"topic": self.boom}, {"topic": "out", "partitioner": self.boom}):
            builder = ms.StreamsBuilder()
            # A type checker cannot assign the mixed values of a dict to parameters.
            builder.stream("in").to(**sink_options, name="mine")  # type: ignore[arg-type]
            host = Host(builder.build(), policies=policies("produce", "skip"))
            outcome = host.run("in", ("k", "v", 0))
            assert (outcome.sends, outcome.metrics.dropped) == ((), {"produce error": 1})


class TestFailingPunctuators:
    def ticking(self) -> ms.Topology:
        def tick(now_ms: int) -> None:
            raise LookupError("late")

        return processor_topology(
            processing(
                lambda context, record: None, init=lambda context: context.schedule(5, ms.wall_clock, tick)
            )
        )

    def test_are_located_by_node(self) -> None:
        with pytest.raises(
            ProcessingError,
            match=r"^worker failed in stage 'process' of task 0_0 in a punctuator: LookupError",
        ):
            Host(self.ticking()).step(now_ms=5)

    def test_are_called_again_when_the_policy_skips_the_error(self) -> None:
        host = Host(self.ticking(), policies=policies("process", "skip"))
        assert [host.step(now_ms=now).metrics.dropped for now in (5, 7, 10)] == [
            {"process error": 1},
            {},
            {"process error": 1},
        ]

    def test_send_a_dead_letter_without_a_record(self) -> None:
        host = Host(self.ticking(), policies=policies("process", "dead_letter"))
        ((_, letter),) = host.step(now_ms=5).sends
        assert (letter.keys, letter.values) == ([None], [None])
        assert dict(letter.headers[0])["millstream.error.offset"] == b"-1"  # type: ignore[index]


class TestRecordsDroppedByDesign:
    def test_aggregations_drop_null_keys_and_values(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").group_by_key().count(store="counts")
        outcome = Host(builder.build()).run("in", (None, "x", 0), ("a", None, 0), ("a", "x", 0))
        assert outcome.metrics.dropped == {"null key or value in an aggregation": 2}

    def test_tables_drop_null_keys(self) -> None:
        builder = ms.StreamsBuilder()
        builder.table("in")
        outcome = Host(builder.build()).run("in", (None, "x", 0), ("a", None, 0))
        assert outcome.metrics.dropped == {"null key in a table": 1}


class TestObjectsThatDoNotFitTheirStore:
    """Values that stay in memory are serialised at the end of the step, when the record is no longer known."""

    def test_the_error_names_the_store(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").group_by_key().aggregate(
            int, lambda k, v, a: "five", value=ms.serdes.int64, store="sums"
        )
        with pytest.raises(
            MillstreamError, match=r"store 'sums': serdes\.int64 takes an int of 64 bits, but got str 'five'"
        ):
            Host(builder.build()).run("in", ("a", "x", 0))

    def test_the_error_for_a_plain_value_in_a_timestamped_store_names_the_store(self) -> None:
        stamped = ms.stores.key_value("stamped", ms.serdes.string, ms.serdes.int64, timestamped=True)
        supplier = processing(lambda context, record: context.state_store("stamped").put(record.key, 5))
        with pytest.raises(MillstreamError, match="store 'stamped'"):
            Host(processor_topology(supplier, stores=[stamped])).run("in", ("a", "x", 0))

    def test_a_key_that_does_not_fit_fails_its_record(self) -> None:
        plain = ms.stores.key_value("plain", ms.serdes.int64, ms.serdes.int64)
        supplier = processing(lambda context, record: context.state_store("plain").put("no number", 5))
        with pytest.raises(
            ProcessingError, match=r"offset 0 .*store 'plain': serdes\.int64 takes an int of 64 bits"
        ):
            Host(processor_topology(supplier, stores=[plain])).run("in", ("a", "x", 0))


def test_a_sink_sends_a_record_with_its_own_serdes() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in", value=ms.serdes.bytes).to("out", key=ms.serdes.string, value=ms.serdes.bytes)
    host = Host(builder.build())
    assert sent(host.run("in", ("a", "x", 0))) == [("a", "x", 0)]


def test_an_unsupported_node_is_named_in_the_error() -> None:
    topology = ms.Topology().add_source("in", "in").add(Node("odd", ("in",)))
    with pytest.raises(TopologyError, match=r"the engine does not support nodes of type Node \('odd'\)"):
        Host(topology)


class TestAValueThatDoesNotFitItsStore:
    """The store refuses the value when it is put, so the error belongs to the record."""

    def by_processor(self) -> ms.Topology:
        store = ms.stores.key_value("counts", ms.serdes.string, ms.serdes.int64)
        step = processing(
            lambda context, record: (
                context.state_store("counts").put("k", record.value if record.value == "bad" else 1),
                context.forward(record),
            )
        )
        return processor_topology(step, stores=[store])

    def by_aggregate(self) -> ms.Topology:
        builder = ms.StreamsBuilder()
        grouped_stream = builder.stream("in", key=ms.serdes.string, value=ms.serdes.string).group_by_key()
        counts = grouped_stream.aggregate(
            lambda: 0, lambda k, v, old: v if v == "bad" else old + 1, value=ms.serdes.int64, store="counts"
        )
        counts.to_stream().map_values(str).to("out")
        return builder.build()

    @pytest.mark.parametrize("how", ["by_processor", "by_aggregate"])
    def test_is_dropped_under_the_skip_policy(self, how: str) -> None:
        host = Host(getattr(self, how)(), policies=ms.ErrorPolicies(process="skip"))
        outcome = host.run("in", ("k", "1", 0), ("k", "bad", 1), ("k", "2", 2))
        assert outcome.metrics.dropped == {"process error": 1}
        assert len(values(outcome)) == 2
        assert "store 'counts': serdes.int64 takes an int of 64 bits, but got str 'bad'" in outcome.notices[0]

    @pytest.mark.parametrize("how", ["by_processor", "by_aggregate"])
    def test_stops_the_task_with_its_position_under_the_fail_policy(self, how: str) -> None:
        host = Host(getattr(self, how)())
        with pytest.raises(ProcessingError, match=r"at topic 'in', partition 0, offset 1 .*store 'counts'"):
            host.run("in", ("k", "1", 0), ("k", "bad", 1))
