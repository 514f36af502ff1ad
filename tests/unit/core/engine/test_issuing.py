"""Processors that issue calls, and processors that acknowledge records."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import millstream as ms
from millstream.core.asynchronous.call import Done
from millstream.core.model.errors import ProcessingError, TopologyError
from millstream.core.model.ids import TopicPartition
from millstream.testing import TopologyTestDriver as Driver
from unit.helpers import Host, Quiet, processing, values

IN = TopicPartition("in", 0)


def upper(text: str, times: int = 1) -> str:
    return text.upper() * times


async def skip_x_or_return(text: str) -> Any:
    return ms.skip() if text == "x" else text


def joined(names: list[str]) -> Any:
    return ",".join(names)


class ChangingArguments(ms.Processor[Any, Any, Any, Any]):
    """Changes an argument after the call was issued."""

    def process(self, record: ms.Record[Any, Any]) -> None:
        names = [record.value]
        self.context.issue(joined, self.on_result, names)
        names.append("later")

    def on_result(self, record: ms.Record[Any, Any], result: str) -> None:
        self.context.forward(record.with_value(result))


class Issuing(ms.Processor[Any, Any, Any, Any]):
    """Issues two calls for each record."""

    def process(self, record: ms.Record[Any, Any]) -> None:
        self.context.issue(upper, self.on_result, record.value)
        self.context.issue(upper, self.on_result, record.value, 2)

    def on_result(self, record: ms.Record[Any, Any], result: str) -> None:
        metadata = self.context.record_metadata
        assert metadata is not None
        self.context.forward(record.with_value(f"{result}@{metadata.offset}"))


class Chained(ms.Processor[Any, Any, Any, Any]):
    """Issues the second call when the first has returned."""

    def process(self, record: ms.Record[Any, Any]) -> None:
        self.context.issue(skip_x_or_return, self.first, record.value)

    def first(self, record: ms.Record[Any, Any], result: str) -> None:
        self.context.issue(upper, self.second, result, 2)

    def second(self, record: ms.Record[Any, Any], result: str) -> None:
        self.context.forward(record.with_value(result))


def issuing(supplier: Any, calls: ms.Calls | None = None) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").process(supplier, calls=calls or ms.Calls(), name="worker").to("out")
    return builder.build()


def processes(process: Any) -> ms.Topology:
    return issuing(processing(process))


class TestIssue:
    def test_the_arguments_of_an_issued_call_do_not_change_later(self) -> None:
        with Driver(issuing(ChangingArguments)) as driver:
            for name in "ab":
                driver.pipe("in", "k", name)
            assert [r.value for r in driver.read("out")] == ["a", "b"]

    def test_a_callback_runs_with_the_record_that_issued_the_call(self) -> None:
        with Driver(issuing(Issuing)) as driver:
            driver.pipe("in", "k", "a", timestamp=7)
            driver.pipe("in", "k", "b", timestamp=8)
            assert [(r.value, r.timestamp) for r in driver.read("out")] == [
                ("A@0", 7),
                ("AA@0", 7),
                ("B@1", 8),
                ("BB@1", 8),
            ]

    def test_a_callback_may_issue_another_call(self) -> None:
        with Driver(issuing(Chained)) as driver:
            for value in ("x", "y"):
                driver.pipe("in", "k", value)
            assert [r.value for r in driver.read("out")] == ["YY"]
            assert driver.committed_offset("in") == 2

    def test_calls_continue_in_the_new_processor_after_a_restart(self) -> None:
        host = Host(issuing(Chained))
        (call,) = host.run("in", ("k", "v", 1)).issue
        host.restart()
        host.task.done(call.ticket, Done("v"))
        (call,) = host.step().issue
        assert call.args == ("v", 2)
        host.restart()
        host.task.done(call.ticket, Done("VV"))
        outcome = host.step()
        assert (values(outcome), outcome.committable) == (["VV"], {IN: 1})

    def test_a_punctuator_may_issue_calls(self) -> None:
        class Ticking(ms.Processor[Any, Any, Any, Any]):
            def init(self, context: Any) -> None:
                super().init(context)
                context.schedule(10, ms.wall_clock, self.tick)

            def process(self, record: ms.Record[Any, Any]) -> None: ...

            def tick(self, now_ms: int) -> None:
                self.context.issue(upper, self.on_result, f"tick {now_ms}")

            def on_result(self, record: ms.Record[Any, Any], result: str) -> None:
                self.context.forward(ms.Record("t", result, record.timestamp))

        with Driver(issuing(Ticking)) as driver:
            driver.advance_wall_clock(10)
            assert [r.value for r in driver.read("out")] == ["TICK 10"]

    def test_the_call_of_a_punctuator_continues_after_a_restart(self) -> None:
        class Ticking(Issuing):
            def init(self, context: Any) -> None:
                super().init(context)
                context.schedule(
                    10, ms.wall_clock, lambda now_ms: self.context.issue(upper, self.on_tick_result, "t")
                )

            def on_tick_result(self, record: ms.Record[Any, Any], result: str) -> None:
                self.context.forward(ms.Record("t", result, 1))

        host = Host(issuing(Ticking))
        (call,) = host.step(now_ms=10).issue
        host.restart()
        host.task.done(call.ticket, Done("T"))
        assert values(host.step()) == ["T"]

    def test_a_call_that_init_issues_is_rejected(self) -> None:
        issue = processing(
            lambda context, record: None, init=lambda context: context.issue(upper, print, "x")
        )
        with pytest.raises(ProcessingError, match="issues a call while no record is being processed"):
            Host(issuing(issue))

    def test_the_callback_must_be_a_method_of_the_processor(self) -> None:
        topology = processes(lambda context, record: context.issue(upper, print, "x"))
        with (
            Driver(topology) as driver,
            pytest.raises(ProcessingError, match="on_done must be a method of the processor"),
        ):
            driver.pipe("in", "k", "v")

    @pytest.mark.parametrize("call", [lambda: 1, "text"])
    def test_the_function_of_a_call_must_be_defined_at_the_top_level_of_a_module(self, call: Any) -> None:
        class Wrong(Issuing):
            def process(self, record: ms.Record[Any, Any]) -> None:
                self.context.issue(call, self.on_result)

        with (
            Driver(issuing(Wrong)) as driver,
            pytest.raises(ProcessingError, match="a function that is defined at the top level of a module"),
        ):
            driver.pipe("in", "k", "v")

    def test_a_processor_without_the_calls_option_cannot_issue_calls(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").process(Issuing).to("out")
        with (
            Driver(builder.build()) as driver,
            pytest.raises(ProcessingError, match=r"was added without calls=ms\.Calls"),
        ):
            driver.pipe("in", "k", "v")

    def test_meaningless_options_are_rejected(self) -> None:
        with pytest.raises(TopologyError, match="leave one of them out"):
            ms.Topology().add_source("s", "in").add_processor(
                "p", Issuing, "s", calls=ms.Calls(), acknowledges=True
            )
        with pytest.raises(TopologyError, match="a processor issues each call itself"):
            issuing(Issuing, ms.Calls(batch=(2, 5)))


def acknowledging(process: Any, **options: Any) -> ms.Topology:
    topology = ms.Topology().add_source("source", "in")
    topology.add_processor("worker", processing(process), "source", acknowledges=True, **options)
    return topology.add_sink("sink", "out", "worker")


def acknowledge_now(context: Any, record: ms.Record[Any, Any]) -> None:
    if record.value == "now":
        context.acknowledge(context.record_metadata)


class TestAcknowledge:
    def test_a_record_is_finished_when_the_processor_acknowledges_it(self) -> None:
        received: list[Any] = []

        def process(context: Any, record: ms.Record[Any, Any]) -> None:
            received.append(context.record_metadata)
            if record.value == "all":
                for metadata in received:
                    context.acknowledge(metadata)
            elif record.value == "second":
                context.acknowledge(received[1])

        host = Host(acknowledging(process))
        assert host.run("in", *(("k", v, 1) for v in ("a", "b"))).committable == {IN: 0}
        outcome = host.run("in", ("k", "second", 1))
        assert outcome.committable == {IN: 0}
        assert outcome.calls["worker"].with_async_worker == 2
        del received[1]
        assert host.run("in", ("k", "all", 1)).committable == {IN: 4}
        assert list(host.store("worker-unfinished").all()) == []

    def test_a_new_processor_receives_unacknowledged_records_again(self) -> None:
        seen: list[tuple[str, int]] = []

        def process(context: Any, record: ms.Record[Any, Any]) -> None:
            metadata = context.record_metadata
            seen.append((record.value, metadata.offset))
            if record.value == "now" or len(seen) > 3:
                context.acknowledge(metadata)

        host = Host(acknowledging(process))
        host.run("in", *(("k", v, 1) for v in ("a", "now", "b")))
        assert seen == [("a", 0), ("now", 1), ("b", 2)]
        host.restart()
        assert host.run("in", ("k", "c", 1)).committable == {IN: 4}
        assert seen[3:] == [("a", 0), ("b", 2), ("c", 3)]
        host.restart()
        host.step()
        assert len(seen) == 6

    def test_redelivered_records_precede_the_result_of_a_call(self) -> None:
        seen: list[str] = []
        builder = ms.StreamsBuilder()
        called = builder.stream("in").map_values_async(upper)
        called.process(processing(lambda _, record: seen.append(record.value)), acknowledges=True)
        host = Host(builder.build())
        for value in ("a", "b"):
            (call,) = host.run("in", ("k", value, 1)).issue
            host.restart()
            host.task.done(call.ticket, Done(value.upper()))
            host.step()
        assert seen == ["A", "A", "B"]

    def test_finished_records_are_counted_once(self) -> None:
        host = Host(acknowledging(acknowledge_now))
        settled = [host.run("in", ("k", v, 1)).calls["worker"].settled for v in ("now", "later", "now")]
        assert settled == [1, 0, 1]

    def test_a_record_without_an_offset_does_not_delay_the_commit(self) -> None:
        seen: list[str] = []

        class Ticking(ms.Processor[Any, Any, Any, Any]):
            def init(self, context: Any) -> None:
                super().init(context)
                for value in ("tick", "fails"):
                    context.schedule(10, ms.wall_clock, lambda now_ms, v=value: self.forward_value(v))

            def forward_value(self, value: str) -> None:
                self.context.forward(ms.Record("k", value, 1))

            def process(self, record: ms.Record[Any, Any]) -> None: ...

        def worker(context: Any, record: ms.Record[Any, Any]) -> None:
            assert context.record_metadata is None
            seen.append(record.value)
            if record.value == "fails":
                raise ValueError("no")

        topology = ms.Topology().add_source("source", "in").add_processor("ticking", Ticking, "source")
        topology.add_processor("worker", processing(worker), "ticking", acknowledges=True)
        host = Host(topology, policies=ms.ErrorPolicies(process="skip"))
        host.run("in", ("k", "v", 1))
        outcome = host.step(now_ms=10)
        assert (seen, outcome.committable) == (["tick", "fails"], {IN: 1})
        assert list(host.store("worker-unfinished").all()) == []

    def test_acknowledging_twice_or_without_the_option_is_rejected(self) -> None:
        def twice(context: Any, record: ms.Record[Any, Any]) -> None:
            context.acknowledge(context.record_metadata)
            context.acknowledge(context.record_metadata)

        with (
            Driver(acknowledging(twice)) as driver,
            pytest.raises(
                ProcessingError, match="it was acknowledged before, or this processor never received it"
            ),
        ):
            driver.pipe("in", "k", "v")
        builder = ms.StreamsBuilder()
        builder.stream("in").process(processing(twice))
        with Driver(builder.build()) as driver, pytest.raises(ProcessingError, match="acknowledges=True"):
            driver.pipe("in", "k", "v")

    def test_a_failed_record_is_finished_when_the_policy_skips_it(self) -> None:
        def fails(context: Any, record: ms.Record[Any, Any]) -> None:
            raise ValueError("no")

        policies = ms.ErrorPolicies(process="skip")
        with Driver(acknowledging(fails), policies=policies) as driver:
            driver.pipe("in", "k", "v")
            assert driver.committed_offset("in") == 1

    def test_the_task_wakes_periodically_while_records_are_unacknowledged(self) -> None:
        class Ticking(ms.Processor[Any, Any, Any, Any]):
            def init(self, context: Any) -> None:
                super().init(context)
                context.schedule(300, ms.wall_clock, self.tick)

            def tick(self, now_ms: int) -> None: ...

            def process(self, record: ms.Record[Any, Any]) -> None: ...

        host = Host(acknowledging(acknowledge_now))
        assert host.run("in", ("k", "now", 1)).attempts_due_ms is None
        assert host.run("in", ("k", "later", 1)).attempts_due_ms == host.now_ms + 1_000
        topology = ms.Topology().add_source("source", "in")
        ticking = Host(topology.add_processor("worker", Ticking, "source", acknowledges=True))
        assert ticking.run("in", ("k", "v", 1)).attempts_due_ms == host.now_ms + 300

    def test_intake_stops_at_the_limit_of_unacknowledged_records(self) -> None:
        host = Host(acknowledging(acknowledge_now, max_unacknowledged=2))
        rooms = [host.run("in", ("k", v, 1)).calls["worker"].room for v in ("a", "now", "b", "c")]
        assert rooms == [1, 1, 0, 0]
        with pytest.raises(TopologyError, match="set at least 1"):
            acknowledging(acknowledge_now, max_unacknowledged=0)
        with pytest.raises(TopologyError, match="needs acknowledges=True"):
            ms.StreamsBuilder().stream("in").process(Quiet, max_unacknowledged=5)

    def test_a_record_that_is_acknowledged_during_redelivery_is_not_redelivered(self) -> None:
        to_acknowledge: list[Any] = []
        seen: list[str] = []

        def process(context: Any, record: ms.Record[Any, Any]) -> None:
            seen.append(record.value)
            for metadata in to_acknowledge:
                context.acknowledge(metadata)
            to_acknowledge.clear()

        host = Host(acknowledging(process))
        host.run("in", ("k", "a", 1), ("k", "b", 1))
        to_acknowledge += [ms.RecordMetadata("in", 0, offset) for offset in (0, 1)]
        host.restart()
        assert (host.step().committable, seen) == ({IN: 2}, ["a", "b", "a"])
        assert list(host.store("worker-unfinished").all()) == []


class Acknowledger(ms.Processor[Any, Any, Any, Any]):
    """Acknowledges the records in a list. The value of a record may also request its acknowledgement or a failure."""

    to_acknowledge: ClassVar[list[Any]] = []

    def process(self, record: ms.Record[Any, Any]) -> None:
        metadata = self.context.record_metadata
        assert metadata is not None
        for each in self.to_acknowledge:
            self.context.acknowledge(each)
        self.to_acknowledge.clear()
        if "now" in record.value:
            self.context.acknowledge(metadata)
        if "fails" in record.value:
            raise ValueError("no")


class TestSiblingRecords:
    """Records that were derived from one record in front of a processor that acknowledges records."""

    def host(self) -> Host:
        Acknowledger.to_acknowledge.clear()
        builder = ms.StreamsBuilder()
        parts = builder.stream("in").flat_map_values(lambda text: text.split(","))
        parts.process(Acknowledger, acknowledges=True, name="worker")
        return Host(builder.build(), policies=ms.ErrorPolicies(process="skip"))

    def unfinished(self, host: Host) -> list[str]:
        return [row[2] for _, rows in host.store("worker-unfinished").all() for _, row in rows]

    @pytest.mark.parametrize("text", ["slow,now", "slow,now,now", "now,slow", "slow,fails", "slow,now fails"])
    def test_are_finished_when_all_are_acknowledged(self, text: str) -> None:
        host = self.host()
        assert host.run("in", ("k", text, 1)).committable == {IN: 0}
        assert "slow" in self.unfinished(host)
        Acknowledger.to_acknowledge.append(ms.RecordMetadata("in", 0, 0))
        assert host.run("in", ("k", "now", 1)).committable == {IN: 2}
        assert self.unfinished(host) == []

    def test_are_redelivered_together(self) -> None:
        host = self.host()
        host.run("in", ("k", "slow,now", 1))
        host.restart()
        assert host.step().committable == {IN: 0}
        assert self.unfinished(host) == ["slow", "now"]
        Acknowledger.to_acknowledge.append(ms.RecordMetadata("in", 0, 0))
        assert host.run("in", ("k", "now", 1)).committable == {IN: 2}

    def test_are_finished_when_one_is_acknowledged_and_the_other_fails_on_redelivery(self) -> None:
        seen: list[str] = []

        def process(context: Any, record: ms.Record[Any, Any]) -> None:
            seen.append(record.value)
            if len(seen) == 3:
                context.acknowledge(context.record_metadata)
            elif len(seen) == 4:
                raise ValueError("no")

        builder = ms.StreamsBuilder()
        parts = builder.stream("in").flat_map_values(lambda text: text.split(","))
        parts.process(processing(process), acknowledges=True, name="worker")
        host = Host(builder.build(), policies=ms.ErrorPolicies(process="skip"))
        host.run("in", ("k", "a,b", 1))
        host.restart()
        assert (host.step().committable, seen) == ({IN: 1}, ["a", "b", "a", "b"])
        assert self.unfinished(host) == []

    def test_stay_unfinished_when_another_sibling_fails(self) -> None:
        host = self.host()
        host.run("in", ("k", "slow,fails,slower", 1))
        assert self.unfinished(host) == ["slow", "slower"]
