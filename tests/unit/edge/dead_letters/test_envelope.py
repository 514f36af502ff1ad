"""Headers of dead letters, the selection of letters, and the topics to which records are sent back."""

from __future__ import annotations

import re

import pytest

import millstream as ms
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers
from millstream.edge.dead_letters.envelope import (
    REPLAYED_FROM,
    REPLAYS,
    Destination,
    Envelope,
    Guard,
    LetterFilter,
)

FAILED = "millstream.error.stage"
GUARD = Guard("dead", {"in": 2, "dead": 1, "other": 1})


def letters_of_a_run() -> list[Envelope]:
    """Return what a real topology sends to its dead-letter topic: one letter of a function, one of a call."""

    async def ask(value: str) -> str:
        raise ConnectionError("down")

    builder = ms.StreamsBuilder()
    stream = builder.stream("in", value=ms.serdes.string)
    stream.map_values(lambda value: int(value), name="parse").map_values(
        lambda value: value + 1
    ).map_values_async(ask, name="ask", on_failure=ms.dead_letter("dead"))
    policies = ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead")
    with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
        driver.pipe("in", "a", "x", timestamp=5, headers=(("mine", b"1"),))
        driver.pipe("in", "b", "41", timestamp=7)
        found = driver.read("dead")
    partition = TopicPartition("dead", 0)
    return [
        Envelope(partition, n, each.key, each.value, each.timestamp, each.headers)
        for n, each in enumerate(found)
    ]


def letter(*headers: tuple[str, str], key: bytes | None = b"k") -> Envelope:
    encoded: Headers = tuple((name, value.encode()) for name, value in headers)
    return Envelope(TopicPartition("dead", 0), 9, key, b"v", 50, encoded)


def read_from(topic: str, partition: int = 0, **more: str) -> Envelope:
    facts = {"topic": topic, "partition": str(partition), "stage": "process", "error": "E: x", **more}
    return letter(*((f"millstream.error.{name}", text) for name, text in facts.items()))


def test_letters_of_a_topology() -> None:
    parse, ask = letters_of_a_run()
    assert (parse.source, parse.as_read, parse.facts["node"]) == (TopicPartition("in", 0), True, "parse")
    assert parse.facts["error"].startswith("ValueError: ")
    assert (ask.source, ask.as_read, ask.facts["stage"], ask.value) == (
        TopicPartition("in", 0),
        False,
        "call",
        b"42",
    )
    assert parse.sent_back() == (("mine", b"1"), (REPLAYS, b"1"), (REPLAYED_FROM, b"dead/0/0"))
    assert GUARD.destination(parse) == Destination("in", 0)
    assert "not as it was read" in GUARD.destination(ask).refusal
    assert Guard("dead", {"other": 1}, to="other").destination(ask) == Destination("other")


def test_a_failure_behind_a_call_says_that_its_bytes_are_not_those_that_were_read() -> None:
    async def ask(value: str) -> str:
        return value

    builder = ms.StreamsBuilder()
    answers = builder.stream("in", value=ms.serdes.string).map_values_async(ask)
    answers.map_values(lambda value: int(value), name="parse").to("out", value=ms.serdes.int64)
    policies = ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead")
    with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
        driver.pipe("in", "a", "x")
        (found,) = driver.read("dead")
    assert dict(found.headers)["millstream.error.record"] == b"operator"


def test_a_record_is_a_dead_letter_if_a_header_describes_a_failure() -> None:
    replayed = Envelope(TopicPartition("in", 0), 4, b"k", b"v", 1, read_from("in").sent_back())
    letters = (
        read_from("in"),
        letter(("__streams.errors.message", "")),
        letter(),
        letter(("mine", "1")),
        replayed,
    )
    assert [each.is_letter for each in letters] == [True, True, False, False, False]


def test_a_letter_of_kafka_streams() -> None:
    kafka_headers = {"exception": "java.lang.ArithmeticException", "message": "/ by zero", "stacktrace": "at A", "topic": "in",
              "partition": "1", "offset": "7"}  # fmt: skip
    found = letter(*((f"__streams.errors.{name}", text) for name, text in kafka_headers.items()))
    assert found.facts["error"] == "ArithmeticException: / by zero"
    assert (found.source, found.as_read, found.facts["traceback"]) == (TopicPartition("in", 1), True, "at A")
    assert [name for name, _ in found.sent_back()] == [REPLAYS, REPLAYED_FROM]


def test_a_header_with_many_digits_is_no_number() -> None:
    found = letter(
        (REPLAYS, "9" * 5000), ("millstream.error.topic", "in"), ("millstream.error.partition", "1" * 5000)
    )
    assert (found.source, found.replays) == (None, 0)


def test_a_record_that_came_back_is_counted_and_the_newest_header_counts() -> None:
    again = Envelope(TopicPartition("dead", 0), 4, b"k", b"v", 1, letter().sent_back())
    twice = Envelope(TopicPartition("dead", 0), 5, b"k", b"v", 1, again.sent_back())
    assert (again.replays, twice.replays) == (1, 2)
    assert dict(twice.sent_back())[REPLAYED_FROM] == b"dead/0/5"
    assert (
        letter(("millstream.error.node", "first"), ("millstream.error.node", "last")).facts["node"] == "last"
    )


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (letter((FAILED, "process"), (REPLAYS, "3")), "replayed 3 times before"),
        (letter((FAILED, "process")), "no header names the topic"),
        (letter(), "not a dead letter"),
        (read_from("dead"), "dead-letter topic itself"),
        (read_from("gone"), "does not exist"),
        (read_from("app-by-user-repartition"), "internal topic"),
        (read_from("in", record="operator"), "not as it was read"),
        (read_from("in", partition=-1), "no header names the topic"),
    ],
)
def test_what_is_not_sent_back(found: Envelope, why: str) -> None:
    destination = GUARD.destination(found)
    assert (destination.topic, why in destination.refusal) == ("", True), destination


def test_a_record_that_is_not_a_dead_letter_is_not_sent_to_another_topic() -> None:
    guard = Guard("dead", {"other": 1}, to="other")
    assert guard.destination(letter((FAILED, "punctuate"))) == Destination("other")
    assert "not a dead letter" in guard.destination(letter(("mine", "1"))).refusal


def test_a_partition_that_is_gone_is_chosen_by_key() -> None:
    assert GUARD.destination(read_from("in", partition=1)) == Destination("in", 1)
    assert GUARD.destination(read_from("in", partition=2)) == Destination("in", -1)


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        (LetterFilter(), True),
        (LetterFilter(stage="process", node=None, source="in", key="k", since_ms=50, until_ms=51), True),
        (LetterFilter(stage="call"), False),
        (LetterFilter(source="out"), False),
        (LetterFilter(key="K"), False),
        (LetterFilter(since_ms=51), False),
        (LetterFilter(until_ms=50), False),
        (LetterFilter(error=re.compile("^E: ")), True),
        (LetterFilter(error=re.compile("KeyError")), False),
        (LetterFilter(partitions=frozenset({1})), False),
        (LetterFilter(offsets=frozenset({9}), partitions=frozenset({0})), True),
    ],
)
def test_filters(choice: LetterFilter, chosen: bool) -> None:
    assert choice.matches(read_from("in")) is chosen
