"""`millstream dlq` on a real broker: letters of a real topology are listed, shown, and sent back once."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import TopicPartition
from typer.testing import CliRunner

import millstream as ms
from millstream.core.model.errors import DeliveryAbortedError
from millstream.core.model.record import Records
from millstream.drivers.kafka.forwarding import Forwarding
from millstream.edge.cli.commands import app as command_line
from millstream.edge.dead_letters.dead_letter_queue import DeadLetterQueue, ReplayRequest
from millstream.edge.settings.settings_loading import settings_from

from .helpers import Apps, eventually, produce_with_headers

pytestmark = pytest.mark.broker

BAD = [("apple", "{no json"), ("pear", '{"euros":1}'), ("plum", '{"cents":"x"}')]


def dlq(apps: Apps, *arguments: str, answer: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(
        command_line, ["dlq", *arguments, "--bootstrap-servers", apps.kafka.bootstrap_servers], input=answer
    )
    return done.exit_code, done.output


def sent_back(apps: Apps, source: str, count: int) -> list[ms.testing.ConsumedRecord]:
    """Wait for the records of a replay and return them: a transaction becomes visible a moment after its commit."""
    eventually(lambda: len(apps.kafka.consume(source, isolation="read_committed")) >= count, "the replay")
    found = apps.kafka.consume(source, isolation="read_committed")
    assert len(found) == count
    return found


def write_dead_letters(
    apps: Apps, source: str, dead: str, records: list[tuple[str, str, ms.Headers]]
) -> None:
    """Write the dead letters that a topology creates for records to a topic on the broker."""
    builder = ms.StreamsBuilder()
    prices = builder.stream(source, value=ms.serdes.json)
    prices.map_values(lambda price: price["cents"] / 100, name="to-euros").to(
        "euros", value=ms.serdes.float64
    )
    policies = ms.ErrorPolicies(deserialize="dead_letter", process="dead_letter", dead_letter_topic=dead)
    with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
        for number, (key, value, headers) in enumerate(records):
            driver.pipe(source, key, value.encode(), timestamp=1_000 + number, headers=headers)
        letters = driver.read(dead)
    assert len(letters) == len(records)
    rows = [(letter.key, letter.value, letter.timestamp, letter.headers) for letter in letters]
    produce_with_headers(apps.kafka, dead, rows)


@pytest.fixture
def topics(apps_without_spark: Apps) -> tuple[Apps, str, str]:
    apps = apps_without_spark
    source, dead = apps.topic("in", 1), apps.topic("dead", 1)
    write_dead_letters(apps, source, dead, [(key, value, (("trace", b"7"),)) for key, value in BAD])
    return apps, source, dead


def test_dead_letters_are_listed_shown_and_replayed_once(topics: tuple[Apps, str, str]) -> None:
    apps, source, dead = topics
    code, output = dlq(apps, "list", dead)
    assert (code, output.splitlines()[-1]) == (0, "3 dead letters")
    assert [word in output for word in ("KeyError: 'cents'", "to-euros", f"{source}/0@1")] == [True] * 3
    code, output = dlq(apps, "list", dead, "--error", "KeyError", "--json")
    assert (code, json.loads(output)["key"]) == (0, "pear")
    code, output = dlq(apps, "show", dead, "0", "1")
    assert (code, 'value        {"euros":1}' in output, "Traceback (most recent call last)" in output) == (
        0,
        True,
        True,
    )
    code, output = dlq(apps, "show", dead, "0", "3")
    assert (code, "0: 0 to 2" in output) == (1, True)

    code, output = dlq(apps, "replay", dead, "--key", "pear", "--dry-run")
    assert (code, f"1 to {source}" in output, "Nothing was sent (--dry-run)." in output) == (0, True, True)
    code, output = dlq(apps, "replay", dead, "--key", "pear", answer="n\n")
    assert (code, apps.kafka.consume(source)) == (0, [])
    code, output = dlq(apps, "replay", dead, "--key", "pear", "--yes")
    assert (code, "Done: 1 sent." in output) == (0, True)
    (back,) = sent_back(apps, source, 1)
    assert (back.key, back.value, back.timestamp) == (b"pear", b'{"euros":1}', 1_001)
    replayed_from = f"{dead}/0/1".encode()
    assert back.headers == (
        ("trace", b"7"), ("millstream.replay.count", b"1"), ("millstream.replay.from", replayed_from)
    )  # fmt: skip
    assert apps.kafka.committed(f"millstream-dlq-{dead}", dead) == {0: 0}, (
        "the first letter is still to be replayed"
    )

    code, output = dlq(apps, "list", dead, "--pending")
    assert (code, output.splitlines()[-1]) == (0, "2 dead letters")
    code, output = dlq(apps, "replay", dead, "--yes")
    assert ("1 left out: replayed before" in output, "Done: 2 sent." in output) == (True, True)
    assert apps.kafka.committed(f"millstream-dlq-{dead}", dead) == {0: 3}
    code, output = dlq(apps, "replay", dead, "--yes")
    assert (code, "There is nothing to send." in output) == (0, True)
    keys = [record.key for record in sent_back(apps, source, 3)]
    assert keys == [b"pear", b"apple", b"plum"]
    code, output = dlq(apps, "replay", dead, "--again", "--limit", "1", "--yes")
    assert (code, "Done: 1 sent." in output) == (0, True)


def test_a_record_that_keeps_failing_is_replayed_a_limited_number_of_times(
    topics: tuple[Apps, str, str],
) -> None:
    apps, source, dead = topics
    for number in (1, 2):
        assert dlq(apps, "replay", dead, "--key", "pear", "--max-replays", "2", "--yes")[0] == 0
        back = sent_back(apps, source, number)[-1]
        write_dead_letters(apps, source, dead, [("pear", '{"euros":1}', back.headers)])
    code, output = dlq(apps, "replay", dead, "--key", "pear", "--max-replays", "2", "--yes")
    assert (code, "1 left out: replayed 2 times before" in output) == (0, True)
    assert "There is nothing to send." in output
    assert "came back 2x" in dlq(apps, "list", dead, "--pending", "--key", "pear")[1]


def test_a_second_replay_stops_the_first(topics: tuple[Apps, str, str]) -> None:
    apps, source, dead = topics
    settings = settings_from({"bootstrap_servers": apps.kafka.bootstrap_servers})
    queue = DeadLetterQueue(dead, settings)
    first = Forwarding(queue._forwarder)
    assert queue.replay(ReplayRequest()).sent == {source: 3}
    with pytest.raises(DeliveryAbortedError, match="another process now replays for the group"):
        first.send({source: Records([b"k"], [b"v"], [1], [])}, {})
    sent_back(apps, source, 3)


def test_a_replay_that_was_killed_in_a_transaction_does_not_delay_another(
    topics: tuple[Apps, str, str],
) -> None:
    apps, source, dead = topics
    queue = DeadLetterQueue(dead, settings_from({"bootstrap_servers": apps.kafka.bootstrap_servers}))
    killed = Forwarding(queue._forwarder)
    producer = killed._failing.producer
    producer.begin_transaction()
    producer.produce(source, "lost", "k")
    positions = [TopicPartition(dead, 0, 3)]
    producer.send_offsets_to_transaction(positions, killed._members.consumer_group_metadata(), 30)
    assert dlq(apps, "list", dead, "--pending")[1].splitlines()[-1] == "3 dead letters"
    code, output = dlq(apps, "replay", dead, "--yes")
    assert (code, "Done: 3 sent." in output) == (0, True), output
    assert [record.key for record in sent_back(apps, source, 3)] == [b"apple", b"pear", b"plum"]


def test_records_that_are_not_dead_letters_are_left_out_or_refused(topics: tuple[Apps, str, str]) -> None:
    apps, source, dead = topics
    apps.kafka.produce(source, [("apple", "1"), ("pear", "2")])
    code, output = dlq(apps, "list", source, "--json")
    assert (code, output.partition(" (")[0]) == (
        1,
        f"millstream dlq list: topic {source!r} is not a dead-letter topic: none of its records",
    )
    code, output = dlq(apps, "show", source, "0", "1")
    assert (code, "offset 1 is not a dead letter: it has no headers of a failure" in output) == (1, True)

    apps.kafka.produce(dead, [("apple", "1")])
    code, output = dlq(apps, "list", dead)
    assert (code, output.splitlines()[-2:]) == (
        0,
        [
            "3 dead letters",
            "left out: 1 record without headers of a failure (millstream.error.*, or __streams.errors.* of Kafka Streams)",
        ],
    )
    assert dlq(apps, "replay", dead, "--yes")[0] == 0
    code, output = dlq(apps, "list", dead, "--pending")
    assert (code, "0 dead letters" in output) == (0, True)


def test_an_unknown_dead_letter_topic_is_refused(apps_without_spark: Apps) -> None:
    code, output = dlq(apps_without_spark, "list", "no-such-topic")
    assert (code, output.startswith("millstream dlq list: topic 'no-such-topic' does not exist")) == (1, True)


@pytest.mark.parametrize("command", [("list",), ("replay", "--dry-run"), ("replay", "--yes")])
def test_an_unknown_partition_is_refused(topics: tuple[Apps, str, str], command: tuple[str, ...]) -> None:
    apps, _, dead = topics
    code, output = dlq(apps, *command, dead, "--partition", "99")
    assert (code, output) == (
        1,
        f"millstream dlq {command[0]}: there is no partition 99: topic {dead!r} has only partition 0\n",
    )


def test_an_invalid_target_topic_of_a_replay_is_refused(topics: tuple[Apps, str, str]) -> None:
    apps, _, dead = topics
    for to, why in (
        (dead, "is the dead-letter topic itself"),
        ("no-such-topic", "names a topic that does not exist"),
    ):
        code, output = dlq(apps, "replay", dead, "--yes", "--to", to)
        assert (code, output.startswith(f"millstream dlq replay: --to {to!r} {why}")) == (1, True)
