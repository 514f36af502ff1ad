"""The protocol as a simulation: producers with stale views, killed and stopped producers, coordinators that die midway.

The model keeps the guarantees of Kafka: the control topic is one log, a transaction of a fenced session is never committed, and
taking over an id ends its open transaction. Everything else may happen in any order. One test removes each safety mechanism in turn
and checks that the simulation then fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.fanout.epochs import Epoch, History
from millstream.core.fanout.ledger import BARRIER, HOLDING, Ledger, member_entry, member_key
from millstream.core.model.ids import TopicPartition

PRIMARY = TopicPartition("orders", 0)
KEYS = [f"key-{n}".encode() for n in range(8)]

Entry = tuple[str, dict[str, Any] | None]


@dataclass
class Member:
    """A producer: its session, its view of the control topic, its open transaction, and the records it has yet to send."""

    name: str
    number: int = 0
    read: int = 0
    ledger: Ledger = field(default_factory=lambda: Ledger("orders"))
    open: list[tuple[TopicPartition, bytes, int]] = field(default_factory=list)
    waiting: list[tuple[bytes, int]] = field(default_factory=list)
    stopped: bool = False

    @property
    def session(self) -> str:
        return f"{self.name}-{self.number}"


@dataclass
class Coordinator:
    """A change under way: the generation of its coordinator id, the sessions it has fenced, and the entries it is about to write."""

    generation: int
    fenced: set[str] = field(default_factory=set)
    writes: list[Entry] = field(default_factory=list)


class World:
    def __init__(self, without: str = "") -> None:
        self.without = without
        self.control: list[Entry] = []
        self.logs: dict[TopicPartition, list[tuple[bytes, int] | None]] = {PRIMARY: []}
        self.committed: dict[tuple[TopicPartition, int], tuple[bytes, int, str]] = {}
        self.fenced: set[str] = set()
        self.generation = 0
        self.coordinators: list[Coordinator] = []
        self.everything, self.applied = Ledger("orders"), 0
        self.members: list[Member] = []
        self.sequence = 0
        for name in ("a", "b", "c"):
            member = Member(name)
            self.members.append(member)
            self.begin_session(member)

    def begin_session(self, member: Member) -> None:
        """Begin a session as the client does: take a new id, write its record, and read everything before that record."""
        member.number += 1
        member.waiting[:0] = [(key, value) for _, key, value in member.open]
        member.open.clear()
        self.control.append(member_entry(member.session, {}))
        if self.without != "reading before sending":
            self.catch_up(member, len(self.control))

    def catch_up(self, member: Member, to: int) -> None:
        for key, value in self.control[member.read : to]:
            member.ledger.apply(key, value)
        member.read = max(member.read, to)

    def current_ledger(self) -> Ledger:
        for key, value in self.control[self.applied :]:
            self.everything.apply(key, value)
        self.applied = len(self.control)
        return self.everything

    def running_member(self, index: int) -> Member | None:
        member = self.members[index]
        return None if member.stopped else member

    def produce(self, index: int, number: int) -> None:
        self.sequence += 1
        self.members[index].waiting.append((KEYS[number], self.sequence))

    def read_control(self, index: int, number: int) -> None:
        if member := self.running_member(index):
            self.catch_up(member, min(member.read + number, len(self.control)))

    def send(self, index: int, number: int) -> None:
        """Append records to the open transaction, routed by the view of this producer."""
        member = self.running_member(index)
        if member is None or (0 in member.ledger.held_partitions() and self.without != "holding back"):
            return
        if member.session in self.fenced:
            self.begin_session(member)
            return
        epoch = member.ledger.state(0).history.current
        for key, value in member.waiting[:number]:
            log = epoch.log_of(key)
            member.open.append((log, key, value))
        del member.waiting[:number]

    def commit(self, index: int, _number: int) -> None:
        if member := self.running_member(index):
            self.end_transaction(member)

    def end_transaction(self, member: Member) -> bool:
        if member.session in self.fenced:
            self.begin_session(member)
            return False
        for log, key, value in member.open:
            records = self.logs.setdefault(log, [])
            self.committed[log, len(records)] = (key, value, member.name)
            records.append((key, value))
        for log in {log for log, _, _ in member.open}:
            self.logs[log].append(None)  # the marker of the transaction occupies an offset, too
        member.open.clear()
        return True

    def answer(self, index: int, _number: int) -> None:
        """Answer the phases that this producer has seen, and the phase that holds records back only after a commit."""
        member = self.running_member(index)
        if member is None:
            return
        owed = dict(member.ledger.owed(member.session))
        holding = any(phase.name == HOLDING for phase in owed.values())
        if holding and self.without != "commit before the answer" and not self.end_transaction(member):
            return
        if owed:
            answers = {**member.ledger.members.get(member.session, {}), **owed}
            self.control.append(member_entry(member.session, answers))

    def stop(self, index: int, _number: int) -> None:
        self.members[index].stopped = True

    def resume(self, index: int, _number: int) -> None:
        self.members[index].stopped = False

    def take_over(self, _index: int, number: int) -> None:
        """Start a new coordinator and fence the previous one, whether it is dead or only slow."""
        ranges = 2 ** (number % 4)
        self.generation += 1
        self.coordinators.append(Coordinator(self.generation))
        self.control.append((BARRIER, {"token": str(self.generation)}))
        self.control.append(self.current_ledger().state(0).announced(ranges).entry())

    def cancel(self, index: int, _number: int) -> None:
        """Let a producer that was held back for too long take over the coordinator's id and abandon the change."""
        member = self.running_member(index)
        if member is None or 0 not in member.ledger.held_partitions():
            return
        self.generation += 1
        state = self.current_ledger().state(0)
        if state.pending == HOLDING and state.change == member.ledger.state(0).change:
            self.control.append(state.cancelled().entry())

    def fence_the_missing(self, index: int, _number: int) -> None:
        for coordinator in self.coordinators[-2:-1] if index == 0 else self.coordinators[-1:]:
            missing = self.current_ledger().missing(0)
            coordinator.fenced |= missing
            if self.without != "fencing":
                self.fenced |= missing

    def decide(self, index: int, _number: int) -> None:
        """Let a coordinator, possibly a replaced one, decide what it writes next. It may write that at any later time."""
        for coordinator in self.coordinators[-2:-1] if index == 0 else self.coordinators[-1:]:
            ledger = self.current_ledger()
            state = ledger.state(0)
            late = ledger.missing(0) - coordinator.fenced if self.without != "answers" else set()
            if late or state.pending is None or coordinator.writes:
                continue
            if state.pending != HOLDING:
                coordinator.writes = [state.holding().entry()]
                continue
            logs = {s.log for s in state.history.current.stretches} | set(state.history.logs(state.ranges))
            ends = {log: len(self.logs.setdefault(log, [])) for log in logs}
            removals: list[Entry] = [(member_key(session), None) for session in coordinator.fenced]
            coordinator.writes = [state.finished(ends).entry(), *removals]

    def write(self, index: int, _number: int) -> None:
        """Commit a coordinator's transaction. The broker refuses it if another coordinator has taken over the id."""
        for coordinator in self.coordinators[-2:-1] if index == 0 else self.coordinators[-1:]:
            if coordinator.generation == self.generation or self.without == "one coordinator":
                self.control += coordinator.writes
            coordinator.writes = []

    def check_committed_records(self) -> None:
        history = self.current_ledger().state(0).history
        found: dict[tuple[bytes, str], list[int]] = {}
        count = 0
        for epoch in history.epochs:
            for key, value, name in records_of(epoch, self.logs, self.committed):
                found.setdefault((key, name), []).append(value)
                count += 1
        assert count == len(self.committed), "a record is outside of the epochs, or of the range of its log"
        for values in found.values():
            assert values == sorted(set(values)), "records of a key out of order, or a record twice"

    def finish(self) -> None:
        """Let all producers run and send everything, and check that no record is lost."""
        if 0 in self.current_ledger().held_partitions():
            self.control.append(self.current_ledger().state(0).cancelled().entry())
        for member in self.members:
            member.stopped = False
            self.catch_up(member, len(self.control))
            while member.waiting or member.open:
                self.send(self.members.index(member), 5)
                self.end_transaction(member)
                self.catch_up(member, len(self.control))
        self.check_committed_records()
        assert sorted(value for _, value, _ in self.committed.values()) == list(range(1, self.sequence + 1))


def records_of(
    epoch: Epoch,
    logs: dict[TopicPartition, list[tuple[bytes, int] | None]],
    committed: dict[tuple[TopicPartition, int], tuple[bytes, int, str]],
) -> list[tuple[bytes, int, str]]:
    """Return the records that a reader of an epoch finds: from each log, those with keys in its range."""
    found = []
    for stretch in epoch.stretches:
        end = len(logs.get(stretch.log, [])) if stretch.end is None else stretch.end
        stored = [committed.get((stretch.log, offset)) for offset in range(stretch.start, end)]
        found += [record for record in stored if record is not None and stretch.keys.holds(record[0])]
    return found


WEIGHTS = {
    "produce": 6,
    "send": 6,
    "commit": 3,
    "read_control": 6,
    "answer": 6,
    "stop": 0.3,
    "resume": 1,
    "take_over": 0.5,
    "cancel": 0.1,
    "fence_the_missing": 0.4,
    "decide": 6,
    "write": 6,
}
MECHANISMS = [
    "fencing",
    "answers",
    "one coordinator",
    "commit before the answer",
    "holding back",
    "reading before sending",
]


def simulate(seed: int, without: str = "") -> World:
    rng = Random(seed)
    world = World(without)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    for name in rng.choices(names, weights, k=3000):
        getattr(world, name)(rng.randrange(3), rng.randrange(1, 8))
    world.finish()
    return world


def test_no_record_is_lost_duplicated_or_reordered_in_random_runs() -> None:
    changes = [len(simulate(seed).current_ledger().state(0).history.epochs) - 1 for seed in range(200)]
    assert sum(changes) > 400, "changes rarely complete, so the runs test little"


@pytest.mark.parametrize("without", MECHANISMS)
def test_the_simulation_fails_if_a_safety_mechanism_is_missing(without: str) -> None:
    for seed in range(400):
        try:
            simulate(seed, without)
        except AssertionError:
            return
    raise AssertionError(f"no run fails without {without}")


@given(
    st.lists(st.tuples(st.sampled_from(list(WEIGHTS)), st.integers(0, 2), st.integers(1, 7)), max_size=120)
)
def test_no_record_is_lost_duplicated_or_reordered_after_any_steps(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    for name, index, number in steps:
        getattr(world, name)(index, number)
        world.check_committed_records()
    world.finish()


def test_a_control_record_of_an_unknown_kind_has_no_effect() -> None:
    ledger = Ledger("orders")
    ledger.apply("something/else", {"new": 1})
    assert ledger.states() == {}
    assert ledger.state(3).history == History.new(TopicPartition("orders", 3))
