"""Errors of users and clusters, and the messages of the application.

Every message must name the cause (topic, partition, offset, setting, store) and what to do about it. If the fault can be repaired,
the test repairs it and checks that no record was lost.
"""

from __future__ import annotations

import base64
import logging
import socket
import struct
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.core.model.errors import (
    BrokerUnavailableError,
    CoPartitioningError,
    DeserializationError,
    IncompatibleTopologyError,
    MillstreamError,
    OffsetsLostError,
    ProcessingError,
    ProductionError,
    SettingsError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from millstream.testing import EmbeddedKafka
from proofs.sizes import each_once_or_crossed

from .helpers import Apps, eventually, lag, latest, produce_with_headers, values_by_key, written
from .topologies import Gate, Patient, Picky, key_count, numbers, parsed, with_processor


def int64(number: int) -> bytes:
    return struct.pack(">q", number)


def check_message(error: pytest.ExceptionInfo[MillstreamError], *parts: str) -> None:
    """Check that a message has all these parts, and that a second exception does not bury it."""
    missing = [part for part in parts if part not in error.value.message]
    assert not missing, f"{missing} not in: {error.value.message}"
    assert str(error.value) == error.value.message


class TestSettings:
    """Invalid settings are refused when the application is created, before it uses a broker, Spark or a disk."""

    @pytest.fixture
    def topology(self) -> ms.Topology:
        return key_count("in", "out")

    def test_a_misspelt_setting_is_refused_with_a_suggestion(self, topology: ms.Topology) -> None:
        with pytest.raises(SettingsError) as error:
            ms.Application("app", topology, bootstrap_server="localhost:9092")
        check_message(error, "'bootstrap_server'", "did you mean 'bootstrap_servers'?")

    def test_a_client_setting_outside_of_kafka_is_refused(self, topology: ms.Topology) -> None:
        with pytest.raises(SettingsError) as error:
            ms.Application("app", topology, bootstrap_servers="b:1", **{"security.protocol": "SSL"})
        check_message(error, "'security.protocol'", "kafka={...}")

    def test_missing_bootstrap_servers_are_refused(self, topology: ms.Topology) -> None:
        with pytest.raises(SettingsError) as error:
            ms.Application("app", topology)
        check_message(error, "'bootstrap_servers' is missing", "host:port")

    @pytest.mark.parametrize(
        ("setting", "value", "advice"),
        [
            ("max_batch_records", 0, "greater than or equal to 1"),
            ("auto_offset_reset", "lastest", "'earliest', 'latest' or 'none'"),
            ("task_timeout_ms", "soon", "integer"),
            ("on_process_error", "ignore", "'skip'"),
            ("on_process_error", "dead_letter", "dead_letter_topic='...'"),
            ("processing_guarantee", "at_most_once", "'at_least_once'"),
        ],
    )
    def test_an_invalid_value_is_refused(
        self, topology: ms.Topology, setting: str, value: object, advice: str
    ) -> None:
        with pytest.raises(SettingsError) as error:
            ms.Application("app", topology, bootstrap_servers="b:1", **{setting: value})
        check_message(error, setting, str(value), advice)

    def test_a_setting_of_java_clients_is_refused(self, topology: ms.Topology) -> None:
        with pytest.raises(SettingsError) as error:
            ms.Application("app", topology, bootstrap_servers="b:1", kafka={"ssl.truststore.location": "x"})
        check_message(error, "'ssl.truststore.location'", "ssl.ca.location")

    def test_an_application_id_that_cannot_name_topics_is_refused(self, topology: ms.Topology) -> None:
        with pytest.raises(MillstreamError) as error:
            ms.Application("my app", topology, bootstrap_servers="b:1")
        check_message(error, "'my app'", "application", "letters, digits")

    def test_an_unknown_end_of_a_run_is_refused(self, topology: ms.Topology) -> None:
        with pytest.raises(SettingsError) as error:
            ms.Application("app", topology, bootstrap_servers="b:1").run(until="tomorrow")  # type: ignore[arg-type]
        check_message(error, "'tomorrow'", "'end'")


class TestSecrets:
    SECRET = "correct-horse-battery"
    JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="{SECRET}";'

    def assert_not_leaked(self, *texts: str) -> None:
        """Check that the texts do not contain the secret, neither as it is nor in base64 at any of its three alignments."""
        for shift in range(3):
            coded = base64.b64encode(b" " * shift + self.SECRET.encode())[4 * bool(shift) : -4].decode()
            assert len(coded) > 12
            assert not [text for text in texts if coded in text]
        assert not [text for text in texts if self.SECRET in text]

    @pytest.mark.parametrize("clients", ["kafka", "consumer", "producer"])
    def test_are_not_shown_in_settings_and_their_errors(self, clients: str) -> None:
        topology = key_count("in", "out")
        secret = {"sasl.password": self.SECRET, "ssl.key.password": self.SECRET}
        app = ms.Application("app", topology, bootstrap_servers="b:1", **{clients: secret})
        self.assert_not_leaked(repr(app), str(app.settings), repr(app.settings))
        with pytest.raises(SettingsError) as error:
            ms.Application("app", topology, bootstrap_servers="b:1", **{clients: f"password={self.SECRET}"})
        self.assert_not_leaked(*traceback.format_exception(error.value))
        unknown = {**secret, "key.serializer": "x"}
        with pytest.raises(SettingsError) as error:
            ms.Application("app", topology, bootstrap_servers="b:1", **{clients: unknown})
        self.assert_not_leaked(*traceback.format_exception(error.value))

    @pytest.mark.broker
    def test_are_not_shown_when_the_broker_refuses_them(
        self, kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        security = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": self.JAAS,
        }
        app = ms.Application(
            "app", key_count("in", "out"), bootstrap_servers=kafka.bootstrap_servers, kafka=security,
            request_timeout_ms=5_000,
        )  # fmt: skip
        with pytest.raises(BrokerUnavailableError) as error:
            app.run()
        check_message(error, kafka.bootstrap_servers)
        self.assert_not_leaked(*traceback.format_exception(error.value), caplog.text)

    @pytest.mark.broker
    @pytest.mark.spark
    def test_are_not_shown_when_a_batch_fails(
        self, apps: Apps, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        caplog.set_level(logging.INFO)
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        apps.kafka.produce(source, [("a", "no number")])
        with pytest.raises(ProcessingError) as error:
            apps.run(parsed(source, sink), kafka={"sasl.password": self.SECRET})
        out, err = capfd.readouterr()
        files = [path.read_bytes().decode("latin-1") for path in apps.home.rglob("*") if path.is_file()]
        assert files
        self.assert_not_leaked(*traceback.format_exception(error.value), caplog.text, out, err, *files)


@pytest.mark.broker
class TestTopics:
    """Topics are checked before Spark starts, so these tests use no session."""

    @pytest.fixture
    def topics(self, kafka: EmbeddedKafka, tmp_path: Path) -> Apps:
        return Apps(kafka, f"topics-{tmp_path.name}", tmp_path)

    def test_a_missing_source_topic_is_reported_with_the_command_that_creates_it(self, topics: Apps) -> None:
        sink = topics.topic("out")
        with pytest.raises(TopicNotFoundError) as error:
            topics.run(key_count("nowhere", sink))
        check_message(
            error,
            "do not exist on the broker: 'nowhere'",
            "kafka-topics --create --topic nowhere --partitions",
        )

    def test_a_missing_sink_topic_is_reported_with_the_command_that_creates_it(self, topics: Apps) -> None:
        source = topics.topic("in")
        with pytest.raises(TopicNotFoundError) as error:
            topics.run(key_count(source, "nowhere-out"))
        check_message(
            error, "automatically: 'nowhere-out'", "kafka-topics --create --topic nowhere-out --partitions"
        )

    def test_a_missing_dead_letter_topic_is_reported_with_the_command_that_creates_it(
        self, topics: Apps
    ) -> None:
        source, sink = topics.topic("in"), topics.topic("out")
        with pytest.raises(TopicNotFoundError) as error:
            topics.run(key_count(source, sink), on_process_error="dead_letter", dead_letter_topic="no-dead")
        check_message(error, "'no-dead'", "kafka-topics --create --topic no-dead")

    def test_topics_of_one_store_with_different_numbers_of_partitions_are_refused(self, topics: Apps) -> None:
        two, three, sink = topics.topic("two", 2), topics.topic("three", 3), topics.topic("out")
        builder = ms.StreamsBuilder()
        builder.stream([two, three]).group_by_key().count(store="counts").to_stream().to(
            sink, value=ms.serdes.int64
        )
        with pytest.raises(CoPartitioningError) as error:
            topics.run(builder.build())
        check_message(error, f"{two!r} has 2", f"{three!r} has 3", "repartition(partitions=...)")

    def test_a_broker_that_does_not_answer_is_reported(self, topics: Apps) -> None:
        with socket.socket() as taken:  # bound, but not listening, so connections are refused
            taken.bind(("127.0.0.1", 0))
            servers = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(BrokerUnavailableError) as error:
                topics.run(key_count("in", "out"), bootstrap_servers=servers, request_timeout_ms=500)
        check_message(
            error, servers, "Check that the broker runs", "bootstrap_servers", "advertised.listeners"
        )

    def test_an_unknown_client_setting_is_refused(self, topics: Apps) -> None:
        with pytest.raises(SettingsError) as error:
            topics.run(key_count("in", "out"), kafka={"sokcet.timeout.ms": 1})
        check_message(error, "sokcet.timeout.ms", "kafka={...}")


@pytest.mark.broker
@pytest.mark.spark
class TestRecordsThatCannotBeRead:
    def test_stop_the_application_by_default_and_can_be_skipped(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        apps.kafka.produce(source, [("a", int64(1)), ("a", b"oops"), ("a", int64(2))])
        with pytest.raises(DeserializationError) as error:
            apps.run(numbers(source, sink))
        check_message(
            error, f"topic {source!r}", "partition 0", "offset 1", "b'oops'", "the serdes of the topic's producers",
            "on_deserialize_error='skip'",
        )  # fmt: skip
        assert written(apps.kafka, sink) == 0

        skipping = apps.run(numbers(source, sink), on_deserialize_error="skip")
        assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"a": [1, 3]}
        metrics = skipping.metrics()
        assert (metrics["dropped_records"], metrics["dropped_records: deserialize error"]) == (1, 1)

    def test_can_be_sent_to_the_dead_letter_topic(self, apps: Apps) -> None:
        source, sink, dead = apps.topic("in", 1), apps.topic("out", 1), apps.topic("dead", 1)
        produce_with_headers(
            apps.kafka, source, [("a", int64(1), 10, []), ("b", b"\xffoops", 20, [("trace", b"7")])]
        )
        apps.run(numbers(source, sink), on_deserialize_error="dead_letter", dead_letter_topic=dead)
        assert latest(apps.kafka.consume(sink), ms.serdes.int64) == {"a": 1}
        (letter,) = apps.kafka.consume(dead)
        assert (letter.key, letter.value, letter.timestamp) == (b"b", b"\xffoops", 20)
        assert letter.headers[0] == ("trace", b"7")
        facts = {
            name: value
            for name, value in letter.headers
            if name.startswith("millstream.") and value is not None
        }
        assert {name.removeprefix("millstream.error."): value for name, value in facts.items()} | {
            "error": b"", "traceback": b"", "node": b"",
        } == {
            "stage": b"deserialize", "topic": source.encode(), "partition": b"0", "offset": b"1", "record": b"read",
            "error": b"", "traceback": b"", "node": b"",
        }  # fmt: skip
        assert b"error: unpack requires a buffer of 8 bytes" in facts["millstream.error.error"]
        assert b"serdes.py" in facts["millstream.error.traceback"]


@pytest.mark.broker
@pytest.mark.spark
class TestFunctionsThatRaise:
    def test_in_a_processor_leave_no_results_and_can_be_corrected(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        apps.kafka.produce(source, [("a", "good"), ("a", "good"), ("a", "bad"), ("a", "good")])
        with pytest.raises(ProcessingError) as error:
            apps.run(with_processor(Picky, source, sink, Picky.store))
        check_message(
            error, "processor failed", f"topic {source!r}", "partition 0", "offset 2", "b'bad'",
            "LookupError: no idea what 'bad' means", "topologies.py, line", "on_process_error='skip'",
        )  # fmt: skip
        assert written(apps.kafka, sink) == 0
        assert lag(apps.kafka, apps.id, source) == 4

        apps.run(with_processor(Patient, source, sink, Picky.store))
        assert values_by_key(apps.kafka.consume(sink)) == {"a": ["1", "2", "3", "4"]}

    def test_in_a_stateless_map_stop_the_application_or_cause_a_dead_letter(self, apps: Apps) -> None:
        source, sink, dead = apps.topic("in", 1), apps.topic("out", 1), apps.topic("dead", 1)
        apps.kafka.produce(source, [("a", "1"), ("b", "two"), ("c", "3")])
        with pytest.raises(ProcessingError) as error:
            apps.run(parsed(source, sink))
        check_message(
            error, "parse failed in stage 'process'", f"topic {source!r}", "partition 0", "offset 1",
            "ValueError: invalid literal for int()",
        )  # fmt: skip
        apps.run(parsed(source, sink), on_process_error="dead_letter", dead_letter_topic=dead)
        assert latest(apps.kafka.consume(sink), ms.serdes.int64) == {"a": 1, "c": 3}
        (letter,) = apps.kafka.consume(dead)
        assert (letter.key, letter.value, dict(letter.headers)["millstream.error.node"]) == (
            b"b",
            b"two",
            b"parse",
        )

    def test_while_running_end_the_application_with_their_error(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        running = apps.start(parsed(source, sink))
        apps.kafka.produce(source, [("b", "two")])
        status = eventually(
            lambda: (s := running.status()).state == "failed" and s, "the failure", within_s=60
        )
        assert status.error is not None
        assert "invalid literal" in status.error
        with pytest.raises(ProcessingError) as error:
            running.await_termination()
        check_message(error, "invalid literal", "offset 0")


def retry_twice_then_dead_letter(context: ms.ErrorContext, error: Exception) -> str:
    """An error handler of an application, which is sent to the executors."""
    if context.attempt < 3 and context.stage == "process":
        return "retry"
    return "fail" if context.value == b"last" else "dead_letter"


@pytest.mark.broker
@pytest.mark.spark
class TestErrorHandlers:
    @pytest.mark.parametrize(
        ("guarantee", "stateful"), each_once_or_crossed(["exactly_once", "at_least_once"], [False, True])
    )
    def test_run_in_executors_and_the_record_that_stops_the_application_is_a_dead_letter(
        self, apps: Apps, guarantee: str, stateful: bool
    ) -> None:
        source, sink, dead = apps.topic("in", 1), apps.topic("out", 1), apps.topic("dead", 1)
        topology = with_processor(Picky, source, sink, Picky.store) if stateful else parsed(source, sink)
        good = ("a", "good") if stateful else ("a", "1")
        settings = {"dead_letter_topic": dead, "processing_guarantee": guarantee}
        apps.kafka.produce(source, [good, ("b", "bad"), good])
        apps.run(topology, on_process_error=retry_twice_then_dead_letter, **settings)
        assert len(apps.kafka.consume(sink)) == 2
        (letter,) = apps.kafka.consume(dead)
        facts = dict(letter.headers)
        assert (letter.key, letter.value) == (b"b", b"bad")
        assert facts["__streams.errors.topic"] == source.encode()
        assert facts["__streams.errors.offset"] == facts["millstream.error.offset"] == b"1"

        apps.kafka.produce(source, [("c", "bad" if stateful else "last")])
        with pytest.raises(ProcessingError) as error:
            apps.run(
                topology, on_process_error="fail" if stateful else retry_twice_then_dead_letter, **settings
            )
        check_message(error, "offset 3", "failed in stage 'process'")
        assert [letter.key for letter in apps.kafka.consume(dead)][1:] == [b"c"]
        assert len(apps.kafka.consume(sink)) == 2


@pytest.mark.broker
@pytest.mark.spark
class TestResultsThatCannotBeWritten:
    def test_because_the_serde_of_the_sink_is_for_another_type_stop_the_application(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        builder = ms.StreamsBuilder()
        builder.stream(source).map_values(len).to(sink, name="sink")
        apps.kafka.produce(source, [("a", "x")])
        with pytest.raises(ProductionError) as error:
            apps.run(builder.build())
        check_message(
            error,
            "sink failed in stage 'produce'",
            "offset 0",
            "serdes.string takes str, but got int 1",
            "value=",
        )

    def test_because_they_are_too_large_for_the_broker_stop_the_application(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        builder = ms.StreamsBuilder()
        builder.stream(source).map_values(lambda value: value * 2_000_000).to(sink)
        apps.kafka.produce(source, [("a", "x")])
        with pytest.raises(ProductionError) as error:
            apps.run(builder.build())
        check_message(
            error, f"topic {sink!r}", "offset 0", "at most 1000000", "message.max.bytes", "max.message.bytes"
        )

    @pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
    def test_because_they_are_too_large_for_producer_or_broker_follow_the_policy(
        self, apps: Apps, guarantee: str
    ) -> None:
        """One topic accepts only smaller records than the producer, the other one also larger records."""
        source, large, dead = (apps.topic(name, 1) for name in ("in", "large", "dead"))
        small = f"{source}-small"
        apps.kafka.create_topic(small, 1, {"max.message.bytes": 100_000})
        builder = ms.StreamsBuilder()
        results = builder.stream(source).map_values(lambda value: value * 40_000)
        results.to(small)
        results.to(large)
        apps.kafka.produce(source, [("a", "x"), ("b", "xyz"), ("c", "x" * 30), ("d", "y")])
        apps.run(
            builder.build(),
            on_produce_error="dead_letter",
            dead_letter_topic=dead,
            processing_guarantee=guarantee,
        )
        assert [record.key for record in apps.kafka.consume(small)] == [b"a", b"d"]
        assert [record.key for record in apps.kafka.consume(large)] == [b"a", b"b", b"d"]
        assert [record.key for record in apps.kafka.consume(dead)] == [b"b", b"c", b"c"]


@pytest.mark.broker
@pytest.mark.spark
class TestOffsetsThatAreGone:
    def test_because_records_were_deleted_stop_the_application_or_are_skipped(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        topology = key_count(source, sink)
        apps.kafka.produce(source, [("a", str(i)) for i in range(3)])
        apps.run(topology)
        apps.kafka.produce(source, [("a", str(i)) for i in range(5)])
        apps.kafka.delete_records(source, {0: 6})
        with pytest.raises(OffsetsLostError) as error:
            apps.run(topology)
        check_message(
            error, "no longer has offset 3", f"topic {source!r}", "partition 0", "first offset is 6",
            "on_lost_offsets='skip'", "retention",
        )  # fmt: skip

        apps.run(topology, on_lost_offsets="skip")
        assert values_by_key(apps.kafka.consume(sink), ms.serdes.int64) == {"a": [1, 2, 3, 4, 5]}
        assert lag(apps.kafka, apps.id, source) == 0

        apps.kafka.produce(source, [("a", "all of these go")] * 4)
        apps.kafka.delete_records(source, {0: 12})
        apps.run(topology, on_lost_offsets="skip")
        assert written(apps.kafka, sink) == 5
        assert lag(apps.kafka, apps.id, source) == 0

    def test_because_the_topic_was_recreated_stop_the_application(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        topology = key_count(source, sink)
        apps.kafka.produce(source, [("a", str(i)) for i in range(3)])
        apps.run(topology)
        apps.kafka.delete_topic(source)
        with pytest.raises(TopicNotFoundError):
            apps.run(topology)
        apps.kafka.create_topic(source, 1)
        apps.kafka.produce(source, [("a", "first of the new topic")])
        with pytest.raises(TopicRecreatedError) as error:
            apps.run(topology)
        check_message(
            error,
            f"topic {source!r}",
            "deleted and created again",
            "'restart_from_beginning'",
            "millstream reset",
        )
        assert written(apps.kafka, sink) == 3

    def test_because_the_topic_is_deleted_while_it_is_read_stop_the_application(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)
        running = apps.start(key_count(source, sink), request_timeout_ms=5_000)
        apps.kafka.delete_topic(source)
        with pytest.raises(TopicNotFoundError) as error:
            running.await_termination(60)
        check_message(
            error, source, "no such topic or partition", "create it again", "another application id"
        )
        assert running.status().state == "failed"


@pytest.mark.broker
@pytest.mark.spark
class TestTopologiesThatDoNotFitTheCheckpoint:
    def test_because_a_store_has_another_serde_are_refused(self, apps: Apps) -> None:
        source, sink = apps.topic("in", 1), apps.topic("out", 1)

        def topology(value: ms.Serde[object]) -> ms.Topology:
            builder = ms.StreamsBuilder()
            sums = builder.stream(source).group_by_key().aggregate(dict, _merged, store="sums", value=value)
            sums.to_stream().to(sink, value=ms.serdes.json)
            return builder.build()

        apps.kafka.produce(source, [("a", "x")])
        apps.run(topology(ms.serdes.json))
        apps.kafka.produce(source, [("a", "y")])
        with pytest.raises(IncompatibleTopologyError) as error:
            apps.run(topology(ms.serdes.pickle))
        check_message(
            error, "'sums'", "string -> pickle", "string -> json", "new name", "another application id"
        )

        apps.run(topology(ms.serdes.json))
        assert latest(apps.kafka.consume(sink), ms.serdes.json) == {"a": {"x": 1, "y": 1}}


def _merged(key: str, value: str, so_far: dict[str, int]) -> dict[str, int]:
    return {**so_far, value: 1}


@pytest.fixture(scope="module")
def fragile() -> Iterator[EmbeddedKafka]:
    """A broker only for these tests, which they may kill."""
    with EmbeddedKafka(partitions=2) as broker:
        yield broker


@pytest.mark.broker
@pytest.mark.spark
class TestABrokerThatGoesAway:
    @pytest.fixture
    def fragile_apps(
        self, fragile: EmbeddedKafka, spark: SparkSession, tmp_path: Path, apps: Apps
    ) -> Iterator[Apps]:
        fragile_instance = Apps(fragile, apps.id, tmp_path)
        yield fragile_instance
        fragile_instance.stop_all()

    @pytest.mark.soak
    def test_while_the_application_is_idle_is_waited_for(self, fragile_apps: Apps) -> None:
        kafka = fragile_apps.kafka
        source, sink = fragile_apps.topic("in"), fragile_apps.topic("out")
        running = fragile_apps.start(key_count(source, sink))
        kafka.produce(source, [("a", "1")])
        eventually(lambda: lag(kafka, running.id, source) == 0, "the first record")
        kafka.kill()
        eventually(lambda: running.status().state == "waiting", "the application to see it")
        kafka.restart()
        kafka.produce(source, [("a", "1"), ("b", "1")])
        eventually(lambda: lag(kafka, running.id, source) == 0, "the records after the restart")
        assert running.status().state == "running"
        running.stop()
        assert values_by_key(kafka.consume(sink), ms.serdes.int64) == {"a": [1, 2], "b": [1]}

    def test_in_the_middle_of_a_stream_causes_no_loss(self, fragile_apps: Apps) -> None:
        kafka, total = fragile_apps.kafka, 3_000
        source, sink = fragile_apps.topic("in"), fragile_apps.topic("out")
        keys = [f"k{i % 50}" for i in range(total)]
        kafka.produce(source, [(key, "x") for key in keys])
        running = fragile_apps.start(key_count(source, sink), max_batch_records=300)
        eventually(lambda: sum(kafka.committed(running.id, source).values()) >= 600, "the second batch")
        kafka.kill()
        assert running.metrics()["processed_records"] < total
        kafka.restart()
        eventually(lambda: lag(kafka, running.id, source) == 0, "the rest", within_s=90)
        running.stop()
        assert latest(kafka.consume(sink), ms.serdes.int64) == Counter(keys)

    @pytest.mark.soak
    def test_does_not_stop_a_run_until_the_end(self, fragile_apps: Apps) -> None:
        kafka, home = fragile_apps.kafka, fragile_apps.home
        source, sink = fragile_apps.topic("in", 1), fragile_apps.topic("out", 1)
        kafka.produce(source, [("a", "1"), ("a", "2")])

        def kill_in_the_first_batch() -> None:
            """This batch reads and sends nothing, so the planner is the first to miss the broker."""
            eventually((home / "closed").exists, "the first batch")
            kafka.kill()
            (home / "open").touch()

        killer = threading.Thread(target=kill_in_the_first_batch)
        killer.start()
        app = fragile_apps.application(with_processor(partial(Gate, home), source, sink))
        running = app.start(until="end")
        try:
            killer.join()
            eventually(lambda: running.status().state == "waiting", "the application to miss the broker")
            kafka.restart()
            assert running.await_termination(60)
        finally:
            running.stop()
        assert values_by_key(kafka.consume(sink)) == {"a": ["1", "2"]}
        assert lag(kafka, running.id, source) == 0
