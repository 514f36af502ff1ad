"""Mutations: each disables one safety mechanism of the product, which the simulation must detect."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from millstream.core.model.ids import TopicPartition
from millstream.core.state.segments import log
from millstream.core.topology.plan import Plan
from millstream.drivers.kafka.delivery import Transaction
from millstream.drivers.kafka.transactions import KafkaTransactions
from millstream.drivers.spark import sink
from millstream.drivers.spark.executor import restore, statelog
from millstream.drivers.spark.executor.copies import TaskCopies
from millstream.edge.application.spark_requests import SparkRequests
from simulation import copies, query
from simulation.clients import Reader

Mutation = Callable[[pytest.MonkeyPatch], None]


def ignore_marks(patch: pytest.MonkeyPatch) -> None:
    """A batch that was delivered before is sent again."""
    begin = Transaction.begin

    def begin_always(self: Any, batch: Any) -> bool:
        if not begin(self, batch):
            self._producer.begin_transaction()
        return True

    patch.setattr(Transaction, "begin", begin_always)


def take_nothing_over(patch: pytest.MonkeyPatch) -> None:
    """Each attempt has a transactional id of its own, so none fences another one."""
    numbers, settings = count(), KafkaTransactions.producer_settings

    def separate_ids(self: Any, partition: int) -> dict[str, Any]:
        original = settings(self, partition)
        return {**original, "transactional.id": f"{original['transactional.id']}-{next(numbers)}"}

    patch.setattr(KafkaTransactions, "producer_settings", separate_ids)


def read_the_mark_first(patch: pytest.MonkeyPatch) -> None:
    """The mark is read before the transactional id is taken over, so another attempt may deliver in between."""
    take_over, last = Transaction._take_over, Transaction._last_mark

    def early(self: Any) -> None:
        self._early = last(self)
        take_over(self)

    patch.setattr(Transaction, "_take_over", early)
    patch.setattr(Transaction, "_last_mark", lambda self, **isolation: self._early)


def mark_outside(patch: pytest.MonkeyPatch) -> None:
    """The transaction is committed without its mark and offsets, which follow in a separate transaction."""
    commit = Transaction.commit

    def twice(self: Any, offsets: Any) -> None:
        with self._aborting():
            self._insist("committing", self._producer.commit_transaction)
            self._producer.begin_transaction()
        commit(self, offsets)

    patch.setattr(Transaction, "commit", twice)


def offsets_before_records(patch: pytest.MonkeyPatch) -> None:
    """The group's offsets are committed when a micro-batch is planned, not when it is delivered."""
    answer = SparkRequests.answer

    def early(self: Any, question: str, data: Any) -> Any:
        if question == "plan" and data.ends:
            ends = {TopicPartition(t, p): n for t, found in data.ends.items() for p, n in found.items()}
            self._run.resources.group_offsets.commit(ends)
        return answer(self, question, data)

    patch.setattr(SparkRequests, "answer", early)


def offsets_of_any_range(patch: pytest.MonkeyPatch) -> None:
    """The transaction of some key ranges commits the offset of their partition before the other key ranges have ended."""
    patch.setattr(Plan, "committed_by_transactions", property(lambda plan: frozenset(plan.broker_topics)))


def read_uncommitted(patch: pytest.MonkeyPatch) -> None:
    """Records of open and aborted transactions are read."""
    original = Reader.__init__
    patch.setattr(
        Reader,
        "__init__",
        lambda self, broker, group, committed: original(self, broker, group, committed=False),
    )


def write_through(patch: pytest.MonkeyPatch) -> None:
    """Changes are applied to the copy at once, and the copy is trusted without a check of its writer."""

    def applied(self: Any, version: Any, changes: Any, dropped: Any = ()) -> None:
        for engine, copy in self._copies.items():
            copy.apply(self._changes_of_engine(engine, changes), version, dropped)

    patch.setattr(TaskCopies, "park", applied)
    patch.setattr(statelog, "secrets", _ConstantTokens)
    patch.setattr(log.Manifest, "remembers", lambda self, version: True)


def forget_to_rebuild(patch: pytest.MonkeyPatch) -> None:
    """A copy that cannot catch up is treated as current."""
    original_catch_up = restore.catch_up
    patch.setattr(restore, "catch_up", lambda manifest, current: original_catch_up(manifest, current) or [])
    patch.setattr(restore, "_with_parked", lambda manifest, copy, current: current)


def skip_a_part(patch: pytest.MonkeyPatch) -> None:
    """A copy whose restore was interrupted has the version of a complete one."""
    patch.setattr(copies, "on_its_way", lambda current, version: version)


def newest_state(patch: pytest.MonkeyPatch) -> None:
    """A micro-batch begins with the newest version of the state, committed or not."""
    original = query.StateStore

    def newest(checkpoint: Any, executor: Any, partition: int, version: int) -> Any:
        latest = max([n for p, n in checkpoint.deltas if p == partition], default=0)
        store = original(checkpoint, executor, partition, max(version, latest))
        store._version = version
        return store

    patch.setattr(query, "StateStore", newest)


def keep_no_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows are gone when an aborted transaction has to be repeated."""
    original = sink._OutputRows.__init__

    def forgetful(self: Any, batches: Any) -> None:
        original(self, batches)
        self._kept = _DiscardingList()

    patch.setattr(sink._OutputRows, "__init__", forgetful)


class _DiscardingList(list[Any]):
    def append(self, row: Any) -> None:
        """Keep no row."""


class _ConstantTokens:
    @staticmethod
    def token_hex(size: int) -> str:
        return "0" * 8
