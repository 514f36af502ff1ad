"""Asynchronous operators over micro-batches that fail, stations that die and answers that come late, against a serial run."""

from __future__ import annotations

import copy
import pickle
import random
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.core.asynchronous.call import Call, Raised
from penstock.core.asynchronous.dispatcher import Dispatcher, Start
from penstock.core.asynchronous.exchange import Exchange
from penstock.core.engine import ledger
from penstock.core.engine.outcome import Outcome, Snapshot
from penstock.core.engine.task import Task
from penstock.core.model.calls import CallOrder
from penstock.core.model.ids import TaskId, TopicPartition
from penstock.core.state.memory import MemoryStores
from unit.helpers import Row, records, sent

from .engines import Visits

IN = TopicPartition("in", 0)
SEEDS = st.integers(0, 2**32)


class Cluster:
    """A task that lives for one micro-batch at a time, and a station beside it; each may die."""

    def __init__(self, topology: ps.Topology, rows: list[Row], dice: random.Random) -> None:
        self.sub = topology.plan("app").subtopologies[0]
        self.rows = rows
        self.dice = dice
        self.stores = MemoryStores()
        self.snapshot: Snapshot | None = None
        self.position = 0
        self.epoch = 0
        self.now = 0
        self.out: list[Any] = []
        self.committed = 0
        self.finished: set[int] = set()
        self.done_again: list[int] = []
        self.unfinished: list[int] = []
        self.journal: list[tuple[int, int, int | None]] = []
        self.running: list[tuple[int, Start]] = []
        self.failures: Counter[str] = Counter()
        self.new_station()

    def new_station(self) -> None:
        """The station dies with all its calls; another one is started."""
        with_calls = self.new_task().calls
        self.dispatcher = Dispatcher(with_calls["call"], seed="app")
        self.exchange = Exchange(self.dispatcher)
        self.running = []

    def new_task(self) -> Task:
        return Task(
            self.sub,
            TaskId(0, 0),
            application_id="app",
            stores=copy.deepcopy(self.stores),
            snapshot=self.snapshot,
            epoch=str(self.epoch),
        )

    def micro_batch(self, *, crash: bool) -> None:
        self.epoch += 1
        task = self.new_task()
        task.init(self.now)
        task.lost(self.exchange.begin(task.under_way()))
        for ticket, settled in self.exchange.answers():
            task.done(ticket, settled)
        end = min(self.position + self.dice.randrange(6), len(self.rows))
        task.feed(IN, records(self.rows[self.position : end], self.position), end)
        outcome = task.step(self.now)
        for call in outcome.issue:
            self.exchange.offer(call, self.now)
        if not crash:
            self.commit(task, outcome, end)
        task.close()

    def commit(self, task: Task, outcome: Outcome, end: int) -> None:
        self.stores.apply(outcome.changes, outcome.dropped_slices)
        self.snapshot = task.snapshot()
        self.position = end
        self.out += sent(outcome)
        committed = outcome.committable.get(IN, 0)
        progress = self.snapshot.progress.get(IN)
        assert committed >= self.committed, "the frontier never goes back"
        if progress is not None:
            self.unfinished = [at for at in range(end) if not progress.finished(at)]
            assert committed == min(self.unfinished, default=end)
            finished = {at for at in range(end) if progress.finished(at)} | self.ended_in_store()
            assert finished >= self.finished
            self.finished = finished
        self.committed = committed

    def ended_in_store(self) -> set[int]:
        """Give the offsets of records whose calls have ended, and that wait for those in front of them."""
        rows = [pickle.loads(row) for _, row in self.stores.open("call-unfinished").scan(None, None)]
        return {origin[2] for origin, *_, settled in rows if settled is not None}

    def remembered(self, what: str) -> Any:
        memory = self.snapshot.operators.get("call-unfinished", {}) if self.snapshot is not None else {}
        return memory.get(what, 0)

    def work(self) -> None:
        """A millisecond passes at the station."""
        self.now += 1
        self.dispatcher.expire(self.now)
        for each in [each for each in self.running if each[0] <= self.now]:
            self.running.remove(each)
            self.dispatcher.end(each[1].number, [self.answer(call) for call in each[1].calls], self.now)
        for start in self.dispatcher.start(self.now):
            self.running.append((self.now + self.dice.randrange(1, 8), start))
            for call in start.calls:
                offset = int(call.args[0].partition(":")[2])
                self.journal.append((offset, self.now, call.attempt))
                if offset in self.finished:
                    self.done_again.append(offset)

    def answer(self, call: Call) -> Any:
        value = call.args[0]
        if call.attempt <= self.failures[value]:
            return self.dice.choice([Raised(OSError("down")), ps.retry(in_=5)])
        return f"<{value}>"


def calling(order: CallOrder, batch: tuple[int, int] | None = None) -> ps.Topology:
    builder = ps.StreamsBuilder()
    retry = ps.Retry(initial=3, cap=10)
    stream = builder.stream("in")
    stream.map_values_async(
        lambda value: value, name="call", order=order, retry=retry, max_in_flight=4, batch=batch
    ).to("out")
    return builder.build()


@pytest.mark.parametrize("order", ["key", "partition", "completion"])
def test_whatever_dies_each_record_retires_once_and_in_order(
    order: CallOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_LONG_LINE", 3)
    visits = Visits()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 25), st.sampled_from([None, (3, 2)]), SEEDS)
    def runs(count: int, batch: tuple[int, int] | None, seed: int) -> None:
        dice = random.Random(seed)
        keys = [dice.choice(["hot", "hot", "warm", "cold", None]) for _ in range(count)]
        rows = [(key, f"{key}:{offset}", offset) for offset, key in enumerate(keys)]
        cluster = Cluster(calling(order, batch), rows, dice)
        cluster.failures.update({row[1]: dice.choice([0, 0, 0, 1, 2]) for row in rows})
        for turn in range(1000):
            wild = turn < 40
            crash = wild and dice.random() < 0.2
            cluster.micro_batch(crash=crash)
            visits["crash"] += crash
            if wild and dice.random() < 0.1:
                visits["station lost"] += bool(cluster.running)
                cluster.new_station()
            for _ in range(dice.randrange(6)):
                cluster.work()
            visits["on the shelf"] += cluster.remembered("shelved_records") > 0
            visits["parked"] += bool(cluster.remembered("overflow_keys"))
            visits["finished beyond"] += bool(cluster.finished) and cluster.committed < max(cluster.finished)
            if len(cluster.out) == count and cluster.position == count:
                break
        expected = [(key, f"<{value}>", time) for key, value, time in rows]
        assert sorted(cluster.out, key=str) == sorted(expected, key=str)
        assert cluster.done_again == [], "what was finished at a commit never runs again"
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
    visits.demand(crash=50, **{"station lost": 10, "finished beyond": 20})
    if order != "partition":
        visits.demand(**{"on the shelf": 20})
    if order == "key":
        visits.demand(parked=20)


def check_keys(cluster: Cluster, expected: list[Any]) -> None:
    for key in ("hot", "warm", "cold"):
        assert [row for row in cluster.out if row[0] == key] == [row for row in expected if row[0] == key]


def test_attempts_go_on_counting_over_restarts() -> None:
    visits = Visits()

    @settings(max_examples=30, deadline=None)
    @given(SEEDS)
    def runs(seed: int) -> None:
        dice = random.Random(seed)
        cluster = Cluster(calling("key"), [("k", "k:0", 0)], dice)
        cluster.failures["k:0"] = 3
        while not cluster.out:
            cluster.micro_batch(crash=dice.random() < 0.3)
            for _ in range(dice.randrange(6)):
                cluster.work()
        attempts: dict[int, list[int]] = defaultdict(list)
        for offset, at, attempt in cluster.journal:
            attempts[offset].append(attempt or 0)
            assert at
        for first, then in pairwise(attempts[0]):
            visits["again"] += first == then
            assert then in (first, first + 1)
        assert attempts[0][-1] == 4

    runs()
    visits.demand(again=3)
