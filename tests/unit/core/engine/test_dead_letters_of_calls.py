"""Dead letters of calls: what the key and value of the letter are, and what is said when there is no topic for it."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.core.engine.unfinished import in_bytes
from penstock.core.model.errors import ProductionError
from penstock.testing import TopologyTestDriver as Driver
from unit.helpers import Host

JSON = ps.serdes.json
TO_DEAD = ps.dead_letter("dead")


def fails(*args: Any) -> Any:
    raise OSError("down")


def gives_up(value: Any) -> Any:
    return ps.dead_letter("no good")


class Asks(ps.Processor[Any, Any, Any, Any]):
    """Issues a call that fails."""

    def process(self, record: ps.Record[Any, Any]) -> None:
        self.context.issue(fails, self.found, record.value)

    def found(self, record: ps.Record[Any, Any], result: Any) -> None:
        raise AssertionError


class FailsLater(ps.Processor[Any, Any, Any, Any]):
    """Fails when a record is given again."""

    seen = False

    def process(self, record: ps.Record[Any, Any]) -> None:
        if FailsLater.seen:
            raise ValueError("no")
        FailsLater.seen = True


CALLS = ps.Calls(on_failure=TO_DEAD)


def letter(topology: ps.Topology, key: Any, value: Any) -> tuple[Any, Any]:
    with Driver(topology) as driver:
        driver.pipe("in", key, value)
        (found,) = driver.read("dead")
    headers = dict(found.headers)
    assert (headers["penstock.error.stage"], headers["penstock.error.attempts"]) == (b"call", b"1")
    return found.key, found.value


class TestOfAProcessor:
    def test_are_what_the_stream_reads(self) -> None:
        builder = ps.StreamsBuilder()
        builder.stream("in", key=ps.serdes.int64, value=JSON).process(Asks, calls=CALLS)
        key, value = (7).to_bytes(8, "big"), b'{"a":1}'
        assert letter(builder.build(), 7, {"a": 1}) == (key, value)

    def test_are_what_the_source_reads(self) -> None:
        topology = ps.Topology().add_source("source", "in", key=ps.serdes.int64, value=ps.serdes.float64)
        topology.add_processor("worker", Asks, "source", calls=CALLS)
        assert letter(topology, 7, 1.0) == (ps.serdes.int64.serialize(7), ps.serdes.float64.serialize(1.0))

    @pytest.mark.parametrize(("second", "number"), [(ps.serdes.int64, (7).to_bytes(8, "big")), (JSON, b"7")])
    def test_are_what_all_sources_read(self, second: Any, number: bytes) -> None:
        topology = ps.Topology().add_source("source", "in", value=ps.serdes.int64)
        topology.add_source("other", "more", value=second)
        topology.add_processor("worker", Asks, ["source", "other"], calls=CALLS)
        assert letter(topology, "k", 7) == (b"k", number)

    def test_are_text_behind_another_node(self) -> None:
        topology = ps.Topology().add_source("source", "in", value=ps.serdes.int64)

        class Tells(ps.Processor[Any, Any, Any, Any]):
            def process(self, record: ps.Record[Any, Any]) -> None:
                self.context.forward(record.with_value(str(record.value)))

        topology.add_processor("tells", Tells, "source")
        topology.add_processor("worker", Asks, "tells", calls=CALLS)
        assert letter(topology, "k", 7) == (b"k", b"7")

    def test_are_so_too_if_it_acknowledges_and_fails_when_a_record_is_given_again(self) -> None:
        FailsLater.seen = False
        topology = ps.Topology().add_source("source", "in", value=JSON)
        topology.add_processor("worker", FailsLater, "source", acknowledges=True)
        host = Host(topology, policies=ps.ErrorPolicies(process="dead_letter", dead_letter_topic="dead"))
        host.run("in", ("k", '{"a":1}', 1))
        host.restart()
        ((topic, letters),) = host.step().sends
        assert (topic, letters.keys, letters.values) == ("dead", [b"k"], [b'{"a":1}'])


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"city": "Köln", "n": None}, '{"city":"Köln","n":null}'.encode()),
        ([1, "x"], b'[1,"x"]'),
        (b"\xff", b"\xff"),
        ("text", b"text"),
        ({1, 2}, b"{1, 2}"),
        (float("nan"), b"nan"),
        ({"a": "\ud800"}, rb"{'a': '\ud800'}"),
    ],
)
def test_what_does_not_fit_a_serde_is_told_as_json_or_else_as_python_shows_it(
    value: Any, told: bytes
) -> None:
    assert in_bytes(ps.serdes.string, value) == told


def test_values_whose_serde_nobody_knows_are_json() -> None:
    builder = ps.StreamsBuilder()
    made = builder.stream("in", value=JSON).map(lambda key, value: ({"id": key}, {**value, "b": [2]}))
    made.map_values_async(fails, on_failure=TO_DEAD)
    assert letter(builder.build(), "k", {"a": 1}) == (b'{"id":"k"}', b'{"a":1,"b":[2]}')


def test_without_a_topic_it_is_said_whose_record_it_is_and_where_a_topic_can_be_named() -> None:
    builder = ps.StreamsBuilder()
    builder.stream("in").map_values_async(gives_up, on_failure="skip", name="ask")
    with Driver(builder.build()) as driver, pytest.raises(ProductionError) as raised:
        driver.pipe("in", "k", "v")
    said = str(raised.value)
    assert said.startswith("the call of ask in task 0_0 at topic 'in', partition 0, offset 0 (key b'k'")
    assert "on_failure=ps.dead_letter('topic')" in said
    assert said.endswith("the setting dead_letter_topic")
