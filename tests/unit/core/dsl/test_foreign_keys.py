"""Joins of tables by a foreign key, beyond the recordings: any order of messages, names, and invalid arguments."""

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
"""Topic, key and value of a change; the value of an order begins with its customer, or nothing, and a colon."""


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
    """Join the rows that remain."""
    tables: dict[str, dict[str, str | None]] = {"orders": {}, "customers": {}}
    for topic, key, value in events:
        tables[topic][key] = value
    expected_rows = {}
    for key, order in tables["orders"].items():
        customer = None if order is None else tables["customers"].get(customer_of(order) or "")
        if order is not None and (customer is not None or kind == "left_join"):
            expected_rows[key] = paired(order, customer)
    return expected_rows


@pytest.mark.parametrize("kind", ["join", "left_join"])
@given(events=changes, data=st.data())
def test_the_final_rows_are_joined_in_any_order_of_messages(
    kind: str, events: list[Change], data: st.DataObject
) -> None:
    """Topics are read in any order and any pieces, so a response can arrive after its row was replaced."""
    runner = MicroBatches(joined(kind), "app", chunk=10, budget=None)
    for topic, key, value in events:
        runner.add(topic, [(key.encode(), None if value is None else value.encode(), 0, ())])
    while waiting := runner.waiting():
        runner.run_next(data.draw(st.sampled_from(waiting)))
    assert rows(runner.sent["out"]) == model(kind, events)


@pytest.mark.parametrize("kind", ["join", "left_join"])
@given(events=changes)
def test_each_change_updates_the_joined_rows(kind: str, events: list[Change]) -> None:
    with ms.testing.TopologyTestDriver(joined(kind)) as driver:
        sent: list[ms.Record] = []
        for end, event in enumerate(events, 1):
            driver.pipe(*event)
            sent += driver.read("out")
            assert rows(sent) == model(kind, events[:end])


def test_a_change_of_a_row_updates_all_rows_that_refer_to_it() -> None:
    orders: list[Change] = [("orders", "1", "x:1"), ("orders", "2", "x:2"), ("orders", "3", "y:3")]
    expected = [("1", "x:1+Ann"), ("2", "x:2+Ann")]
    assert results(joined(), [*orders, ("customers", "x", "Ann")]) == expected


def test_a_row_without_a_foreign_key_is_dropped_or_left_joined_with_none() -> None:
    with ms.testing.TopologyTestDriver(joined()) as driver:
        driver.pipe("orders", "1", ":1")
        assert (driver.read("out"), driver.metrics()["dropped_records"]) == ([], 1)
    assert results(joined("left_join"), [("orders", "1", ":1")]) == [("1", ":1+None")]


class TestARowThatLosesItsForeignKey:
    events: tuple[Change, ...] = (
        ("customers", "x", "Ann"),
        ("orders", "1", "x:1"),
        ("orders", "1", ":2"),
        ("customers", "x", "Bea"),
        ("orders", "1", "x:3"),
    )

    def test_loses_its_result(self) -> None:
        assert results(joined(), [*self.events]) == [("1", "x:1+Ann"), ("1", None), ("1", "x:3+Bea")]

    def test_keeps_its_result_with_null_on_ignored_as_in_kafka_streams(self) -> None:
        topology = joined(null_on="ignored")
        assert results(topology, [*self.events]) == [("1", "x:1+Ann")]
        with ms.testing.TopologyTestDriver(topology) as driver:
            for event in self.events:
                driver.pipe(*event)
            assert (
                driver.metrics()["dropped_records"] == 3
            )  # two changes, and the response for a value that was replaced

    def test_rejects_another_value_of_null_on(self) -> None:
        with pytest.raises(TopologyError, match="null_on must be 'deletes' or 'ignored', not 'kept'"):
            joined(null_on="kept")


def test_a_result_has_the_headers_of_its_change_and_a_timestamp_by_the_changed_side() -> None:
    with ms.testing.TopologyTestDriver(joined()) as driver:
        driver.pipe("customers", "x", "Ann", 30)
        driver.pipe("orders", "1", "x:1", 20, headers=[("h", b"1")])
        driver.pipe("customers", "x", "Bea", 10, headers=[("h", b"2")])
        seen = [(r.value, r.timestamp, r.headers) for r in driver.read("out")]
    assert seen == [("x:1+Ann", 30, (("h", b"1"),)), ("x:1+Bea", 10, (("h", b"2"),))]


def test_functions_may_take_the_key() -> None:
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


def test_a_table_can_be_joined_with_itself() -> None:
    builder = ms.StreamsBuilder()
    people = builder.table("people")
    people.left_join(people, lambda person, boss: f"{person} below {boss}", on=customer_of).to_stream().to(
        "out"
    )
    events: list[Change] = [("people", "x", ":Xi"), ("people", "1", "x:One"), ("people", "x", ":Xu")]
    expected = [
        ("x", ":Xi below None"),
        ("1", "x:One below :Xi"),
        ("1", "x:One below :Xu"),  # passes one internal topic; the result of x itself passes two
        ("x", ":Xu below None"),
    ]
    assert results(builder.build(), events) == expected


def test_derived_tables_can_be_joined_and_results_joined_again() -> None:
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
def test_late_changes_of_versioned_tables_are_dropped(late: str, value: str) -> None:
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


def test_a_row_whose_function_fails_is_dropped() -> None:
    def on(order: str) -> str:
        raise LookupError("whose is it?")

    policies = ms.ErrorPolicies(process="skip")
    with ms.testing.TopologyTestDriver(joined(on=on), policies=policies) as driver:
        driver.pipe("orders", "1", "x:1")
        assert driver.metrics()["dropped_records"] == 1


def test_the_partitioners_of_both_tables_apply_to_the_internal_topics() -> None:
    def first(key: str, partitions: int) -> int:
        return ord(key[0]) % partitions

    def last(key: str, partitions: int) -> int:
        return ord(key[-1]) % partitions

    topology = joined("left_join", partitioner=first, other_partitioner=last)
    nodes = [node for sub in topology.plan("app").subtopologies for node in sub.nodes.values()]
    partitioners = {
        node.name: node.partitioner for node in nodes if isinstance(node, Sink) and node.partitioner
    }
    subscription_partitioner = partitioners["named-subscription-registration-repartition-sink"]
    response_partitioner = partitioners["named-subscription-response-repartition-sink"]
    assert (
        subscription_partitioner("t", "xy", None, 100),
        subscription_partitioner("t", None, None, 100),
    ) == (ord("y") % 100, None)
    assert response_partitioner("t", "xy", None, 100) == ord("x") % 100
    assert results(topology, [("customers", "x", "Ann"), ("orders", "1", "x:1")]) == [("1", "x:1+Ann")]


def test_partitioners_without_a_foreign_key_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"apply only to joins by a foreign key \(on=...\)"):
        joined(on=None, partitioner=lambda key, partitions: 0)


def test_each_internal_topic_has_as_many_partitions_as_the_table_it_leads_to() -> None:
    partitions = lay_out(joined().plan("app"), {"orders": 2, "customers": 5}).partitions
    assert partitions["app-named-subscription-registration-repartition"] == 5
    assert partitions["app-named-subscription-response-repartition"] == 2


def test_stores_are_named_after_the_join_and_share_its_options() -> None:
    topology = joined(store=ms.stores.options("result", changelog="kafka"))
    assert set(topology.plan("app").changelogs) == {"result", "named-subscriptions"}
    assert "named-store" in joined().stores


def test_sides_of_two_builders_are_refused() -> None:
    with pytest.raises(TopologyError, match="different builders"):
        ms.StreamsBuilder().table("a").join(ms.StreamsBuilder().table("b"), paired, on=customer_of)
