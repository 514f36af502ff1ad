"""The methods of the test driver for topics and time: records, input and output topics, withheld topics, the wall clock."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import MillstreamError, TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers, K, Record, Records, V
from millstream.core.model.serdes import Serde, serialize_for_topic
from millstream.core.model.serdes import bytes as bytes_serde
from millstream.core.topology.nodes import Sink
from millstream.testing._driver_arguments import check_serdes, checked_headers, checked_time
from millstream.testing._runner import DriverRunner
from millstream.testing._topics import TopicLogs
from millstream.testing.input_and_output_topics import InputTopic, NewRecord, OutputTopic, Serdes


class DriverTopics:
    """The topic methods of ``TopologyTestDriver``."""

    _runner: DriverRunner
    _topics: TopicLogs
    _commit_every: int
    _collected: list[tuple[TopicPartition, Records]]
    _closed: bool

    def _check_open(self) -> None:
        """Refuse to process anything after the end, such as in a driver that was replaced by its edited one.

        Raises:
            MillstreamError: If the driver is closed.
        """
        if self._closed:
            raise MillstreamError(
                "the driver is closed, and processes nothing; use the one that edited() has returned, or create another"
            )

    def pipe(
        self,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int = 0,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> None:
        """Process one record to the end, or collect it for a micro-batch of ``commit_every`` records.

        For an example, see :class:`TopologyTestDriver`.

        Args:
            topic: A topic that the topology reads, by name or by pattern.
            key: The key as an object for the source's serde, or None; bytes are used unchanged.
            value: The value as an object for the source's serde, or None; bytes are used unchanged.
            timestamp: Milliseconds since the epoch.
            headers: Name and value pairs.
            partition: The partition to write to. None uses the partition that a Java producer chooses for the key; records without a key
                go to the partitions in turn.

        Raises:
            TopicNotFoundError: If the topology does not read the topic, or the topic has no such partition.
            SettingsError: If the timestamp or the headers are not those of a record.
            MillstreamError: If the record fails under the policy "fail", or the driver is closed.

        Source: ``TestInputTopic.pipeInput`` (KIP-470).
        """
        self._write(topic, (None, None), NewRecord(key, value, timestamp, headers, partition))

    def _write(self, topic: str, serdes: Serdes, record: NewRecord) -> None:
        self._check_open()
        source, headers = self._runner.source(topic), checked_headers(record.headers)
        key, headers = serialize_for_topic(
            _serde(serdes[0], source.key, record.key), record.key, topic, "key", headers
        )
        value, headers = serialize_for_topic(
            _serde(serdes[1], source.value, record.value), record.value, topic, "value", headers
        )
        records = Records(
            [key],
            [value],
            [checked_time(record.timestamp, "timestamp")],
            headers=[headers] if headers else None,
        )
        if record.partition is not None:
            records.partitions = [self._topics.checked(TopicPartition(topic, record.partition)).partition]
        for partition, routed in self._topics.routed(topic, records):
            if self._topics.is_withheld(topic):
                self._topics.keep(partition, routed)
            else:
                self._collect([(partition, routed)])

    def _collect(self, records: Iterable[tuple[TopicPartition, Records]]) -> None:
        self._collected.extend(records)
        if self._is_full():
            self.commit()

    def _is_full(self) -> bool:
        return len(self._collected) >= self._commit_every

    def read(self, topic: str) -> list[Record[Any, Any]]:
        """Take the records sent to a topic since the last call, in order, deserialised with the serdes of its sink.

        For an example, see :class:`TopologyTestDriver`.

        Args:
            topic: The topic.

        Returns:
            The records, oldest first.

        Raises:
            TopicNotFoundError: If the topology has no such topic, and no function that may return its name.

        Source: ``TestOutputTopic.readRecordsToList`` (KIP-470).
        """
        _check_topic(self._runner, topic)
        sent = self._runner.sent.pop(topic, ())
        return [each.record() for each in sent]

    def advance_wall_clock(self, duration: Duration) -> None:
        """Advance the wall clock and run the wall-clock punctuations that are due.

        Collected records are processed first. With asynchronous operators, the clock stops at each time at which a call ends, times out or
        is due again.

        Args:
            duration: A timedelta, or milliseconds; not negative.

        Raises:
            ValueError: If the duration is negative.
            MillstreamError: If a record fails under the policy "fail", or the driver is closed.

        Source: ``TopologyTestDriver.advanceWallClockTime``.

        Example:
            >>> import millstream as ms
            >>> class Alarm(ms.Processor[str, str, str, str]):
            ...     def init(self, context):
            ...         super().init(context)
            ...         context.schedule(500, ms.wall_clock, self.ring)
            ...     def process(self, record): ...
            ...     def ring(self, now):
            ...         self.context.forward(ms.Record("alarm", "ring", now))
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").process(Alarm).to("out")
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     driver.pipe("in", "k", "v")
            ...     driver.advance_wall_clock(500)
            ...     driver.read("out")[0].value
            'ring'
        """
        self._check_open()
        if millis(duration) < 0:
            raise ValueError(
                f"advance_wall_clock({duration!r}): the wall clock cannot go back; pass a duration that is not negative, or create another "
                "driver with a different wall_clock_ms"
            )
        self.commit()
        self._runner.advance(checked_time(self._runner.now_ms + millis(duration), "wall clock"))

    def commit(self) -> None:
        """Process the records collected since the last commit as one micro-batch. Without ``commit_every``, this does nothing.

        Raises:
            MillstreamError: If a record fails under the policy "fail".

        Source: Kafka Streams has no counterpart; its driver commits after each record.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").group_by_key().count().to_stream().to("out", value=ms.serdes.int64)
            >>> with ms.testing.TopologyTestDriver(builder.build(), commit_every=100) as driver:
            ...     for _ in range(3):
            ...         driver.pipe("in", "k", "v")
            ...     driver.commit()
            ...     driver.read("out")
            [Record(key='k', value=3, timestamp=0, headers=())]
        """
        if self._collected:
            collected, self._collected = self._collected, []
            self._deliver(collected)

    def _deliver(self, collected: list[tuple[TopicPartition, Records]]) -> None:
        self._runner.micro_batch(collected)

    def input_topic(
        self,
        name: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        start: int | datetime | None = None,
        advance: Duration = 0,
    ) -> InputTopic[K, V]:
        """Return an input topic with its own serdes and automatically advancing timestamps.

        Args:
            name: A topic that the topology reads.
            key: The serde of keys; None uses the serde of the source.
            value: The serde of values; None uses the serde of the source.
            start: The timestamp of the first record, ms since the epoch or a datetime, in UTC without a time zone; None uses the current
                wall clock.
            advance: The step between the timestamps of consecutive records; a timedelta, or milliseconds.

        Raises:
            TopicNotFoundError: If the topology does not read the topic.
            SettingsError: If a serde is none, or ``start`` is no time.
            ValueError: If ``advance`` is negative.

        Source: ``TopologyTestDriver.createInputTopic``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     topic = driver.input_topic("in", start=1_000, advance=10)
            ...     topic.pipe_values(["a", "b"])
            ...     topic.pipe("k", "late", timestamp=5)
            ...     [record.timestamp for record in driver.read("out")]
            [1000, 1010, 5]
        """
        self._runner.source(name)
        check_serdes(key, value)
        begin = self._runner.now_ms if start is None else start
        if not isinstance(begin, datetime):
            checked_time(begin, "start")
        return InputTopic(name, self._write, (key, value), begin, advance)

    def output_topic(
        self, name: str, *, key: Serde[K] | None = None, value: Serde[V] | None = None
    ) -> OutputTopic[K, V]:
        """Return an output topic with its own serdes.

        Args:
            name: A topic to which the topology sends records, including internal topics.
            key: The serde of keys; None uses the serde of the sink.
            value: The serde of values; None uses the serde of the sink.

        Raises:
            TopicNotFoundError: If the topology has no such topic, and no function that may return its name.
            SettingsError: If a serde is none.

        Source: ``TopologyTestDriver.createOutputTopic``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").group_by_key().count().to_stream().to("out", value=ms.serdes.int64)
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     for key in "aba":
            ...         driver.pipe("in", key, "v")
            ...     counts = driver.output_topic("out")
            ...     counts.read_one()
            ...     counts.read_as_table()
            Record(key='a', value=1, timestamp=0, headers=())
            {'b': 1, 'a': 2}
        """
        _check_topic(self._runner, name)
        check_serdes(key, value)
        return OutputTopic(name, lambda: self._runner.sent[name], key, value)

    def produced_topics(self) -> frozenset[str]:
        """Return the topics to which records have been sent, including repartition topics.

        Source: ``TopologyTestDriver.producedTopicNames`` (KIP-594).

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     driver.pipe("in", "k", "v")
            ...     driver.produced_topics()
            frozenset({'out'})
        """
        return frozenset(self._runner.produced)

    def hold(self, topic: str) -> None:
        """Withhold records written to a topic from now on: they stay on the broker, and the topology does not receive them.

        With ``max_task_idle_ms``, tasks wait for these records as for any topic with lag.

        Args:
            topic: A topic that the topology reads.

        Raises:
            TopicNotFoundError: If the topology does not read the topic.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> both = builder.stream("a").merge(builder.stream("b")).group_by_key()
            >>> both.reduce(lambda old, new: f"{old}, {new}").to_stream().to("out")
            >>> with ms.testing.TopologyTestDriver(builder.build(), max_task_idle_ms=0) as driver:
            ...     driver.hold("b")
            ...     driver.pipe("b", "k", "first", timestamp=1)
            ...     driver.pipe("a", "k", "second", timestamp=2)
            ...     print(driver.waiting())
            ...     driver.release("b")
            ...     driver.read("out")[-1].value
            {'0_0': 'waits for b-0, which is empty here and has more records on the broker'}
            'first, second'
        """
        self._runner.source(topic)
        self._topics.hold(topic)

    def release(self, topic: str) -> None:
        """Deliver the withheld records of a topic to the topology and stop withholding it. For an example, see :meth:`hold`.

        Args:
            topic: A topic that the topology reads. If it is not withheld, the call has no effect.

        Raises:
            TopicNotFoundError: If the topology does not read the topic.
            MillstreamError: If a record fails under the policy "fail", or the driver is closed.
        """
        self._check_open()
        self._runner.source(topic)
        self._collect(self._topics.release(topic))

    def waiting(self) -> dict[str, str]:
        """Return why tasks wait with buffered records. For an example, see :meth:`hold`.

        Returns:
            The reason, by task id such as ``0_0``.
        """
        return {str(task): line for task, line in sorted(self._runner.waiting.items())}


def _check_topic(runner: DriverRunner, topic: str) -> None:
    """Refuse to read a topic that the topology does not have, because a misspelt name would look like a topic without records.

    Raises:
        TopicNotFoundError: If there is no such topic, and no function that may return its name.
    """
    plan, policies = runner.plan, runner.settings.policies
    if not isinstance(topic, str):
        raise TopicNotFoundError(f"{topic!r} is a {type(topic).__name__}, not the name of a topic")
    if topic in runner.sent or topic in runner.produced or runner.reading(topic) is not None:
        return
    written = {
        *plan.sink_topics,
        *plan.internal_topics,
        *plan.changelogs.values(),
        *plan.failure_topics,
        *policies.topics,
    }
    nodes = {name: node for sub in plan.subtopologies for name, node in sub.nodes.items()}
    chosen = any(isinstance(node, Sink) and not isinstance(node.topic, str) for node in nodes.values())
    if topic in written or chosen or any(map(policies.asks, nodes)):
        return
    close = difflib.get_close_matches(topic, sorted(written), n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"it sends to: {', '.join(sorted(written))}"
    raise TopicNotFoundError(f"the topology does not send to topic {topic!r}; {hint}")


def _serde(given: Serde[Any] | None, of_source: Serde[Any], data: Any) -> Serde[Any]:
    """Return the given serde, or else the serde of the source, which passes bytes through."""
    if given is None and isinstance(data, bytes):
        return bytes_serde
    return given or of_source
