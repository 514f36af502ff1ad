"""Which transactional ids a start takes over concurrently."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from millstream.core.model.errors import OtherCheckpointError, ProductionError
from millstream.core.ports import BatchId
from millstream.drivers.kafka.concurrent_calls import call_for_each
from millstream.drivers.kafka.marks import Mark
from millstream.drivers.kafka.transactions import KafkaTransactions

NEWEST = BatchId("c", 7)
_PATIENCE_S = 10


@dataclass
class Brokers:
    """Checks that a start takes over the transactional ids of a round concurrently, and the rounds one after the other."""

    rounds: list[set[int]]
    claimed_elsewhere: set[int] = field(default_factory=set)
    failing: dict[int, list[Exception]] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    claimed: dict[int, Mark | None] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take_over(self, partition: int) -> None:
        number = next(number for number, others in enumerate(self.rounds) if partition in others)
        with self.changed:
            for earlier in self.rounds[:number]:
                assert earlier <= self.claimed.keys(), f"{partition} is not alone"
            self.waiting.add(partition)
            self.changed.notify_all()
            together = self.changed.wait_for(lambda: self.rounds[number] <= self.waiting, _PATIENCE_S)
            assert together, f"{partition} is alone"


@dataclass(frozen=True)
class Delivery:
    brokers: Brokers
    partition: int

    def claim(self, newest: BatchId, before: Mark | None) -> bool:
        assert newest == NEWEST
        if errors := self.brokers.failing.get(self.partition):
            raise errors.pop()
        self.brokers.claimed[self.partition] = before
        return self.partition not in self.brokers.claimed_elsewhere


@dataclass(frozen=True)
class Transactions(KafkaTransactions):
    brokers: Brokers = field(default_factory=lambda: Brokers([]))

    def delivery(self, partition: int) -> Any:
        self.brokers.take_over(partition)
        return Delivery(self.brokers, partition)


def transactions(brokers: Brokers) -> Transactions:
    return Transactions({}, {}, "app", 60, 1_000, "run", brokers)


def claims(brokers: Brokers, known: Mapping[int, Mark], partitions: int) -> None:
    transactions(brokers).claim(NEWEST, known, partitions)


def test_open_transactions_are_ended_concurrently() -> None:
    brokers = Brokers([{0, 1, 2, 3}])
    transactions(brokers).end_open(4)
    assert brokers.waiting == {0, 1, 2, 3}


def test_the_first_partition_is_claimed_alone_and_the_others_concurrently() -> None:
    brokers = Brokers([{0}, {1, 2, 3}])
    before = {partition: Mark("c", 7, "", "earlier") for partition in (0, 2)}
    claims(brokers, before, 4)
    assert brokers.claimed == {0: before[0], 1: None, 2: before[2], 3: None}


def test_partitions_that_the_run_has_already_claimed_are_not_claimed_again() -> None:
    own = dict.fromkeys([0, 2], Mark("c", 7, "", "run"))
    brokers = Brokers([{1}, {3, 4}])
    claims(brokers, own, 5)
    assert brokers.claimed.keys() == {1, 3, 4}
    claims(Brokers([]), own, 1)


def test_a_start_that_loses_the_first_partition_claims_no_other() -> None:
    brokers = Brokers([{0}, {1, 2}], claimed_elsewhere={0})
    with pytest.raises(OtherCheckpointError, match="was started elsewhere at the same time"):
        claims(brokers, {}, 3)
    assert brokers.claimed.keys() == {0}


def test_a_start_that_loses_another_partition_fails() -> None:
    with pytest.raises(OtherCheckpointError, match="was started elsewhere at the same time"):
        claims(Brokers([{0}, {1, 2}], claimed_elsewhere={2}), {}, 3)


def test_a_claim_is_repeated_after_a_production_error() -> None:
    brokers = Brokers([{0}, {1, 2}], failing={1: [ProductionError("fenced"), ProductionError("fenced")]})
    claims(brokers, {}, 3)
    assert (brokers.claimed.keys(), brokers.failing) == ({0, 1, 2}, {1: []})


class TestCallForEach:
    def test_calls_the_function_once_per_number_with_limited_concurrency(self) -> None:
        calls: list[int] = []
        running, most, lock = 0, 0, threading.Lock()

        def call(number: int) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            calls.append(number)
            with lock:
                running -= 1

        call_for_each(call, range(200))
        assert sorted(calls) == list(range(200))
        assert most <= 16

    def test_starts_no_call_after_an_error(self) -> None:
        calls: list[int] = []

        def fail(number: int) -> None:
            calls.append(number)
            raise ProductionError(str(number))

        with pytest.raises(ProductionError):
            call_for_each(fail, range(200))
        assert len(calls) <= 16

    def test_does_nothing_without_numbers(self) -> None:
        call_for_each(pytest.fail, ())
