"""Joins of tables by a foreign key beyond the recordings: any order of messages, names, and refused arguments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from golden.micro_batches import MicroBatches
from millstream.core.model.errors import TopologyError
from millstream.core.topology.layout import lay_out
from millstream.core.topology.nodes import Sink

Change = tuple[str, str, str | None]
"""Topic, key and value of a row's change; orders name their customer in front of a colon, or nobody."""


def customer_of(order: str) -> str | None:
    return order.split(":")[0] or None


def paired(order: str, customer: str | None) -> str:
    return f"{order}+{customer}"


def joined(kind: str = "join", **options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    orders, customers = builder.table("orders", store="orders"), builder.table("customers", store="customers")
    result = getattr(orders, kind)(customers, paired, **{"on": customer_of, "name": "named", **options})
    result.to_stream().to("out")
    return builder.build()


def results(topology: ms.Topology, changes: list[Change]) -> list[tuple[str, str | None]]:
    with ms.testing.TopologyTestDriver(topology) as driver:
        for time, change in enumerate(changes):
            driver.pipe(*change, time)
        return [(r.key, r.value) for r in driver.read("out")]


def rows(records: list[ms.Record]) -> dict[str, str]:
    latest = {record.key: record.value for record in records}
    return {key: value for key, value in latest.items() if value is not None}


changes = st.lists(
    st.one_of(
        st.tuples(
            st.just("orders"),
            st.sampled_from("123"),
            st.one_of(
                st.none(), st.builds("{}:{}".format, st.sampled_from(["", "x", "y"]), st.integers(0, 1))
            ),
        ),
        st.tuples(st.just("customers"), st.sampled_from("xy"), st.sampled_from([None, "a", "b"])),
    ),
    max_size=25,
)


def model(kind: str, events: list[Change]) -> dict[str, str]:
    """Join the rows that are left."""
    tables: dict[str, dict[str, str | None]] = {"orders": {}, "customers": {}}
    for topic, key, value in events:
        tables[topic][key] = value
    found = {}
    for key, order in tables["orders"].items():
        customer = None if order is None else tables["customers"].get(customer_of(order) or "")
        if order is not None and (customer is not None or kind == "left_join"):
            found[key] = paired(order, customer)
    return found


@pytest.mark.parametrize("kind", ["join", "left_join"])
@given(events=changes, data=st.data())
def test_whatever_overtakes_whatever_the_rows_that_are_left_are_joined(
    kind: str, events: list[Change], data: st.DataObject
) -> None:
    """Topics are read in any order and any pieces, so answers come when their rows have long been replaced."""
    runner = MicroBatches(joined(kind), "app", chunk=10, budget=None)
    for topic, key, value in events:
        runner.add(topic, [(key.encode(), None if value is None else value.encode(), 0, ())])
    while waiting := runner.waiting():
        runner.run_next(data.draw(st.sampled_from(waiting)))
    assert rows(runner.sent["out"]) == model(kind, events)


@pytest.mark.parametrize("kind", ["join", "left_join"])
@given(events=changes)
def test_one_change_after_the_other_gives_the_rows_at_each_time(kind: str, events: list[Change]) -> None:
    with ms.testing.TopologyTestDriver(joined(kind)) as driver:
        sent: list[ms.Record] = []
        for end, event in enumerate(events, 1):
            driver.pipe(*event)
            sent += driver.read("out")
            assert rows(sent) == model(kind, events[:end])


def test_a_change_of_one_row_reaches_all_that_name_it() -> None:
    orders: list[Change] = [("orders", "1", "x:1"), ("orders", "2", "x:2"), ("orders", "3", "y:3")]
    expected = [("1", "x:1+Ann"), ("2", "x:2+Ann")]
    assert results(joined(), [*orders, ("customers", "x", "Ann")]) == expected


def test_a_row_that_names_nobody_is_dropped_or_stands_alone() -> None:
    with ms.testing.TopologyTestDriver(joined()) as driver:
        driver.pipe("orders", "1", ":1")
        assert (driver.read("out"), driver.metrics()["dropped_records"]) == ([], 1)
    assert results(joined("left_join"), [("orders", "1", ":1")]) == [("1", ":1+None")]


class TestARowThatNoLongerNamesAnybody:
    events: tuple[Change, ...] = (
        ("customers", "x", "Ann"),
        ("orders", "1", "x:1"),
        ("orders", "1", ":2"),
        ("customers", "x", "Bea"),
        ("orders", "1", "x:3"),
    )

    def test_loses_its_result(self) -> None:
        assert results(joined(), [*self.events]) == [("1", "x:1+Ann"), ("1", None), ("1", "x:3+Bea")]

    def test_keeps_it_as_kafka_streams_did_if_that_is_wanted(self) -> None:
        topology = joined(null_on="ignored")
        assert results(topology, [*self.events]) == [("1", "x:1+Ann")]
        with ms.testing.TopologyTestDriver(topology) as driver:
            for event in self.events:
                driver.pipe(*event)
            assert (
                driver.metrics()["dropped_records"] == 3
            )  # two changes, and the answer to a value that is gone

    def test_has_to_do_one_or_the_other(self) -> None:
        with pytest.raises(TopologyError, match="null_on must be 'deletes' or 'ignored', not 'kept'"):
            joined(null_on="kept")


def test_headers_and_times_are_those_of_the_change_and_of_the_newer_row() -> None:
    with ms.testing.TopologyTestDriver(joined()) as driver:
        driver.pipe("customers", "x", "Ann", 30)
        driver.pipe("orders", "1", "x:1", 20, headers=[("h", b"1")])
        driver.pipe("customers", "x", "Bea", 10, headers=[("h", b"2")])
        seen = [(r.value, r.timestamp, r.headers) for r in driver.read("out")]
    assert seen == [("x:1+Ann", 30, (("h", b"1"),)), ("x:1+Bea", 10, (("h", b"2"),))]


def test_functions_may_want_the_key() -> None:
    builder = ms.StreamsBuilder()
    orders, customers = builder.table("orders"), builder.table("customers")
    orders.join(
        customers,
        lambda key, order, customer: f"{key}:{order}:{customer}",
        on=lambda key, order: key[0],
        with_key=True,
    ).to_stream().to("out")
    events: list[Change] = [("customers", "x", "Ann"), ("orders", "x1", "one")]
    assert results(builder.build(), events) == [("x1", "x1:one:Ann")]


def test_a_table_is_joined_with_itself() -> None:
    builder = ms.StreamsBuilder()
    people = builder.table("people")
    people.left_join(people, lambda person, boss: f"{person} below {boss}", on=customer_of).to_stream().to(
        "out"
    )
    events: list[Change] = [("people", "x", ":Xi"), ("people", "1", "x:One"), ("people", "x", ":Xu")]
    expected = [
        ("x", ":Xi below None"),
        ("1", "x:One below :Xi"),
        ("1", "x:One below :Xu"),  # one topic away, its own result two
        ("x", ":Xu below None"),
    ]
    assert results(builder.build(), events) == expected


def test_tables_may_be_derived_and_results_joined_again() -> None:
    builder = ms.StreamsBuilder()
    orders = builder.table("orders").filter(lambda _, order: not order.endswith("0"))
    customers = builder.table("customers").map_values(str.upper)
    first = orders.join(customers, paired, on=customer_of, name="first")
    first.join(builder.table("notes"), paired).to_stream().to("out")
    events: list[Change] = [
        ("customers", "x", "Ann"),
        ("notes", "1", "urgent"),
        ("orders", "1", "x:1"),
        ("orders", "1", "x:0"),
    ]
    assert results(builder.build(), events) == [("1", "x:1+ANN+urgent"), ("1", None)]


@pytest.mark.parametrize(("late", "value"), [("orders", "x:late"), ("customers", "Late")])
def test_late_changes_of_versioned_tables_are_left_out(late: str, value: str) -> None:
    builder = ms.StreamsBuilder()
    orders, customers = (
        builder.table(topic, store=ms.stores.options(topic, history_retention=100))
        for topic in ("orders", "customers")
    )
    orders.join(customers, paired, on=customer_of).to_stream().to("out")
    with ms.testing.TopologyTestDriver(builder.build()) as driver:
        driver.pipe("customers", "x", "Ann", 20)
        driver.pipe("orders", "1", "x:1", 20)
        driver.pipe(late, "1" if late == "orders" else "x", value, 10)
        assert [r.value for r in driver.read("out")] == ["x:1+Ann"]
        assert driver.metrics()["dropped_records"] == 1


def test_a_function_that_fails_leaves_its_row_out() -> None:
    def on(order: str) -> str:
        raise LookupError("whose is it?")

    policies = ms.ErrorPolicies(process="skip")
    with ms.testing.TopologyTestDriver(joined(on=on), policies=policies) as driver:
        driver.pipe("orders", "1", "x:1")
        assert driver.metrics()["dropped_records"] == 1


def test_rows_that_were_placed_by_a_partitioner_are_asked_and_answered_where_they_are() -> None:
    def first(key: str, partitions: int) -> int:
        return ord(key[0]) % partitions

    def last(key: str, partitions: int) -> int:
        return ord(key[-1]) % partitions

    topology = joined("left_join", partitioner=first, other_partitioner=last)
    nodes = [node for sub in topology.plan("app").subtopologies for node in sub.nodes.values()]
    placed = {node.name: node.partitioner for node in nodes if isinstance(node, Sink) and node.partitioner}
    asking = placed["named-subscription-registration-repartition-sink"]
    answering = placed["named-subscription-response-repartition-sink"]
    assert (asking("t", "xy", None, 100), asking("t", None, None, 100)) == (ord("y") % 100, None)
    assert answering("t", "xy", None, 100) == ord("x") % 100
    assert results(topology, [("customers", "x", "Ann"), ("orders", "1", "x:1")]) == [("1", "x:1+Ann")]


def test_partitioners_without_a_foreign_key_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"apply only to joins by a foreign key \(on=...\)"):
        joined(on=None, partitioner=lambda key, partitions: 0)


def test_each_topic_has_the_partitions_of_the_table_it_leads_to() -> None:
    partitions = lay_out(joined().plan("app"), {"orders": 2, "customers": 5}).partitions
    assert partitions["app-named-subscription-registration-repartition"] == 5
    assert partitions["app-named-subscription-response-repartition"] == 2


def test_stores_are_named_by_the_join_and_kept_alike() -> None:
    topology = joined(store=ms.stores.options("result", changelog="kafka"))
    assert set(topology.plan("app").changelogs) == {"result", "named-subscriptions"}
    assert "named-store" in joined().stores


def test_sides_of_two_builders_are_refused() -> None:
    with pytest.raises(TopologyError, match="different builders"):
        ms.StreamsBuilder().table("a").join(ms.StreamsBuilder().table("b"), paired, on=customer_of)
