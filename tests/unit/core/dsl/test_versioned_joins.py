"""Joins with versioned tables: as of a record's time, after a grace period, and without late changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from golden.micro_batches import MicroBatches
from millstream.core.asynchronous.call import Done
from millstream.core.model.errors import TopologyError
from unit.helpers import Host, processing, sent

Row = tuple[str, str, str | None, int]
"""Topic, key, value and timestamp of a record."""
HISTORY = 1000


def paired(left: str | None, right: str | None) -> str:
    return f"{left}+{right}"


def prices(builder: ms.StreamsBuilder, topic: str = "prices") -> ms.KTable[str, str]:
    return builder.table(topic, store=ms.stores.options(f"{topic}-kept", history_retention=HISTORY))


def priced(kind: str = "join", joiner: Any = paired, **options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    getattr(builder.stream("orders"), kind)(prices(builder), joiner, name="priced", **options).to("out")
    return builder.build()


def results(topology: ms.Topology, rows: list[Row]) -> list[tuple[str, str, int]]:
    with ms.testing.TopologyTestDriver(topology) as driver:
        for row in rows:
            driver.pipe(*row)
        return [(r.key, r.value, r.timestamp) for r in driver.read("out")]


LATE = [
    ("prices", "apple", "old", 10),
    ("prices", "apple", "new", 30),
    ("orders", "apple", "late", 20),
    ("orders", "apple", "on time", 30),
    ("orders", "apple", "too early", 9),
]


def test_a_record_is_joined_with_the_row_of_its_timestamp() -> None:
    assert results(priced(), LATE) == [("apple", "late+old", 20), ("apple", "on time+new", 30)]


def test_a_left_join_finds_no_row_before_the_first_version() -> None:
    assert results(priced("left_join"), LATE)[-1] == ("apple", "too early+None", 9)


def test_rows_are_found_through_filters_and_mappings_of_the_table() -> None:
    builder = ms.StreamsBuilder()
    table = prices(builder).filter(lambda _, price: price != "new").map_values(str.upper)
    builder.stream("orders").left_join(table, paired).to("out")
    expected = ["late+OLD", "on time+None", "too early+None"]
    assert [value for _, value, _ in results(builder.build(), LATE)] == expected


def test_a_record_waits_for_rows_that_arrive_late() -> None:
    rows: list[Row] = [
        ("orders", "apple", "one", 20),
        ("prices", "apple", "cheap", 15),
        ("orders", "pear", "two", 29),
        ("orders", "pear", "three", 30),
    ]
    assert results(priced(grace=10), rows) == [("apple", "one+cheap", 20)]
    assert results(priced(), rows) == []


def test_a_record_without_a_key_does_not_wait() -> None:
    with ms.testing.TopologyTestDriver(priced("left_join", grace=10)) as driver:
        driver.pipe("orders", None, "one", 20)
        assert [r.value for r in driver.read("out")] == ["one+None"]


def test_waiting_records_keep_their_headers_and_metadata() -> None:
    """Headers, metadata and error messages are those of the waiting record, not of the record that released it."""
    seen: list[Any] = []

    class Collector(ms.Processor):
        def process(self, record: ms.Record) -> None:
            seen.append((record.value, record.headers, self.context.record_metadata))

    builder = ms.StreamsBuilder()
    joined = builder.stream("orders").left_join(prices(builder), paired, grace=0)
    joined.process(Collector)
    host = Host(builder.build())
    headers = (("a", b"1"), ("b", None))
    host.feed("orders", [("k", "one", 5, headers)], partition=3)
    host.feed("orders", [("k", "late", 1), ("k", "two", 6)], partition=4)
    host.step()
    assert seen == [
        ("late+None", (), ("orders", 4, 0)),
        ("one+None", headers, ("orders", 3, 0)),
        ("two+None", (), ("orders", 4, 1)),
    ]


def test_the_result_of_a_call_keeps_its_metadata_after_it_released_other_records() -> None:
    """A call's result passes the join first, and then a processor that fails."""
    seen: list[Any] = []

    def fail(context: ms.ProcessorContext, record: ms.Record) -> None:
        seen.append((record.value, context.record_metadata))
        raise LookupError(record.value)

    builder = ms.StreamsBuilder()
    called = builder.stream("orders").map_values_async(str.upper)
    called.left_join(prices(builder), paired, grace=10).to("out")
    called.process(processing(fail))
    policies = ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead")
    host = Host(builder.build(), policies=policies)
    (call,) = host.run("orders", ("k", "one", 5)).issue
    host.task.done(call.ticket, Done("ONE"))
    outcome = host.step()
    assert seen == [("ONE", ("orders", 0, 0))]
    assert sent(outcome, "dead") == [("k", "one", 5)]


def test_a_record_that_fails_after_it_waited_does_not_affect_other_records() -> None:
    def joiner(order: str, price: str | None) -> str:
        if order == "bad":
            raise LookupError("no such order")
        return order

    policies = ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead")
    host = Host(priced("left_join", joiner, grace=10), policies=policies)
    host.feed(
        "orders", [("k", "good", 1), ("k", "bad", 2, (("h", b"1"),)), ("k", "fine", 3), ("k", "last", 20)]
    )
    outcome = host.step()
    assert [value for _, value, _ in sent(outcome)] == ["good", "fine"]
    assert sent(outcome, "dead") == [("k", "bad", 2)]
    (dead,) = (records for topic, records in outcome.sends if topic == "dead")
    assert dead.headers is not None
    assert {("h", b"1"), ("millstream.error.offset", b"1")} <= set(dead.headers[0])


rows = st.lists(
    st.tuples(
        st.sampled_from(["orders", "prices"]), st.sampled_from("ab"), st.booleans(), st.integers(0, 40)
    ),
    max_size=40,
).map(
    lambda drawn: [
        (t, k, f"{t[0]}{i}" if has_value else None, time) for i, (t, k, has_value, time) in enumerate(drawn)
    ]
)


def model(kind: str, grace: int | None, events: list[Row]) -> list[tuple[str, str, int]]:
    """Compute the join with a dict of all versions and a list of waiting records."""
    versions: dict[str, dict[int, str | None]] = {"a": {}, "b": {}}
    model_results: list[tuple[str, str, int]] = []
    waiting: list[tuple[int, str, int, str]] = []
    now = -1

    def join(key: str, value: str, time: int) -> None:
        row = next((versions[key][t] for t in sorted(versions[key], reverse=True) if t <= time), None)
        if row is not None or kind == "left_join":
            model_results.append((key, paired(value, row), time))

    for number, (topic, key, value, time) in enumerate(events):
        if topic == "prices":
            versions[key][time] = value
        elif value is not None and (grace is None or time < now - grace):
            join(key, value, time)
        elif value is not None and grace is not None:
            now = max(now, time)
            waiting.append((time, key, number, value))
            for due in sorted(w for w in waiting if w[0] <= now - grace):
                waiting.remove(due)
                join(due[1], due[3], due[0])
    return model_results


graces = st.one_of(st.none(), st.integers(0, 30))


@pytest.mark.parametrize("kind", ["join", "left_join"])
@given(events=rows, grace=graces)
def test_a_join_has_the_same_results_as_a_model_with_a_dict_of_versions(
    kind: str, events: list[Row], grace: int | None
) -> None:
    assert results(priced(kind, grace=grace), events) == model(kind, grace, events)


@given(events=rows, grace=graces)
def test_waiting_records_survive_restarts(events: list[Row], grace: int | None) -> None:
    runner = MicroBatches(priced(grace=grace), "app", chunk=1, budget=None)
    for topic, key, value, time in events:
        runner.process(topic, [(key.encode(), None if value is None else value.encode(), time, ())])
    assert [(r.key, r.value, r.timestamp) for r in runner.sent["out"]] == model("join", grace, events)


class TestTwoTables:
    @staticmethod
    def joined(*, versions: tuple[bool, bool]) -> ms.Topology:
        builder = ms.StreamsBuilder()
        left, right = (
            prices(builder, topic) if kept else builder.table(topic)
            for topic, kept in zip(("left", "right"), versions)
        )
        left.join(right, paired).to_stream().to("out")
        return builder.build()

    @pytest.mark.parametrize(
        ("versions", "expected"),
        [
            ((False, False), ["l20+r20", "l10+r20", "l10+r10"]),
            ((True, True), ["l20+r20"]),
            ((True, False), ["l20+r20", "l20+r10"]),
            ((False, True), ["l20+r20", "l10+r20"]),
        ],
    )
    def test_late_changes_of_a_versioned_side_are_dropped(
        self, versions: tuple[bool, bool], expected: list[str]
    ) -> None:
        with ms.testing.TopologyTestDriver(self.joined(versions=versions)) as driver:
            for side, time in (("left", 20), ("right", 20), ("left", 10), ("right", 10)):
                driver.pipe(side, "k", f"{side[0]}{time}", time)
            assert [r.value for r in driver.read("out")] == expected
            assert driver.metrics()["dropped_records"] == sum(versions)


class TestInvalidOptions:
    def test_grace_requires_a_versioned_table(self) -> None:
        builder = ms.StreamsBuilder()
        with pytest.raises(TopologyError, match="a versioned table"):
            builder.stream("orders").join(builder.table("prices"), paired, grace=1)

    @pytest.mark.parametrize("grace", [-1, HISTORY + 1])
    def test_grace_cannot_exceed_the_history_retention(self, grace: int) -> None:
        with pytest.raises(TopologyError, match=f"from 0 to {HISTORY} ms"):
            priced(grace=grace)

    def test_grace_is_refused_for_two_streams(self) -> None:
        builder = ms.StreamsBuilder()
        join: Any = builder.stream("orders").join
        with pytest.raises(TopologyError, match="JoinWindows"):
            join(builder.stream("prices"), paired, windows=ms.JoinWindows(1, 1, 0), grace=1)

    def test_a_store_requires_grace(self) -> None:
        with pytest.raises(TopologyError, match="has no store without grace"):
            priced(store="kept")


def test_the_buffer_is_a_store_that_is_named_after_the_join() -> None:
    assert "priced-buffer" in priced(grace=1).stores
    kept = ms.stores.options("waiting", changelog="kafka")
    assert priced(grace=1, store=kept).plan("app").changelogs == {
        "waiting-buffer": "app-waiting-buffer-changelog"
    }


def test_waiting_records_are_found_again_when_operators_are_inserted_upstream() -> None:
    def built(*, edited: bool) -> ms.Topology:
        builder = ms.StreamsBuilder()
        table, orders = prices(builder), builder.stream("orders")
        orders = orders.filter(lambda _, order: order != "-") if edited else orders
        orders.left_join(table, paired, grace=10, store="waiting").to("out")
        return builder.build()

    host = Host(built(edited=False))
    host.run("orders", ("k", "one", 5), ("k", "two", 5))
    host.sub = built(edited=True).plan("app").subtopologies[0]
    host.restart()
    outcome = host.run("orders", ("k", "three", 5), ("k", "four", 20))
    assert [value for _, value, _ in sent(outcome)] == ["one+None", "two+None", "three+None"]
