"""Reading a split partition: each key in order and every record once, for any changes, read sizes and buffered records."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.fanout.epochs import History, primary_of
from millstream.core.fanout.reading import limits, reading
from millstream.core.model.ids import TopicPartition

PRIMARY = TopicPartition("orders", 0)
LOGS = [PRIMARY, *(TopicPartition("orders-fanout-0", number) for number in range(5))]
KEYS = [f"key-{n}".encode() for n in range(12)]
CHANGES = st.lists(st.tuples(st.integers(1, 5), st.lists(st.sampled_from(KEYS), max_size=9)), max_size=5)


class Topic:
    """A partition with its logs, and a producer that follows the newest epoch."""

    def __init__(self) -> None:
        self.history = History.new(PRIMARY)
        self.logs: dict[TopicPartition, list[tuple[bytes, int]]] = {log: [] for log in LOGS}
        self.sent = 0

    def send(self, keys: list[bytes]) -> None:
        for key in keys:
            self.logs[self.history.current.log_of(key)].append((key, self.sent))
            self.sent += 1

    def change(self, ranges: int) -> None:
        self.history = self.history.changed(ranges, {log: len(records) for log, records in self.logs.items()})


class Reader:
    """Reads a random part of what the limits allow and processes a random part of its buffers, with the logs in any order."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.positions = dict.fromkeys(LOGS, 0)
        self._buffers: dict[TopicPartition, list[tuple[bytes, int]]] = defaultdict(list)
        self.processed: list[tuple[bytes, int]] = []

    def run(self, topic: Topic, *, everything: bool = False) -> None:
        buffered = {log for log, records in self._buffers.items() if records}
        epoch = reading(topic.history, self.positions, buffered)
        log_limits = limits(topic.history, epoch, self.positions)
        for log in self._data.draw(st.permutations(LOGS)) if not everything else LOGS:
            end = len(topic.logs[log])
            limit = log_limits.get(log, end)
            assert limit is None or limit >= self.positions[log]
            left = (end if limit is None else min(limit, end)) - self.positions[log]
            taken = left if everything else self._data.draw(st.integers(0, left))
            start = self.positions[log]
            self._buffers[log] += topic.logs[log][start : start + taken]
            self.positions[log] = start + taken
        for log in LOGS:
            waiting = self._buffers[log]
            done = len(waiting) if everything else self._data.draw(st.integers(0, len(waiting)))
            self.processed += waiting[:done]
            del waiting[:done]


def check_order(reader: Reader, topic: Topic) -> None:
    assert sorted(number for _, number in reader.processed) == list(range(topic.sent))
    numbers_of_key: dict[bytes, list[int]] = defaultdict(list)
    for key, number in reader.processed:
        numbers_of_key[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in numbers_of_key.values())


@given(CHANGES, st.data())
def test_each_key_is_processed_in_order_and_every_record_once(
    changes: list[tuple[int, list[bytes]]], data: st.DataObject
) -> None:
    topic, reader = Topic(), Reader(data)
    for ranges, keys in changes:
        topic.send(keys)
        reader.run(topic)
        topic.change(ranges)
    topic.send(KEYS)
    for _ in range(len(changes) + 2):
        reader.run(topic, everything=True)
    check_order(reader, topic)


@given(CHANGES, st.data())
def test_each_key_stays_in_order_if_the_fan_out_topic_is_deleted_after_a_merge(
    changes: list[tuple[int, list[bytes]]], data: st.DataObject
) -> None:
    """A regression: the next split creates the topic again, shorter than in its earlier epoch, which then seemed to be unread."""
    topic, reader = Topic(), Reader(data)
    for ranges, keys in [(2, KEYS), (1, KEYS), *changes, (2, KEYS)]:
        topic.send(keys)
        topic.change(ranges)
        topic.send(KEYS)
        for _ in range(3):
            reader.run(topic, everything=True)
        if topic.history.current.ranges == 1:
            for log in LOGS[1:]:
                topic.logs[log], reader.positions[log] = [], 0
    check_order(reader, topic)
    assert reading(topic.history, reader.positions, ()) is topic.history.current


def test_records_in_a_buffer_keep_the_next_epoch_closed() -> None:
    topic = Topic()
    topic.send(KEYS)
    topic.change(2)
    read = {**dict.fromkeys(LOGS, 0), PRIMARY: len(KEYS)}
    assert reading(topic.history, read, {PRIMARY}).number == 0
    assert reading(topic.history, read, ()).number == 1


def test_a_log_that_is_not_known_yet_keeps_its_epoch_open() -> None:
    topic = Topic()
    topic.change(2)
    topic.change(1)
    assert reading(topic.history, {PRIMARY: 0}, ()).number == 1


def test_only_names_of_fan_out_topics_have_a_primary() -> None:
    assert primary_of("a-fanout-7") == TopicPartition("a", 7)
    assert [primary_of(name) for name in ("a-fanout", "-fanout-1", "a-fanout-x", "a-1", "")] == [None] * 5
