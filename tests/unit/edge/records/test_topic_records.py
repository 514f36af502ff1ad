"""Reading the last records of topics whose offsets have gaps, and sending records."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import millstream as ms
from millstream.core.model.errors import (
    BrokerUnavailableError,
    DeserializationError,
    ProductionError,
    SettingsError,
)
from millstream.core.model.serdes import SerdeContext
from millstream.edge.records import topic_records
from millstream.edge.records.text_records import send_text
from millstream.edge.records.topic_records import last_records, newest, send_records
from millstream.edge.settings.settings import Settings

LOG = {
    0: [offset for offset in range(100) if offset % 2 == 0],  # every second offset is a transaction marker
    1: [0, 1, 2],  # the rest was compacted, or aborted
    2: list(range(100)),
    3: [],
}
ENDS = {0: 100, 1: 100, 2: 100, 3: 0}
BEGINS = {0: 0, 1: 0, 2: 90, 3: 0}


class FakeReads:
    def __init__(self) -> None:
        self.starts: list[Mapping[int, int]] = []

    def __call__(self, starts: Mapping[int, int]) -> dict[int, list[int]]:
        self.starts.append(starts)
        return {number: [o for o in LOG[number] if o >= start] for number, start in starts.items()}


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (1, {0: [98], 1: [2], 2: [99], 3: []}),
        (5, {0: [90, 92, 94, 96, 98], 1: [0, 1, 2], 2: [95, 96, 97, 98, 99], 3: []}),
        (1000, {0: LOG[0], 1: LOG[1], 2: list(range(90, 100)), 3: []}),
    ],
)
def test_offsets_without_records_do_not_count_as_records(last: int, expected: dict[int, list[int]]) -> None:
    assert newest(FakeReads(), BEGINS, ENDS, last) == expected


def test_only_partitions_with_gaps_are_read_again() -> None:
    reads = FakeReads()
    newest(reads, BEGINS, ENDS, 5)
    assert reads.starts[0] == {0: 95, 1: 95, 2: 95}
    assert reads.starts[1] == {0: 90, 1: 90}
    assert [set(starts) for starts in reads.starts[2:]] == [{1}] * 4  # from 80, 60, 20 and 0


class FakeProducer:
    """A producer that keeps the records that it receives."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, Any, int]] = []
        self.headers: list[Any] = []
        self.flushed = 0

    def produce(self, topic: str, *, key: Any, value: Any, timestamp: int, headers: list[Any]) -> None:
        if value == b"huge":
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self.sent.append((key, value, timestamp))
        self.headers.append(headers)

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        self.flushed = len(self.sent)
        return 0


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    fake_producer = FakeProducer()
    monkeypatch.setattr(topic_records, "existing_topic", lambda *_: None)
    monkeypatch.setattr(
        topic_records,
        "create_client",
        lambda *_: SimpleNamespace(producer=fake_producer, flush=fake_producer.flush, failures=[]),
    )
    return fake_producer


def send(*records: Any) -> int:
    serdes = (ms.serdes.string, ms.serdes.string)
    return send_records(Settings(bootstrap_servers="nowhere:1"), "topic", records, serdes)


def test_timestamp_0_is_not_sent_as_the_current_time(sending: FakeProducer) -> None:
    send("now", ("k", "first", 0), ("k", "second", 5))
    assert sending.sent == [(None, b"now", 0), (b"k", b"first", 1), (b"k", b"second", 5)]


def _encoded(text: str, context: SerdeContext) -> bytes:
    context.headers.append((f"{context.side}-encoding", b"latin-1"))
    return text.encode("latin-1")


def _decoded(data: bytes, context: SerdeContext) -> str:
    return data.decode((dict(context.headers)[f"{context.side}-encoding"] or b"").decode())


ENCODED = ms.serdes.in_context(_encoded, _decoded, name="encoded")


class FakeMessage:
    """A message whose value is too short at offset 1."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def topic(self) -> str:
        return "topic"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def key(self) -> bytes:
        return "grün".encode("latin-1")

    def value(self) -> bytes:
        return b"12345678" if self._offset != 1 else b"1234"

    def headers(self) -> list[tuple[str, bytes]]:
        return [("key-encoding", b"latin-1")]


def test_a_serde_that_uses_headers_writes_and_reads_them(
    sending: FakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(bootstrap_servers="nowhere:1")
    send_records(settings, "topic", [("grün", "rot")], (ENCODED, ENCODED))
    assert sending.sent == [("grün".encode("latin-1"), b"rot", 0)]
    assert sending.headers == [[("key-encoding", b"latin-1"), ("value-encoding", b"latin-1")]]
    monkeypatch.setattr(topic_records, "messages", lambda *_: [FakeMessage(0)])
    number = int.from_bytes(b"12345678")
    assert [*last_records(settings, "topic", 1, (ENCODED, ms.serdes.int64))] == [
        (3, 0, 1_000, "grün", number)
    ]


def test_a_record_that_does_not_fit_its_serde_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_records, "messages", lambda *_: [FakeMessage(0), FakeMessage(1)])
    failing = pytest.raises(
        DeserializationError,
        match=r"topic 'topic', partition 3, offset 1: the value does not fit serdes\.int64 .*give the serde that fits as value=",
    )
    with failing:
        list(last_records(Settings(bootstrap_servers="nowhere:1"), "topic", 2, (ENCODED, ms.serdes.int64)))


@pytest.mark.parametrize(
    "record", [(), ("k",), ("k", "v", 1, ()), ("k", "v", "1"), ("k", "v", 1.5), ("k", "v", -1)]
)
def test_values_that_are_not_records_are_refused(sending: FakeProducer, record: Any) -> None:
    with pytest.raises(SettingsError, match="a record is a value, a pair of key and value, or"):
        send("before", record)
    assert sending.sent == []


def test_earlier_records_are_sent_before_a_refused_record_raises_an_error(
    sending: FakeProducer,
) -> None:
    with pytest.raises(ProductionError, match=r"topic 'topic': record 2 is refused.*before it were sent"):
        send("small", "huge", "never")
    assert sending.flushed == 1


@pytest.mark.parametrize(
    ("text", "form"),
    [("x", "int64"), ("\udcff", "auto"), ("\udcff", "string"), ("[" * 100_000, "json")],
    ids=["no number", "no text", "no string", "nested too deeply"],
)
def test_earlier_records_are_sent_before_text_that_does_not_fit_raises_an_error(
    sending: FakeProducer, text: str, form: str
) -> None:
    records = [(None, "1"), (None, text)]
    with pytest.raises(SettingsError, match=f"cannot be written as {form}: .*before it were sent"):
        send_text("topic", records, ("auto", form), Settings(bootstrap_servers="nowhere:1"))
    assert sending.flushed == 1


@pytest.mark.parametrize("form", ["json", "int64"])
def test_the_text_null_is_a_null_value_except_in_strings(sending: FakeProducer, form: str) -> None:
    records = [("k", "null"), ("null", "5")]
    send_text("topic", records, ("string", form), Settings(bootstrap_servers="nowhere:1"))
    assert [sent[:2] for sent in sending.sent] == [
        (b"k", None),
        (b"null", getattr(ms.serdes, form).serialize(5)),
    ]


class SilentConsumer:
    """A consumer whose broker died after it had reported the end offsets of the topic."""

    def assign(self, partitions: Any) -> None: ...

    def poll(self, seconds: float) -> None: ...


def test_a_broker_that_stops_sending_raises_an_error_instead_of_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_records, "_READ_S", 0.1)
    consumer: Any = SilentConsumer()
    reader = topic_records._TopicReader(consumer, "in", {0: 5})
    with pytest.raises(
        BrokerUnavailableError, match="topic 'in' cannot be read: its brokers have sent nothing"
    ):
        list(reader.read({0: 3}))
    assert list(reader.read({0: 5})) == []
