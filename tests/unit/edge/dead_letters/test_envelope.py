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

STAGE_HEADER = "millstream.error.stage"
GUARD = Guard("dead", {"in": 2, "dead": 1, "other": 1})


def letters_of_a_run() -> list[Envelope]:
    """Return the dead letters of a real topology: one from a function, one from an asynchronous call."""

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


def letter_from(topic: str, partition: int = 0, **more: str) -> Envelope:
    facts = {"topic": topic, "partition": str(partition), "stage": "process", "error": "E: x", **more}
    return letter(*((f"millstream.error.{name}", text) for name, text in facts.items()))


def test_headers_of_dead_letters_tell_their_source_and_whether_they_can_be_sent_back() -> None:
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


def test_a_failure_after_a_call_marks_the_dead_letter_as_a_record_of_an_operator() -> None:
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
    replayed = Envelope(TopicPartition("in", 0), 4, b"k", b"v", 1, letter_from("in").sent_back())
    letters = (
        letter_from("in"),
        letter(("__streams.errors.message", "")),
        letter(),
        letter(("mine", "1")),
        replayed,
    )
    assert [each.is_letter for each in letters] == [True, True, False, False, False]


def test_dead_letters_of_kafka_streams_are_understood() -> None:
    kafka_headers = {"exception": "java.lang.ArithmeticException", "message": "/ by zero", "stacktrace": "at A", "topic": "in",
              "partition": "1", "offset": "7"}  # fmt: skip
    found = letter(*((f"__streams.errors.{name}", text) for name, text in kafka_headers.items()))
    assert found.facts["error"] == "ArithmeticException: / by zero"
    assert (found.source, found.as_read, found.facts["traceback"]) == (TopicPartition("in", 1), True, "at A")
    assert [name for name, _ in found.sent_back()] == [REPLAYS, REPLAYED_FROM]


def test_a_header_with_thousands_of_digits_is_ignored() -> None:
    found = letter(
        (REPLAYS, "9" * 5000), ("millstream.error.topic", "in"), ("millstream.error.partition", "1" * 5000)
    )
    assert (found.source, found.replays) == (None, 0)


def test_replays_are_counted_and_the_last_header_of_a_name_wins() -> None:
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
        (letter((STAGE_HEADER, "process"), (REPLAYS, "3")), "replayed 3 times before"),
        (letter((STAGE_HEADER, "process")), "no header names the topic"),
        (letter(), "not a dead letter"),
        (letter_from("dead"), "dead-letter topic itself"),
        (letter_from("gone"), "does not exist"),
        (letter_from("app-by-user-repartition"), "internal topic"),
        (letter_from("in", record="operator"), "not as it was read"),
        (letter_from("in", partition=-1), "no header names the topic"),
    ],
)
def test_a_refused_record_is_not_sent_back_and_the_reason_is_named(found: Envelope, why: str) -> None:
    destination = GUARD.destination(found)
    assert (destination.topic, why in destination.refusal) == ("", True), destination


def test_a_record_that_is_not_a_dead_letter_is_not_sent_to_another_topic() -> None:
    guard = Guard("dead", {"other": 1}, to="other")
    assert guard.destination(letter((STAGE_HEADER, "punctuate"))) == Destination("other")
    assert "not a dead letter" in guard.destination(letter(("mine", "1"))).refusal


def test_a_record_of_a_missing_partition_is_partitioned_by_its_key() -> None:
    assert GUARD.destination(letter_from("in", partition=1)) == Destination("in", 1)
    assert GUARD.destination(letter_from("in", partition=2)) == Destination("in", -1)


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
def test_a_filter_selects_letters_by_each_of_its_criteria(choice: LetterFilter, chosen: bool) -> None:
    assert choice.matches(letter_from("in")) is chosen
