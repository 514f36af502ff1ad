"""Global parts of a topology: they have no tasks, and other nodes cannot be attached to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.task import Task
from millstream.core.model.errors import StoreError, TopologyError
from millstream.core.model.ids import TaskId
from millstream.core.state.memory import MemoryStores
from millstream.core.topology.evolution import ComparedPart, continued

STRING = ms.serdes.string
NAMES = ms.stores.key_value("names", STRING, STRING)


class Quiet(ms.Processor):
    def process(self, record: ms.Record) -> None:
        pass


def enriched() -> ms.Topology:
    builder = ms.StreamsBuilder()
    table = builder.global_table("products", store="goods")
    stream = builder.stream("in", name="read")
    stream.join(table, lambda k, v: v, lambda v, row: row, name="enrich").to("out", name="write")
    return builder.build()


def with_names() -> ms.Topology:
    return ms.Topology().add_global_store(NAMES, "read", "names", "keep", Quiet)


DESCRIBED = """\
Topologies:
   Sub-topology: 0
    Source: read (topics: [in])
      --> enrich
    Processor: enrich (stores: [])
      --> write
      <-- read
    Sink: write (topic: out)
      <-- enrich

  Sub-topology: 1 for global store (will not generate tasks)
    Source: KSTREAM-SOURCE-0000000000 (topics: [products])
      --> KTABLE-SOURCE-0000000001
    Processor: KTABLE-SOURCE-0000000001 (stores: [goods])
      --> none
      <-- KSTREAM-SOURCE-0000000000"""


class TestPlan:
    def test_a_global_table_adds_no_task_and_no_external_topic(self) -> None:
        plan = enriched().plan()
        assert [sub.source_topics for sub in plan.subtopologies] == [("in",)]
        assert plan.external_topics == plan.broker_topics == ("in",)
        assert plan.store_fingerprints() == {}
        assert [(part.id, part.source_topics, list(part.stores)) for part in plan.global_parts] == [
            (1, ("products",), ["goods"])
        ]

    def test_readers_of_one_global_table_are_separate_subtopologies(self) -> None:
        builder = ms.StreamsBuilder()
        table = builder.global_table("products")
        for topic in ("a", "b"):
            builder.stream(topic).join(table, lambda k, v: v, lambda v, row: row).to("out")
        assert [sub.source_topics for sub in builder.build().plan().subtopologies] == [("a",), ("b",)]

    def test_a_subtopology_that_reads_a_global_store_is_not_stateless(self) -> None:
        (sub,) = enriched().plan().subtopologies
        assert (sub.stateless, list(sub.global_stores)) == (False, ["goods"])

    def test_a_stateless_subtopology_has_no_global_store(self) -> None:
        topology = with_names().add_source("in", "in").add_sink("out", "out", "in")
        (sub,) = topology.plan().subtopologies
        assert (sub.stateless, dict(sub.global_stores)) == (True, {})

    def test_an_unread_global_table_belongs_to_the_first_stateful_subtopology(self) -> None:
        builder = ms.StreamsBuilder()
        builder.global_table("products", store="goods")
        builder.stream("a").to("b")
        for topic in ("c", "d"):
            builder.stream(topic).group_by_key().count()
        subs = builder.build().plan().subtopologies
        assert [(sub.stateless, list(sub.global_stores)) for sub in subs] == [
            (True, []),
            (False, ["goods"]),
            (False, []),
        ]

    def test_global_parts_are_numbered_after_the_subtopologies_of_the_checkpoint(self) -> None:
        plan = continued(
            enriched().plan(), {0: ComparedPart(("gone",), (), 1), 3: ComparedPart(("in",), (), 1)}
        )
        assert [sub.id for sub in (*plan.subtopologies, *plan.global_parts)] == [0, 1, 2, 3, 4]

    def test_a_task_without_its_global_stores_is_an_error(self) -> None:
        (sub,) = enriched().plan().subtopologies
        with pytest.raises(StoreError, match="without the global stores goods"):
            Task(sub, TaskId(0, 0), application_id="app", stores=MemoryStores())


class TestDescriptions:
    def test_the_description_equals_that_of_kafka_streams(self) -> None:
        assert enriched().describe() == DESCRIBED

    def test_the_printed_plan_names_the_topic_and_the_store(self) -> None:
        text = str(enriched().plan())
        assert "sub-topology 1 (for a global store, read by every task)" in text
        assert "    reads  products\n    keeps  goods (timestamped-key-value string -> string)" in text

    def test_diagrams_show_which_processors_read_the_store(self) -> None:
        assert '"store:goods" -> "enrich" [style=dashed]' in enriched().dot()
        assert "Sub-topology 1" in enriched().mermaid()


class TestRefused:
    @pytest.mark.parametrize(
        ("define", "message"),
        [
            (lambda t: t.add_processor("more", Quiet, "read"), "'read', which fills a global store"),
            (lambda t: t.add_sink("more", "out", "keep"), "'keep', which fills a global store"),
            (lambda t: t.add_source("again", "names"), "topic 'names' has two sources"),
            (
                lambda t: t.add_processor("use", Quiet, "in", stores=["names"]),
                "'use' uses store 'names' as its own",
            ),
        ],
    )
    def test_nodes_cannot_be_attached_to_a_global_part(
        self, define: Callable[[ms.Topology], Any], message: str
    ) -> None:
        topology = with_names().add_source("in", "in")
        with pytest.raises(TopologyError, match=message):
            define(topology).validate()

    def test_two_tables_cannot_share_a_store(self) -> None:
        builder = ms.StreamsBuilder()
        builder.global_table("a", store="same")
        with pytest.raises(TopologyError, match="store 'same' belongs to 'KTABLE-SOURCE-0000000001'"):
            builder.table("b", store="same")

    def test_a_processor_instance_is_refused_as_a_supplier(self) -> None:
        with pytest.raises(TopologyError, match="supplier must be callable"):
            ms.Topology().add_global_store(NAMES, "read", "names", "keep", Quiet())  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("store", "message"),
        [
            (
                ms.stores.window("w", STRING, STRING, retention=1000, size=10),
                "key-value store without ttl, not window",
            ),
            (ms.stores.key_value("e", STRING, STRING, ttl=5), "key-value store without ttl, not expiring"),
            (ms.stores.key_value("c", STRING, STRING, changelog="kafka"), "its topic is its changelog"),
        ],
    )
    def test_only_plain_key_value_stores_can_be_global(self, store: Any, message: str) -> None:
        with pytest.raises(TopologyError, match=message):
            ms.Topology().add_global_store(store, "read", "names", "keep", Quiet)


class TestTopologyWithOnlyAGlobalStore:
    def test_is_described(self) -> None:
        assert with_names().describe().splitlines()[1] == (
            "   Sub-topology: 0 for global store (will not generate tasks)"
        )
        assert all([with_names().mermaid(), with_names().dot(), with_names().svg()])

    def test_runs_in_the_test_driver(self) -> None:
        builder = ms.StreamsBuilder()
        builder.global_table("names", store="names")
        with ms.testing.TopologyTestDriver(builder.build()) as driver:
            driver.pipe("names", "k", "v")
            assert driver.store("names").get("k").value == "v"

    def test_is_refused_by_an_application(self) -> None:
        with pytest.raises(TopologyError, match="an application would have no task"):
            ms.Application("app", with_names(), bootstrap_servers="localhost:1")
