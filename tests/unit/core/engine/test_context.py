"""The context of a processor: configuration, metrics, children, stores and commits."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError, StoreError
from unit.helpers import Host, forwarding, processing, processor_topology, sent, values

STORE = ms.stores.key_value("seen", ms.serdes.string, ms.serdes.string)


def fan_out(step: Any) -> ms.Topology:
    """Return a topology of one processor with the children left and right, which send to the topics L and R."""
    return (
        ms.Topology()
        .add_source("in", "in")
        .add_processor("worker", processing(step), "in")
        .add_sink("left", "L", "worker")
        .add_sink("right", "R", "worker")
    )


def test_a_processor_can_read_the_configuration_of_the_application() -> None:
    topology = processor_topology(forwarding(lambda context, record: str(context.app_config["limit"])))
    with ms.testing.TopologyTestDriver(topology, app_config={"limit": 3}) as driver:
        driver.pipe("in", "k", "v")
        assert [record.value for record in driver.read("out")] == ["3"]
    with pytest.raises(ProcessingError, match="KeyError: 'limit'"):
        Host(topology).run("in", ("k", "v", 0))


def test_the_counts_of_a_processor_are_reported_as_metrics() -> None:
    def count(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
        context.count("letters", len(record.value))
        context.count("records")

    topology = processor_topology(processing(count, init=lambda context: context.count("tasks")))
    with ms.testing.TopologyTestDriver(topology, keep_processors=True) as driver:
        for value in ("ab", "c"):
            driver.pipe("in", "k", value)
        metrics = driver.metrics()
    assert {name: metrics[f"counted: {name}"] for name in ("letters", "records", "tasks")} == {
        "letters": 3,
        "records": 2,
        "tasks": 1,
    }
    host = Host(topology)
    host.run("in", ("k", "ab", 0))
    assert host.run("in", ("k", "c", 0)).metrics.counted == {"letters": 1, "records": 1}


class TestForward:
    def test_goes_to_all_children(self) -> None:
        outcome = Host(fan_out(lambda context, record: context.forward(record))).run("in", ("k", "v", 3))
        assert (sent(outcome, "L"), sent(outcome, "R")) == ([("k", "v", 3)], [("k", "v", 3)])

    def test_goes_to_one_child(self) -> None:
        outcome = Host(fan_out(lambda context, record: context.forward(record, child=record.value))).run(
            "in", (None, "left", 0), (None, "right", 1), (None, "left", 2)
        )
        assert values(outcome, "L") == ["left", "left"]
        assert values(outcome, "R") == ["right"]

    def test_to_an_unknown_child_is_refused_with_the_names_of_the_children(self) -> None:
        host = Host(fan_out(lambda context, record: context.forward(record, child="lefft")))
        with pytest.raises(
            ProcessingError, match=r"processor 'worker' has no child 'lefft'; its children: left, right\."
        ):
            host.run("in", (None, "x", 0))

    def test_to_a_named_child_is_refused_without_children(self) -> None:
        topology = ms.Topology().add_source("in", "in")
        topology.add_processor(
            "worker", processing(lambda context, record: context.forward(record, child="x")), "in"
        )
        with pytest.raises(ProcessingError, match=r"its children: none\."):
            Host(topology).run("in", (None, "x", 0))

    def test_without_children_drops_the_record(self) -> None:
        topology = ms.Topology().add_source("in", "in")
        topology.add_processor("worker", processing(lambda context, record: context.forward(record)), "in")
        assert Host(topology).run("in", (None, "x", 0)).metrics.processed == 1

    def test_may_be_called_many_times_or_never(self) -> None:
        def repeat(context: ms.ProcessorContext, record: ms.Record) -> None:
            for n in range(int(record.value)):
                context.forward(record.with_value(f"{record.value}.{n}"))

        assert values(
            Host(processor_topology(processing(repeat))).run("in", (None, "0", 0), (None, "2", 0))
        ) == [
            "2.0",
            "2.1",
        ]

    def test_returns_after_its_children_have_finished(self) -> None:
        order: list[str] = []

        def outer(context: ms.ProcessorContext, record: ms.Record) -> None:
            order.append("before")
            context.forward(record)
            order.append("after")

        topology = (
            ms.Topology()
            .add_source("in", "in")
            .add_processor("outer", processing(outer), "in")
            .add_processor("inner", processing(lambda context, record: order.append("inner")), "outer")
        )
        Host(topology).run("in", (None, "x", 0))
        assert order == ["before", "inner", "after"]

    def test_in_init_is_refused(self) -> None:
        supplier = processing(
            lambda context, record: None, init=lambda context: context.forward(ms.Record(None, "x", 0))
        )
        with pytest.raises(
            ProcessingError,
            match=r"init\(\) of Functions, the processor of \'worker\', failed .*'worker' forwards while no record is being processed; forward",
        ):
            Host(processor_topology(supplier))

    def test_after_the_step_is_refused(self) -> None:
        contexts: list[ms.ProcessorContext] = []
        Host(processor_topology(processing(lambda context, record: contexts.append(context)))).run(
            "in", (None, "x", 0)
        )
        with pytest.raises(ProcessingError, match=r"not in init\(\), close\(\) or another thread$"):
            contexts[0].forward(ms.Record(None, "x", 0))

    def test_keeps_the_timestamp_and_headers_of_the_forwarded_record(self) -> None:
        def change(context: ms.ProcessorContext, record: ms.Record) -> None:
            context.forward(record.with_timestamp(9).with_headers((("h", b"1"),)))

        ((_, columns),) = Host(processor_topology(processing(change))).run("in", ("k", "v", 3)).sends
        assert (columns.timestamps, columns.headers) == ([9], [(("h", b"1"),)])


class TestStores:
    def test_that_are_connected_are_available(self) -> None:
        def remember(context: ms.ProcessorContext, record: ms.Record) -> None:
            store = context.state_store("seen")
            context.forward(record.with_value(str(store.get(record.key))))
            store.put(record.key, record.value)

        host = Host(processor_topology(processing(remember), stores=[STORE]))
        assert values(host.run("in", ("a", "1", 0), ("a", "2", 0))) == ["None", "1"]
        assert values(host.run("in", ("a", "3", 0))) == ["2"]

    def test_are_found_by_their_name_or_their_specification(self) -> None:
        contexts: list[ms.ProcessorContext] = []
        supplier = processing(lambda context, record: None, init=contexts.append)
        Host(processor_topology(supplier, stores=[STORE]))
        assert contexts[0].state_store(STORE) is contexts[0].state_store("seen")

    def test_that_are_not_connected_are_refused(self) -> None:
        supplier = processing(lambda context, record: None, init=lambda context: context.state_store("sen"))
        with pytest.raises(
            ProcessingError,
            match=r"processor 'worker' is not connected to a store 'sen' \(connected: seen\); name it in "
            r"process\(\.\.\., stores=\['sen'\]\)",
        ):
            Host(processor_topology(supplier, stores=[STORE]))

    def test_of_other_processors_are_refused(self) -> None:
        topology = processor_topology(processing(lambda context, record: None), stores=[STORE])
        topology.add_processor(
            "other", processing(lambda context, record: context.state_store("seen")), "source"
        )
        with pytest.raises(
            ProcessingError, match=r"'other' is not connected to a store 'seen' \(connected: none\)"
        ):
            Host(topology).run("in", (None, "x", 0))

    def test_that_are_unknown_raise_a_store_error(self) -> None:
        contexts: list[ms.ProcessorContext] = []
        Host(processor_topology(processing(lambda context, record: None, init=contexts.append)))
        with pytest.raises(StoreError):
            contexts[0].state_store("none")


def test_a_commit_request_applies_only_to_its_step() -> None:
    host = Host(
        processor_topology(
            processing(lambda context, record: context.commit() if record.value == "!" else None)
        )
    )
    assert not host.run("in", (None, "x", 0)).commit_requested
    assert host.run("in", (None, "!", 0), (None, "!", 0)).commit_requested
    assert not host.run("in", (None, "x", 0)).commit_requested
