"""The fault methods of the test driver.

They reproduce, in one process, what happens to an application on Spark. Committed data survive: stores, times, schedules, buffered and
unfinished records. Sent records stay sent. Everything else is lost, and ``close`` of a processor is not called.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from random import Random

from millstream.core.model.errors import SettingsError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.topology.evolution import Remembered
from millstream.testing._driver_topics import DriverTopics
from millstream.testing._runner import DriverRunner
from millstream.testing._tasks import Counters
from millstream.testing.snapshot import (
    DriverSnapshot,
    TaskState,
    content_of,
    global_fingerprints,
    remembered,
)

Delivered = list[tuple[TopicPartition, Records]]


class DriverFaults(DriverTopics):
    """The fault methods of ``TopologyTestDriver``."""

    _before: Remembered
    _again: int = 0
    _failed: bool = False
    """Whether the collected records begin with those of a micro-batch that failed."""
    _order: Random | None = None

    def crash(self) -> None:
        """Kill the application and restart it from its checkpoint.

        Stores, schedules and buffered records continue as committed. Processors are recreated, and calls that were in flight are made
        again. Records that are collected for a micro-batch (``commit_every``) are still on the broker. Store objects that a test has taken
        from the driver belong to the killed application: take them again.

        Raises:
            MillstreamError: If a record that the restarted tasks process fails under the policy "fail", or the driver is closed.

        Source: Kafka Streams has no counterpart; it needs an application and a broker for this.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").group_by_key().count().to_stream().to("out", value=ms.serdes.int64)
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     driver.pipe("in", "k", "v")
            ...     driver.crash()
            ...     driver.pipe("in", "k", "v")
            ...     driver.output_topic("out").read_values()
            [1, 2]
        """
        self._check_open()
        self._restart(committed_snapshot(self._runner, self._before), self._runner.counters.copy())

    def redeliver(self, times: int = 1) -> None:
        """Let the next micro-batch fail after its results were sent and before it is committed.

        It is then processed again, from the state before it, as at-least-once delivery allows: stores change once, and results are sent
        again.

        Args:
            times: Number of failures before the micro-batch is committed, at least 1.

        Raises:
            SettingsError: If the number is invalid.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("in").group_by_key().count().to_stream().to("out", value=ms.serdes.int64)
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     driver.redeliver()
            ...     driver.pipe("in", "k", "v")
            ...     driver.pipe("in", "k", "v")
            ...     driver.output_topic("out").read_values()
            [1, 1, 2]
        """
        if not isinstance(times, int) or times < 1:
            raise SettingsError(
                f"redeliver({times!r}): a micro-batch fails a whole number of times, at least 1"
            )
        self._again = times

    def shuffle(self, seed: int | None) -> None:
        """Deliver records in a different, possible order from now on.

        Records are collected until :meth:`commit` or ``advance_wall_clock``, and then delivered in micro-batches of random size, at most
        ``commit_every``. The order within a partition is preserved; the next partition is chosen at random.

        Args:
            seed: Determines the order; the same seed returns the same order. None restores the order of ``pipe``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("a").merge(builder.stream("b")).to("out")
            >>> def arrivals(seed: int) -> str:
            ...     with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...         driver.shuffle(seed)
            ...         for value in ("1", "2"):
            ...             driver.pipe("a", None, "a" + value)
            ...             driver.pipe("b", None, "b" + value)
            ...         driver.commit()
            ...         return " ".join(record.value for record in driver.read("out"))
            >>> sorted({arrivals(seed) for seed in range(50)})[:3]
            ['a1 a2 b1 b2', 'a1 b1 a2 b2', 'a1 b1 b2 a2']
        """
        self.commit()
        self._order = None if seed is None else Random(seed)

    def _is_full(self) -> bool:
        return self._order is None and super()._is_full()

    def _deliver(self, collected: Delivered) -> None:
        left = [collected] if self._order is None else list(self._shuffled(self._order, collected))
        try:
            while left:
                self._deliver_micro_batch(left[0])
                del left[0]
        finally:  # what has failed is still on the broker, and is read again first
            self._failed = bool(left)
            if left:
                self._collected[:0] = [records for some in left for records in some]

    def _deliver_micro_batch(self, some: Delivered) -> None:
        again, self._again = self._again, 0
        for _ in range(again):
            before, counters = committed_snapshot(self._runner, self._before), self._runner.counters.copy()
            self._runner.micro_batch(some)
            self._restart(before, counters)
        self._runner.micro_batch(some)

    def _read_again(self, records: Delivered) -> None:
        """Process the records of a micro-batch that failed in another driver, as far as this topology reads their topics."""
        self._collected += [each for each in records if self._runner.reading(each[0].topic) is not None]
        self.commit()

    def _shuffled(self, order: Random, collected: Delivered) -> Iterator[Delivered]:
        queues: defaultdict[TopicPartition, deque[Records]] = defaultdict(deque)
        for partition, records in collected:
            queues[partition].append(records)
        turns = [partition for partition, _ in collected]
        order.shuffle(turns)
        delivered = [(partition, queues[partition].popleft()) for partition in turns]
        while delivered:
            size = order.randint(1, self._commit_every)
            yield delivered[:size]
            del delivered[:size]

    def _restart(self, begin: DriverSnapshot, counters: Counters) -> None:
        """Continue from a snapshot with new tasks. Sent records stay sent."""
        before = self._runner
        before.close(gently=False)
        before.topics.ends = defaultdict(int, begin.ends)
        after = DriverRunner(before.plan, before.layout, before.topics, before.settings, begin)
        for topic, sent in before.sent.items():
            after.sent[topic].extendleft(reversed(sent))
        after.produced |= before.produced
        after.counters = counters
        self._runner = after


def committed_snapshot(runner: DriverRunner, before: Remembered) -> DriverSnapshot:
    """Return the committed state; ``before`` is the topology from which the driver continued."""
    return DriverSnapshot(
        runner.plan.application_id,
        runner.now_ms,
        remembered(runner.plan, runner.layout, before),
        {
            task: TaskState(each.snapshot(), content_of(each.stores), runner.unfinished.get(task, {}))
            for task, each in runner.tasks.items()
            if each.stores is not runner.global_stores
        },
        content_of(runner.global_stores),
        global_fingerprints(runner.plan),
        dict(runner.topics.ends),
        dict(runner.committable),
    )
