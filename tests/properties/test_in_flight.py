"""Asynchronous operators have the results of a serial run, even if micro-batches fail, async workers die and answers are late."""

from __future__ import annotations

import copy
import random
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.asynchronous.call import Call, Raised, Start, Waits, grouped
from millstream.core.asynchronous.dispatcher import Dispatcher
from millstream.core.asynchronous.result_buffer import ResultBuffer
from millstream.core.engine.asynchronous import backlog, backpressure, in_flight
from millstream.core.engine.asynchronous.in_flight_record import InFlightStore
from millstream.core.engine.step_outcome import Outcome, Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.calls import CallOrder
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from unit.helpers import ReadOnlyContext, Row, records, sent

from .engines import Visits

IN = TopicPartition("in", 0)
SEEDS = st.integers(0, 2**32)


class Cluster:
    """A task that exists for one micro-batch at a time, and an async worker; each may die.

    Attributes:
        ahead_ms: How far the clock of the task is ahead of the clock of the async worker.
    """

    repeats_sends = True

    def __init__(self, topology: ms.Topology, rows: list[Row], dice: random.Random) -> None:
        self.sub = topology.plan("app").subtopologies[0]
        self.rows = rows
        self.dice = dice
        self.stores = MemoryStores()
        self.snapshot: Snapshot | None = None
        self.position = 0
        self.epoch = 0
        self.now, self.ahead_ms = 0, 10_000_000
        self.out: list[Any] = []
        self.committed = 0
        self.finished: set[int] = set()
        self.repeated_offsets: list[int] = []
        self.unfinished: list[int] = []
        self.journal: list[tuple[int, int, int | None]] = []
        self.running: list[tuple[int, Start]] = []
        self.failures: Counter[str] = Counter()
        self.new_async_worker()

    def new_async_worker(self) -> None:
        """Replace the async worker, whose calls are lost."""
        calls_by_operator = self.new_task().calls
        self.dispatcher = Dispatcher(calls_by_operator["call"], seed="app")
        self.result_buffer = ResultBuffer(self.dispatcher)
        self.running = []

    def new_task(self) -> Task:
        return Task(
            self.sub,
            TaskId(0, 0),
            application_id="app",
            stores=copy.deepcopy(self.stores),
            snapshot=self.snapshot,
            epoch=str(self.epoch),
            repeats_sends=self.repeats_sends,
        )

    def micro_batch(self, *, crash: bool) -> None:
        self.epoch += 1
        task = self.new_task()
        now_ms = self.now + self.ahead_ms
        task.init(now_ms)
        under_way = grouped(task.under_way()).get("call", {})
        task.lost(self.result_buffer.begin("call", under_way))
        for ticket, settled in self.result_buffer.results():
            task.done(ticket, settled.moved(self.ahead_ms) if isinstance(settled, Waits) else settled)
        end = min(self.position + self.dice.randrange(6), len(self.rows))
        task.feed(IN, records(self.rows[self.position : end], self.position), end)
        outcome = task.step(now_ms)
        for call in outcome.issue:
            begun_ms = None if call.begun_ms is None else call.begun_ms - self.ahead_ms
            due_ms = call.due_ms and call.due_ms - self.ahead_ms
            self.result_buffer.offer(call._replace(begun_ms=begun_ms, due_ms=due_ms), self.now)
        if not crash:
            self.out += sent(outcome)
            self.commit(task, outcome, end)
        task.close()

    def commit(self, task: Task, outcome: Outcome, end: int) -> None:
        self.stores.apply(outcome.changes, outcome.dropped_slices)
        self.snapshot = task.snapshot()
        self.position = end
        committed = outcome.committable.get(IN, 0)
        progress = self.snapshot.progress.get(IN)
        assert committed >= self.committed, "the committable offset never goes back"
        if progress is not None:
            runs = progress.unfinished
            self.unfinished = [offset for first, length in runs for offset in range(first, first + length)]
            assert (progress.position, committed) == (end, min(self.unfinished, default=end))
            finished = {*range(end)}.difference(self.unfinished) | self.ended_in_store()
            assert finished >= self.finished
            self.finished = finished
        self.committed = committed

    def ended_in_store(self) -> set[int]:
        """Return the offsets of records whose calls have ended, but which wait for earlier records."""
        store = open_store(self.sub.stores["call-unfinished"], self.stores, ReadOnlyContext(0), {})
        return {
            record.origin.offset for record in InFlightStore(store).read() if record.origin and record.settled
        }

    def remembered(self, key: str) -> Any:
        memory = self.snapshot.operators.get("call-unfinished", {}) if self.snapshot is not None else {}
        return memory.get(key, 0)

    def work(self) -> None:
        """Advance the async worker by a millisecond."""
        self.now += 1
        self.dispatcher.expire(self.now)
        for each in [each for each in self.running if each[0] <= self.now]:
            self.running.remove(each)
            self.dispatcher.end(each[1].number, [self.answer(call) for call in each[1].calls], self.now)
        for start in self.dispatcher.start(self.now):
            self.running.append((self.now + self.dice.randrange(1, 8), start))
            for call in start.calls:
                offset = self.offset_of(call)
                self.journal.append((offset, self.now, call.attempt))
                assert self.now >= call.due_ms
                if offset in self.finished:
                    self.repeated_offsets.append(offset)

    def offset_of(self, call: Call) -> int:
        return int(call.args[0].partition(":")[2])

    def answer(self, call: Call) -> Any:
        value = call.args[0]
        if call.attempt <= self.failures[value]:
            return self.dice.choice([Raised(OSError("down")), ms.retry(in_=5)])
        return f"<{value}>"


def calling_topology(order: CallOrder, batch: tuple[int, int] | None = None) -> ms.Topology:
    builder = ms.StreamsBuilder()
    retry = ms.Retry(initial=3, cap=10)
    stream = builder.stream("in")
    stream.map_values_async(
        lambda value: value, name="call", order=order, retry=retry, max_in_flight=4, batch=batch
    ).to("out")
    return builder.build()


@pytest.mark.parametrize("order", ["key", "partition", "completion"])
def test_each_record_retires_once_and_in_order_despite_failures(
    order: CallOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_LONG_KEY", 3)
    monkeypatch.setattr(backlog, "_BLOCKED_KEY", 2)
    if order == "partition":  # this order keeps as many records in memory as it hands over
        monkeypatch.setattr(backpressure, "MIN_IN_FLIGHT", 5)
        monkeypatch.setattr(backpressure, "_TIMES_IN_FLIGHT", 1)
    monkeypatch.setattr(in_flight, "_AHEAD_MS", 2)
    visits = Visits()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 25), st.sampled_from([None, (3, 2)]), SEEDS)
    def runs(count: int, batch: tuple[int, int] | None, seed: int) -> None:
        dice = random.Random(seed)
        keys = [dice.choice(["hot", "hot", "warm", "cold", None]) for _ in range(count)]
        rows = [(key, f"{key}:{offset}", offset) for offset, key in enumerate(keys)]
        cluster = Cluster(calling_topology(order, batch), rows, dice)
        cluster.failures.update({row[1]: dice.choice([0, 0, 0, 1, 2]) for row in rows})
        for turn in range(1000):
            disturbed = turn < 40
            crash = disturbed and dice.random() < 0.2
            cluster.micro_batch(crash=crash)
            visits["crash"] += crash
            if disturbed and dice.random() < 0.1:
                visits["async worker lost"] += bool(cluster.running)
                cluster.new_async_worker()
            if disturbed and dice.random() < 0.1:
                cluster.ahead_ms -= 100_000
            for _ in range(dice.randrange(6)):
                cluster.work()
            visits["delayed"] += cluster.remembered("shelved_records") > 0
            visits["spilled"] += bool(cluster.remembered("overflow_keys"))
            visits["finished beyond"] += bool(cluster.finished) and cluster.committed < max(cluster.finished)
            if len(cluster.out) == count and cluster.position == count:
                break
        expected = [(key, f"<{value}>", time) for key, value, time in rows]
        assert sorted(cluster.out, key=str) == sorted(expected, key=str)
        assert cluster.repeated_offsets == [], "what was finished at a commit never runs again"
        if order == "partition":
            assert cluster.out == expected
        if order == "key":
            check_keys(cluster, expected)
        cluster.micro_batch(crash=False)
        assert cluster.committed == count
        for store in (
            "call-unfinished",
            "call-unfinished-delayed",
            "call-unfinished-delayed-keys",
            "call-unfinished-parked",
        ):
            assert list(cluster.stores.open(store).scan(None, None)) == []

    runs()
    visits.demand(crash=50, **{"async worker lost": 10, "finished beyond": 20})
    if order != "partition":
        visits.demand(delayed=20)
    if order != "completion":
        visits.demand(spilled=20)


def check_keys(cluster: Cluster, expected: list[Any]) -> None:
    for key in ("hot", "warm", "cold"):
        assert [row for row in cluster.out if row[0] == key] == [row for row in expected if row[0] == key]


def test_the_count_of_attempts_continues_after_a_restart() -> None:
    visits = Visits()

    @settings(max_examples=30, deadline=None)
    @given(SEEDS)
    def runs(seed: int) -> None:
        dice = random.Random(seed)
        cluster = Cluster(calling_topology("key"), [("k", "k:0", 0)], dice)
        cluster.failures["k:0"] = 3
        while not cluster.out:
            cluster.micro_batch(crash=dice.random() < 0.3)
            for _ in range(dice.randrange(6)):
                cluster.work()
        attempts: dict[int, list[int]] = defaultdict(list)
        for offset, time_ms, attempt in cluster.journal:
            attempts[offset].append(attempt or 0)
            assert time_ms
        for first, then in pairwise(attempts[0]):
            visits["again"] += first == then
            assert then in (first, first + 1)
        assert attempts[0][-1] == 4

    runs()
    visits.demand(again=3)


class ExactlyOnceCluster(Cluster):
    """The same with exactly-once, and with calls that read and write the state of their key.

    The sends of a micro-batch are committed first, then its state. If it dies in between, it is run again with the same input at the
    same time, and sends nothing.
    """

    repeats_sends = False

    def __init__(self, topology: ms.Topology, rows: list[Row], dice: random.Random) -> None:
        self.planned: tuple[int, int] | None = None
        self.sends: list[Any] | None = None
        super().__init__(topology, rows, dice)

    def micro_batch(self, *, crash: bool) -> None:
        self.epoch += 1
        if self.planned is None:
            self.planned = min(self.position + self.dice.randrange(6), len(self.rows)), self.now
        end, now = self.planned
        task = self.new_task()
        task.init(now)
        task.lost(self.result_buffer.begin("call", grouped(task.under_way()).get("call", {})))
        for ticket, settled in self.result_buffer.results():
            task.done(ticket, settled)
        task.feed(IN, records(self.rows[self.position : end], self.position), end)
        outcome = task.step(now)
        for call in outcome.issue:
            self.result_buffer.offer(call, self.now)
        if self.sends is not None:
            assert sent(outcome) == self.sends, "it would have sent something else, and does not"
        elif not crash or self.dice.random() < 0.5:
            self.sends = sent(outcome)
            self.out += self.sends
        if not crash:
            self.commit(task, outcome, end)
            self.planned = self.sends = None
        task.close()

    def offset_of(self, call: Call) -> int:
        offset: int = call.args[0].timestamp
        return offset

    def answer(self, call: Call) -> Any:
        if call.attempt <= self.failures[call.args[0].value]:
            return self.dice.choice([Raised(OSError("down")), ms.retry(in_=5)])
        return call.function(*call.args)


def add(record: ms.Record[str, str], context: ms.CallContext) -> None:
    """Add up the numbers of a key."""
    sums = context.state_store("sums")
    sums.put(record.key, (sums.get(record.key) or 0) + int(record.value))
    context.forward(record.with_value(str(sums.get(record.key))))


def summing_topology() -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.key_value("sums", ms.serdes.string, ms.serdes.int64))
    retry = ms.Retry(initial=3, cap=10)
    stream = builder.stream("in")
    sums = stream.process_async(add, stores=["sums"], name="call", retry=retry, max_in_flight=4)
    sums.to("out", key=ms.serdes.string, value=ms.serdes.string)
    return builder.build()


def test_exactly_once_repeated_micro_batches_send_the_same_and_calls_see_earlier_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "_LONG_KEY", 3)
    visits = Visits()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 25), SEEDS)
    def runs(count: int, seed: int) -> None:
        dice = random.Random(seed)
        rows = [(dice.choice(["hot", "hot", "warm", "cold"]), str(n), n) for n in range(count)]
        cluster = ExactlyOnceCluster(summing_topology(), rows, dice)
        cluster.failures.update({row[1]: dice.choice([0, 0, 0, 1, 2]) for row in rows})
        for turn in range(1000):
            crash = turn < 40 and dice.random() < 0.3
            cluster.micro_batch(crash=crash)
            visits["crash behind a transaction with results"] += crash and bool(cluster.sends)
            if turn < 40 and dice.random() < 0.1:
                visits["async worker lost"] += bool(cluster.running)
                cluster.new_async_worker()
            for _ in range(dice.randrange(6)):
                cluster.work()
            if cluster.committed == count:
                break
        sums: Counter[str] = Counter()
        expected = []
        for key, value, time in rows:
            sums[key] += int(value)
            expected.append((key, str(sums[key]), time))
        for key in sums:
            assert [row for row in cluster.out if row[0] == key] == [row for row in expected if row[0] == key]
        assert cluster.repeated_offsets == [], "what was finished at a commit never runs again"

    runs()
    visits.demand(**{"crash behind a transaction with results": 20, "async worker lost": 10})
