"""Building a topology: mistakes are reported at once, with helpful messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError

STORE = ms.stores.key_value("counts", ms.serdes.string, ms.serdes.int64)


class Quiet(ms.Processor):
    def process(self, record: ms.Record) -> None:
        pass


class Shout(ms.Processor):
    def process(self, record: ms.Record) -> None:
        self.context.forward(record.with_value(record.value.upper()))


def small_topology() -> ms.Topology:
    return ms.Topology().add_source("in", "lines").add_processor("worker", Quiet, "in")


def with_store() -> ms.Topology:
    return small_topology().add_state_store(STORE, processors=["worker"])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: small_topology().add_source("in", "other"),
            r"^two nodes have the name 'in'; node names must be unique\. Set another name= or store= for one of them$",
        ),
        (
            lambda: small_topology().add_source("again", ["other", "lines"]),
            r"^topic 'lines' has two sources, 'in' and 'again'; read it once and use the stream in both places$",
        ),
        (lambda: small_topology().add_source("none", []), r"^source 'none' reads no topic$"),
        (
            lambda: small_topology().add_source("new", "bad topic"),
            r"^'bad topic' cannot be the name of a topic: use 1 to 249 letters, digits, '\.', '_' or '-'",
        ),
        (lambda: small_topology().add_source("", "x"), r"^'' cannot be the name of a node: "),
        (
            lambda: small_topology().add_source("new", "x", offset_reset="first"),
            r"^source 'new': offset_reset must be 'earliest', 'latest', 'none', a timedelta .* or None, not 'first'$",
        ),
        (
            lambda: small_topology().add_source("new", "x", offset_reset=timedelta(-1)),
            r"a timedelta that is not negative, or None, not datetime.timedelta\(days=-1\)$",
        ),
        (
            lambda: small_topology().add_processor("late", Quiet, "wroker"),
            r"^node 'late' has the parent 'wroker', which does not exist; .* before their children \(there are: in, worker\)$",
        ),
        (
            lambda: small_topology().add_processor("late", Quiet, []),
            r"^node 'late' has no parents, so no record can ever reach it$",
        ),
        (
            lambda: small_topology().add_processor("late", Quiet(), "in"),
            r"^Topology.add_processor: supplier must be callable, not <.*Quiet.*>$",
        ),
        (lambda: small_topology().add_processor("late", 5, "in"), r"supplier must be callable, not 5$"),
        (
            lambda: small_topology().add_sink("out", "x", "worker").add_sink("more", "y", "out"),
            r"^node 'more' has the sink 'out' as its parent; a sink has no output$",
        ),
        (
            lambda: with_store().add_state_store(
                ms.stores.key_value("counts", ms.serdes.string, ms.serdes.string)
            ),
            r"^two different stores have the name 'counts'; store names must be unique$",
        ),
        (
            lambda: ms.stores.key_value("a/b", ms.serdes.string, ms.serdes.string),
            r"^'a/b' cannot be the name of a store: ",
        ),
        (
            lambda: small_topology().add_state_store(STORE, processors=["worke"]),
            r"^there is no processor 'worke' to connect stores to; add it first$",
        ),
        (
            lambda: small_topology().add_state_store(STORE, processors=["in"]),
            r"^there is no processor 'in' to connect stores to; add it first$",
        ),
        (lambda: with_store().connect("worker"), r"^connect\('worker'\) names no store"),
        (
            lambda: with_store().connect("worker", "count"),
            r"^processor 'worker' uses store 'count', which does not exist; add it with .* \(there are: counts\)$",
        ),
    ],
)
def test_a_mistake_is_reported_by_the_call_that_makes_it(
    build: Callable[[], ms.Topology], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            ms.Topology,
            r"^the topology has no source, so it would process nothing; begin with stream\(\.\.\.\)$",
        ),
        (
            lambda: small_topology().add_processor("second", Quiet, "in", stores=["counts"]),
            r"^'second' uses store 'counts', which was never added; add it with add_state_store\(\.\.\.\)$",
        ),
        (
            lambda: with_store().add_processor("second", Quiet, "in", stores=["count"]),
            r"^'second' uses store 'count', which was never added; .* \(there are: counts\)$",
        ),
        (
            lambda: small_topology().add_state_store(STORE),
            r"^store 'counts' is not connected to any processor; connect it or remove it$",
        ),
    ],
)
@pytest.mark.parametrize(
    "use", [ms.Topology.validate, ms.Topology.plan, ms.Topology.describe, ms.Topology.dot]
)
def test_missing_parts_are_reported_when_the_topology_is_used(
    build: Callable[[], ms.Topology], message: str, use: Callable[[ms.Topology], object]
) -> None:
    with pytest.raises(TopologyError, match=message):
        use(build())


def test_a_refused_node_leaves_the_topology_unchanged() -> None:
    topology = small_topology()
    with pytest.raises(TopologyError):
        topology.add_source("again", ["fresh", "lines"])
    assert list(topology.add_source("again", "fresh").nodes) == ["in", "worker", "again"]


def test_a_store_can_be_connected_in_three_ways() -> None:
    ways = [
        small_topology().add_state_store(STORE, processors=["worker"]),
        small_topology().add_state_store(STORE).connect("worker", "counts"),
        ms.Topology()
        .add_source("in", "lines")
        .add_processor("worker", Quiet, "in", stores=["counts"])
        .add_state_store(STORE),
    ]
    assert [way.nodes["worker"].store_names for way in ways] == [("counts",)] * 3
    assert len({way.describe() for way in ways}) == 1


def test_adding_or_connecting_a_store_again_has_no_effect() -> None:
    topology = with_store().add_state_store(STORE).connect("worker", "counts", "counts")
    assert topology.nodes["worker"].store_names == ("counts",)


def test_a_supplier_may_be_any_function_without_arguments() -> None:
    topology = small_topology().add_processor("made", lambda: Quiet(), "in")
    assert list(topology.nodes) == ["in", "worker", "made"]


def test_the_repr_of_a_topology_shows_its_size() -> None:
    assert repr(with_store()) == "<Topology of 2 nodes and 1 stores>"


def _add_processor(supplier: Callable[[], ms.Processor]) -> None:
    ms.Topology().add_source("in", "lines").add_processor("shared", supplier, "in")


def _add_global_store(supplier: Callable[[], ms.Processor]) -> None:
    ms.Topology().add_global_store(STORE, "in", "lines", "shared", supplier)


def _add_read_only_store(supplier: Callable[[], ms.Processor]) -> None:
    ms.Topology().add_read_only_state_store(STORE, "in", "lines", "shared", supplier)


def _add_global_store_to_builder(supplier: Callable[[], ms.Processor]) -> None:
    ms.StreamsBuilder().add_global_store(STORE, "lines", supplier)


def _process(supplier: Callable[[], ms.Processor]) -> None:
    ms.StreamsBuilder().stream("in").process(supplier)


def _process_values(supplier: Callable[[], ms.Processor]) -> None:
    ms.StreamsBuilder().stream("in").process_values(supplier)


def _transform_values(supplier: Callable[[], ms.Processor]) -> None:
    ms.StreamsBuilder().table("in").transform_values(supplier)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "use",
    [
        _add_processor,
        _add_global_store,
        _add_read_only_store,
        _add_global_store_to_builder,
        _process,
        _process_values,
        _transform_values,
    ],
)
def test_a_supplier_must_return_a_new_processor_at_each_call(
    use: Callable[[Callable[[], ms.Processor]], None],
) -> None:
    shared = Quiet()
    with pytest.raises(TopologyError, match="returns the same processor at each call"):
        use(lambda: shared)
    use(lambda: Quiet())


def test_later_changes_of_a_builder_do_not_affect_a_built_topology() -> None:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    stream.to("out")
    split = stream.split()
    built = builder.build()
    before = built.describe()
    split.branch(lambda k, v: True, then=lambda s: s.to("branch"))
    stream.group_by_key().count()
    builder.stream("more").to("out")
    assert built.describe() == before
    assert not built.stores
    built.add_sink("another", "out", "KSTREAM-SOURCE-0000000000")
    assert "another" not in builder.build().nodes


def test_later_changes_of_a_topology_do_not_affect_an_application() -> None:
    builder = ms.StreamsBuilder()
    builder.stream(re.compile("in-.*")).to("out")
    topology = builder.build()
    application: Any = ms.Application("app", topology, bootstrap_servers="localhost:1")
    topology.add_source("later", "more").add_sink("end", "out", "later")
    assert list(application._program.matching(application.settings, ["in-1", "more"]).subtopology_of) == [
        "in-1"
    ]


def test_nodes_of_the_processor_api_may_have_any_name() -> None:
    topology = ms.Topology().add_source('from "in" / ä', "in").add_processor("do\\it", Shout, 'from "in" / ä')
    topology.add_sink("a sink!", "out", "do\\it")
    assert "Sink: a sink! (topic: out)" in topology.describe()
    assert '"from #quot;in#quot; / ä"' in topology.mermaid()
    assert '"from \\"in\\" / ä" -> "do\\\\it"' in topology.dot()
    assert "from &quot;in&quot; / ä" in topology.svg()
    with ms.testing.TopologyTestDriver(topology) as driver:
        driver.pipe("in", "k", "v")
        assert [record.value for record in driver.read("out")] == ["V"]


@pytest.mark.parametrize("name", ["", None, 5])
def test_the_name_of_a_node_must_be_a_nonempty_string(name: Any) -> None:
    with pytest.raises(TopologyError):
        ms.Topology().add_source(name, "in")


@pytest.mark.parametrize(
    "use",
    [
        lambda b, name: b.stream("in", name=name),
        lambda b, name: b.stream("in").filter(lambda k, v: True, name=name),
        lambda b, name: b.stream("in").process(Quiet, name=name),
        lambda b, name: b.table("in", name=name),
        lambda b, name: b.stream("in").repartition(name=name),
        lambda b, name: b.stream("in").split(name=name),
        lambda b, name: b.stream("in").split().branch(lambda k, v: True, name=name),
        lambda b, name: b.stream("in").group_by(lambda k, v: v, name=name),
        lambda b, name: b.stream("in").to("out", name=name),
    ],
)
def test_names_in_the_dsl_must_be_valid_topic_names(use: Callable[[ms.StreamsBuilder, str], object]) -> None:
    with pytest.raises(TopologyError, match=r"'.*my node.*' cannot be the name of"):
        use(ms.StreamsBuilder(), "my node")


def test_nodes_with_more_descendants_are_described_first() -> None:
    topology = ms.Topology()
    for number in "12":
        topology.add_source(f"s{number}", f"t{number}").add_processor(f"p{number}", Quiet, f"s{number}")
    topology.add_state_store(STORE, processors=["p1", "p2"]).add_processor("end", Quiet, "p2")
    described = re.findall("(?:Source|Processor): ([^ ]+)", topology.describe())
    assert described == ["s2", "p2", "s1", "end", "p1"]
