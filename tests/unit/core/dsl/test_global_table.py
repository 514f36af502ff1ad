"""Global tables: every task sees all rows, joins on any key need no repartition, and only the topic changes the rows."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import DeserializationError, ProcessingError, TopologyError
from millstream.core.topology.nodes import Repartition

STRING = ms.serdes.string
NAMES = ms.stores.key_value("names", STRING, STRING)


def joined(**options: Any) -> ms.Topology:
    """Join orders, whose values name a product, with the products."""
    left = options.pop("left", False)
    builder = ms.StreamsBuilder()
    products = builder.global_table("products")
    orders = builder.stream("orders")
    join = orders.left_join if left else orders.join
    joiner = options.pop("joiner", lambda order, product: f"{order}={product}")
    selector = options.pop("selector", lambda _, order: order.removeprefix("-") or None)
    join(products, selector, joiner, **options).to("out")
    return builder.build()


def out(driver: ms.testing.TopologyTestDriver) -> list[tuple[Any, Any, int]]:
    return [(record.key, record.value, record.timestamp) for record in driver.read("out")]


class LookUp(ms.Processor):
    """Forwards the row of a global store whose key is the value of the record."""

    def process(self, record: ms.Record) -> None:
        self.context.forward(record.with_value(self.context.state_store("names").get(record.value)))


class Upper(ms.Processor):
    """Stores names in capitals under their first letters; a null value deletes the entry."""

    def process(self, record: ms.Record) -> None:
        value = None if record.value is None else record.value.upper()
        self.context.state_store("names").put(record.key[0], value)


def looked_up(keeper: Any = Upper, reader: Any = LookUp) -> ms.Topology:
    return (
        ms.Topology()
        .add_global_store(NAMES, "read", "names", "keep", keeper)
        .add_source("in", "in")
        .add_processor("look", reader, "in")
        .add_sink("out", "out", "look")
    )


class TestJoin:
    def test_takes_the_row_that_the_selector_names(self) -> None:
        with ms.testing.TopologyTestDriver(joined()) as driver:
            driver.pipe("products", "p1", "vase", timestamp=90)
            driver.pipe("orders", "o1", "p1", timestamp=5)
            driver.pipe("orders", "o2", "p2", timestamp=6)
            assert out(driver) == [("o1", "p1=vase", 5)]

    def test_a_change_of_the_table_affects_only_later_records(self) -> None:
        with ms.testing.TopologyTestDriver(joined(left=True)) as driver:
            driver.pipe("orders", "o1", "p1")
            driver.pipe("products", "p1", "vase")
            assert [value for _, value, _ in out(driver)] == ["p1=None"]
            driver.pipe("orders", "o2", "p1")
            driver.pipe("products", "p1", None)
            driver.pipe("orders", "o3", "p1")
            assert [value for _, value, _ in out(driver)] == ["p1=vase", "p1=None"]

    @pytest.mark.parametrize("left", [False, True])
    def test_a_null_value_is_dropped_and_the_selector_is_not_called(self, left: bool) -> None:
        with ms.testing.TopologyTestDriver(joined(left=left)) as driver:
            driver.pipe("orders", "o1", None)
            assert (out(driver), driver.metrics()["dropped_records"]) == ([], 1)

    @pytest.mark.parametrize(
        ("left", "expected", "dropped"),
        [(False, [], 2), (True, [("o1", "-=None", 0), (None, "-=None", 0)], 0)],
    )
    def test_a_null_row_key_is_dropped_or_finds_no_row(
        self, left: bool, expected: list[Any], dropped: int
    ) -> None:
        with ms.testing.TopologyTestDriver(joined(left=left)) as driver:
            driver.pipe("orders", "o1", "-")
            driver.pipe("orders", None, "-")
            assert (out(driver), driver.metrics()["dropped_records"]) == (expected, dropped)

    def test_a_record_without_a_key_is_joined(self) -> None:
        with ms.testing.TopologyTestDriver(joined()) as driver:
            driver.pipe("products", "p1", "vase")
            driver.pipe("orders", None, "p1")
            assert out(driver) == [(None, "p1=vase", 0)]

    def test_headers_are_kept_and_the_joiner_may_take_the_key(self) -> None:
        topology = joined(joiner=lambda key, order, product: f"{key}{order}{product}", with_key=True)
        with ms.testing.TopologyTestDriver(topology) as driver:
            driver.pipe("products", "p", "v", headers=(("of", b"table"),))
            driver.pipe("orders", "o", "p", headers=(("of", b"stream"),))
            assert driver.read("out") == [ms.Record("o", "opv", 0, (("of", b"stream"),))]

    @pytest.mark.parametrize("function", ["selector", "joiner"])
    def test_a_function_that_raises_fails_the_record(self, function: str) -> None:
        topology = joined(name="enrich", **{function: lambda _, other: 1 / 0})
        with ms.testing.TopologyTestDriver(topology) as driver:
            driver.pipe("products", "p1", "vase")
            with pytest.raises(ProcessingError, match=r"enrich .* ZeroDivisionError"):
                driver.pipe("orders", "o1", "p1")

    @pytest.mark.parametrize("rekey", [False, True])
    def test_does_not_repartition_a_rekeyed_stream_but_a_later_aggregation_does(self, rekey: bool) -> None:
        builder = ms.StreamsBuilder()
        products, orders = builder.global_table("products"), builder.stream("orders")
        orders = orders.select_key(lambda _, v: v) if rekey else orders
        orders.join(products, lambda k, _: k, lambda order, _: order).group_by_key().count(store="counts")
        found = [n for n in builder.build().nodes.values() if isinstance(n, Repartition)]
        assert len(found) == rekey

    def test_a_table_of_another_builder_is_refused(self) -> None:
        other = ms.StreamsBuilder().global_table("products")
        with pytest.raises(
            TopologyError,
            match="the stream and the global table 'products-table' belong to different builders",
        ):
            ms.StreamsBuilder().stream("orders").join(other, lambda k, v: k, lambda a, b: a)


class TestTable:
    def test_its_store_can_be_named_and_read(self) -> None:
        builder = ms.StreamsBuilder()
        assert builder.global_table("products", store="goods").store_name == "goods"
        builder.stream("orders").to("out")
        with ms.testing.TopologyTestDriver(builder.build()) as driver:
            driver.pipe("products", "p1", "vase", timestamp=7)
            driver.pipe("products", "p2", "jug", timestamp=3)
            driver.pipe("products", "p1", None, timestamp=4)
            assert list(driver.store("goods").all()) == [("p2", ("jug", 3))]

    def test_a_record_without_a_key_is_dropped_and_counted(self) -> None:
        with ms.testing.TopologyTestDriver(joined()) as driver:
            driver.pipe("products", None, "vase")
            assert driver.metrics()["dropped_records"] == 1

    def test_records_that_the_topology_sends_to_the_topic_update_the_table(self) -> None:
        builder = ms.StreamsBuilder()
        names = builder.global_table("names")
        builder.stream("news").to("names")
        builder.stream("in").join(names, lambda _, v: v, lambda _, name: name).to("out")
        with ms.testing.TopologyTestDriver(builder.build()) as driver:
            driver.pipe("news", "n1", "Ada")
            driver.pipe("in", "k", "n1")
            assert out(driver) == [("k", "Ada", 0)]

    @pytest.mark.parametrize("policy", ["skip", "dead_letter"])
    def test_a_bad_record_is_skipped_and_never_a_dead_letter(self, policy: Any) -> None:
        policies = ms.ErrorPolicies(deserialize=policy, dead_letter_topic="dead")
        with ms.testing.TopologyTestDriver(joined(), policies=policies) as driver:
            driver.pipe("products", b"\xff", "vase")
            assert (driver.read("dead"), driver.metrics()["dropped_records"]) == ([], 1)

    def test_a_bad_record_stops_the_application_by_default(self) -> None:
        with (
            ms.testing.TopologyTestDriver(joined()) as driver,
            pytest.raises(DeserializationError, match="products"),
        ):
            driver.pipe("products", b"\xff", "vase")


class TestStoreOfAProcessor:
    def test_is_written_by_its_processor_and_read_by_any_other(self) -> None:
        with ms.testing.TopologyTestDriver(looked_up()) as driver:
            driver.pipe("names", "ada", "Lovelace")
            driver.pipe("in", "k", "a")
            driver.pipe("names", "alan", None)
            driver.pipe("in", "k", "a")
            assert [value for _, value, _ in out(driver)] == ["LOVELACE", None]

    def test_can_be_added_by_the_builder(self) -> None:
        builder = ms.StreamsBuilder().add_global_store(NAMES, "names", Upper)
        builder.stream("in").process(LookUp).to("out")
        with ms.testing.TopologyTestDriver(builder.build()) as driver:
            driver.pipe("names", "ada", "Lovelace")
            driver.pipe("in", "k", "a")
            assert out(driver) == [("k", "LOVELACE", 0)]

    @pytest.mark.parametrize(
        "write",
        [
            lambda store: store.put("a", "b"),
            lambda store: store.put_if_absent("a", "b"),
            lambda store: store.put_all([("a", "b")]),
            lambda store: store.delete("a"),
        ],
    )
    def test_cannot_be_written_by_other_processors(self, write: Any) -> None:
        class Write(ms.Processor):
            def process(self, record: ms.Record) -> None:
                write(self.context.state_store("names"))

        with (
            ms.testing.TopologyTestDriver(looked_up(reader=Write)) as driver,
            pytest.raises(ProcessingError, match="store 'names': it is read-only here"),
        ):
            driver.pipe("in", "k", "v")

    def test_supports_every_kind_of_read(self) -> None:
        class Read(ms.Processor):
            def process(self, record: ms.Record) -> None:
                store = self.context.state_store("names")
                found = [store.all(), store.reverse_all(), store.range("b"), store.reverse_range(None, "b")]
                walks = ["".join(key for key, _ in walk) for walk in (*found, store.prefix_scan("c"))]
                self.context.forward(record.with_value(f"{store.approximate_count()} {' '.join(walks)}"))

        with ms.testing.TopologyTestDriver(looked_up(reader=Read)) as driver:
            for key in "cab":
                driver.pipe("names", key, "x")
            driver.pipe("in", "k", "v")
            assert out(driver) == [("k", "3 abc cba bc ba c", 0)]

    def test_its_processor_cannot_schedule_punctuations(self) -> None:
        class Scheduling(Upper):
            def init(self, context: ms.ProcessorContext) -> None:
                super().init(context)
                context.schedule(1000, ms.wall_clock, lambda now: None)

        with pytest.raises(ProcessingError, match=r"'keep' fills a global store and cannot schedule"):
            ms.testing.TopologyTestDriver(looked_up(keeper=Scheduling))
