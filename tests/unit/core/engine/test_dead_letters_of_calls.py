"""Dead letters of calls: their key and value, and the error when there is no dead-letter topic."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import millstream as ms
from millstream.core.asynchronous.call import Call, Failed, Settled, Ticket
from millstream.core.asynchronous.dispatcher import Dispatcher
from millstream.core.engine.asynchronous.in_flight_record import in_bytes
from millstream.core.model.errors import ProductionError
from millstream.testing import TopologyTestDriver as Driver
from unit.helpers import Host

JSON = ms.serdes.json
TO_DEAD = ms.dead_letter("dead")


def fails(*args: Any) -> Any:
    raise OSError("down")


def gives_up(value: Any) -> Any:
    return ms.dead_letter("no good")


class FailingCaller(ms.Processor[Any, Any, Any, Any]):
    """Issues a call that fails."""

    def process(self, record: ms.Record[Any, Any]) -> None:
        self.context.issue(fails, self.received, record.value)

    def received(self, record: ms.Record[Any, Any], result: Any) -> None:
        raise AssertionError


class FailsLater(ms.Processor[Any, Any, Any, Any]):
    """Fails when it receives a record again."""

    seen = False

    def process(self, record: ms.Record[Any, Any]) -> None:
        if FailsLater.seen:
            raise ValueError("no")
        FailsLater.seen = True


CALLS = ms.Calls(on_failure=TO_DEAD)


def letter(topology: ms.Topology, key: Any, value: Any) -> tuple[Any, Any]:
    with Driver(topology) as driver:
        driver.pipe("in", key, value)
        (received,) = driver.read("dead")
    headers = dict(received.headers)
    assert (headers["millstream.error.stage"], headers["millstream.error.attempts"]) == (b"call", b"1")
    return received.key, received.value


class TestKeyAndValue:
    def test_have_the_serdes_of_the_stream(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in", key=ms.serdes.int64, value=JSON).process(FailingCaller, calls=CALLS)
        key, value = (7).to_bytes(8, "big"), b'{"a":1}'
        assert letter(builder.build(), 7, {"a": 1}) == (key, value)

    def test_have_the_serdes_of_the_source(self) -> None:
        topology = ms.Topology().add_source("source", "in", key=ms.serdes.int64, value=ms.serdes.float64)
        topology.add_processor("worker", FailingCaller, "source", calls=CALLS)
        assert letter(topology, 7, 1.0) == (ms.serdes.int64.serialize(7), ms.serdes.float64.serialize(1.0))

    @pytest.mark.parametrize(("second", "number"), [(ms.serdes.int64, (7).to_bytes(8, "big")), (JSON, b"7")])
    def test_have_the_serdes_of_all_sources_or_are_json(self, second: Any, number: bytes) -> None:
        topology = ms.Topology().add_source("source", "in", value=ms.serdes.int64)
        topology.add_source("other", "more", value=second)
        topology.add_processor("worker", FailingCaller, ["source", "other"], calls=CALLS)
        assert letter(topology, "k", 7) == (b"k", number)

    def test_are_text_downstream_of_another_processor(self) -> None:
        topology = ms.Topology().add_source("source", "in", value=ms.serdes.int64)

        class ToText(ms.Processor[Any, Any, Any, Any]):
            def process(self, record: ms.Record[Any, Any]) -> None:
                self.context.forward(record.with_value(str(record.value)))

        topology.add_processor("tells", ToText, "source")
        topology.add_processor("worker", FailingCaller, "tells", calls=CALLS)
        assert letter(topology, "k", 7) == (b"k", b"7")

    def test_have_the_serdes_of_the_source_when_a_restored_record_fails(self) -> None:
        FailsLater.seen = False
        topology = ms.Topology().add_source("source", "in", value=JSON)
        topology.add_processor("worker", FailsLater, "source", acknowledges=True)
        host = Host(topology, policies=ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead"))
        host.run("in", ("k", '{"a":1}', 1))
        host.restart()
        ((topic, letters),) = host.step().sends
        assert (topic, letters.keys, letters.values) == ("dead", [b"k"], [b'{"a":1}'])


def looked_up(text: str = "plum") -> Failed:
    """Return the failure of a call as an async worker records it."""
    dispatcher = Dispatcher(ms.Calls())
    dispatcher.offer(Call(Ticket("call", 0, 1, ""), PRICES.__getitem__, (text,)), 0)
    (start,) = dispatcher.start(0)
    try:
        start.run()
    except KeyError as error:
        dispatcher.end(start.number, start.raised(error), 0)
    ((_, failed),) = dispatcher.take_settled()
    assert isinstance(failed, Failed)
    return failed


PRICES: dict[str, str] = {}


class TestTheException:
    @staticmethod
    def headers(failed: Settled, *, repeats_sends: bool = True) -> dict[str, bytes]:
        builder = ms.StreamsBuilder()
        builder.stream("in").map_values_async(str.upper, name="call", on_failure=TO_DEAD)
        host = Host(builder.build(), repeats_sends=repeats_sends)
        (call,) = host.run("in", ("k", "v", 1)).issue
        host.task.done(call.ticket, failed)
        outcome = host.step()
        if not repeats_sends:
            host.restart()
            outcome = host.step()
        ((_, letters),) = outcome.sends
        assert letters.headers is not None
        return dict(letters.headers[0])

    @pytest.mark.parametrize("repeats_sends", [True, False])
    def test_is_described_even_after_the_failure_was_stored(self, repeats_sends: bool) -> None:
        headers = self.headers(looked_up(), repeats_sends=repeats_sends)
        assert headers["__streams.errors.exception"] == b"builtins.KeyError"
        assert headers["__streams.errors.message"] == b"'plum'"
        assert headers["millstream.error.error"] == b"KeyError: 'plum'"
        assert b"in looked_up\n    start.run()" in headers["millstream.error.traceback"]
        assert headers["__streams.errors.stacktrace"] == headers["millstream.error.traceback"]

    def test_is_unknown_in_a_failure_that_an_earlier_version_stored(self) -> None:
        older = Failed(1, "KeyError: 'plum'")
        for name in ("kind", "trace"):
            del older.__dict__[name]
        headers = self.headers(pickle.loads(pickle.dumps(older)))
        assert headers["millstream.error.error"] == b"KeyError: 'plum'"
        assert (headers["__streams.errors.exception"], headers["millstream.error.traceback"]) == (b"", b"")

    @pytest.mark.parametrize("letter", ["x", "д", "\U0001f600"])
    def test_makes_a_letter_at_most_64_kib_larger_than_its_record(self, letter: str) -> None:
        headers = self.headers(looked_up(letter * 250_000))
        assert sum(len(name) + len(value) for name, value in headers.items()) <= 64 << 10
        assert headers["millstream.error.error"].decode().startswith(f"KeyError: '{letter}{letter}")
        headers["millstream.error.traceback"].decode()

    def test_of_a_processor_has_the_same_limit(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").map_values(float).to("out", value=ms.serdes.float64)
        policies = ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead")
        with Driver(builder.build(), policies=policies) as driver:
            driver.pipe("in", "k", "x" * 250_000)
            (received,) = driver.read("dead")
        assert len(received.value) == 250_000
        assert sum(len(name) + len(value) for name, value in received.headers) <= 64 << 10


def test_the_driver_reads_dead_letters_as_bytes_although_a_sink_chooses_its_topics() -> None:
    builder = ms.StreamsBuilder()
    called = builder.stream("in").map_values_async(fails, on_failure=TO_DEAD)
    called.to(lambda key, value, context: "out", value=ms.serdes.int64)
    assert letter(builder.build(), "k", "hello") == (b"k", b"hello")


@pytest.mark.parametrize(
    ("value", "expected"),
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
def test_a_value_that_does_not_fit_its_serde_is_written_as_json_or_repr(value: Any, expected: bytes) -> None:
    assert in_bytes(ms.serdes.string, value) == expected


def test_values_without_a_known_serde_are_written_as_json() -> None:
    builder = ms.StreamsBuilder()
    mapped = builder.stream("in", value=JSON).map(lambda key, value: ({"id": key}, {**value, "b": [2]}))
    mapped.map_values_async(fails, on_failure=TO_DEAD)
    assert letter(builder.build(), "k", {"a": 1}) == (b'{"id":"k"}', b'{"a":1,"b":[2]}')


def test_without_a_dead_letter_topic_the_error_names_the_record_and_the_settings() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values_async(gives_up, on_failure="skip", name="ask")
    with Driver(builder.build()) as driver, pytest.raises(ProductionError) as raised:
        driver.pipe("in", "k", "v")
    message = str(raised.value)
    assert message.startswith("the call of ask in task 0_0 at topic 'in', partition 0, offset 0 (key b'k'")
    assert "on_failure=ms.dead_letter('topic')" in message
    assert message.endswith("the setting dead_letter_topic")
