"""The coordinator of fan-out changes fences the sessions of producers that do not answer; the control topic is in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Lock
from typing import Any

import pytest

from millstream.core.fanout.ledger import Ledger, member_entry
from millstream.core.model.errors import BrokerUnavailableError
from millstream.core.model.positions import Offsets
from millstream.drivers.kafka.fanout import coordinator
from millstream.drivers.kafka.fanout.coordinator import Coordinator


class Brokers:
    """Brokers on which all topics exist and are empty."""

    def partition_counts(self, topics: Any) -> dict[str, int]:
        return dict.fromkeys(topics, 4)

    def end_offsets(self, counts: Mapping[str, int]) -> Offsets:
        return {topic: dict.fromkeys(range(count), 0) for topic, count in counts.items()}

    def ensure_topic(self, *_: object) -> None: ...


class Log:
    """A control topic in memory, with the sessions of producers that have ended."""

    partitions = 1
    name = "topic-fanout"
    patience_s = 1.0
    sessions: tuple[str, ...] = ()

    def __init__(self, _settings: object, topic: str, _patience_s: float) -> None:
        self.ledger, self.broker = Ledger(topic), Brokers()
        self._lock = Lock()
        for session in self.sessions:
            self.publish(*member_entry(session, {}))

    def publish(self, key: str, value: Mapping[str, Any] | None) -> None:
        with self._lock:
            self.ledger.apply(key, value)

    def barrier(self) -> None: ...

    def until(self, reached: Callable[[], bool], _timeout_s: float) -> bool:
        return reached()

    def expect(self, reached: Callable[[], bool], _what: str) -> None:
        assert reached()

    def close(self) -> None: ...


class Fences:
    """Records which sessions are fenced, and returns the producer of the coordinator, which writes to the control topic."""

    def __init__(self) -> None:
        self.fenced: list[str] = []
        self.unavailable = ""
        self.too_many = False
        """Whether 33 sessions were fenced at the same time."""
        self._meeting = Barrier(33)

    def __call__(self, _settings: object, control: Log, name: str) -> Any:
        if name.endswith("-coordinator"):
            return Transactions(control)
        with suppress(BrokenBarrierError):
            self._meeting.wait(0.5)
            self.too_many = True
        if name == self.unavailable:
            raise BrokerUnavailableError(f"{name} cannot be fenced")
        self.fenced.append(name)
        return None


class Transactions:
    def __init__(self, control: Log) -> None:
        self._control = control

    def begin_transaction(self) -> None: ...

    def produce(self, _topic: str, value: bytes | None, key: str, _partition: int) -> None:
        self._control.publish(key, None if value is None else json.loads(value))

    def commit_transaction(self, _patience_s: float) -> None: ...


@pytest.fixture
def fences(monkeypatch: pytest.MonkeyPatch) -> Fences:
    fences = Fences()
    monkeypatch.setattr(coordinator, "ControlLog", Log)
    monkeypatch.setattr(coordinator, "fence", fences)
    monkeypatch.setattr(Log, "sessions", tuple(f"session-{n}" for n in range(100)))
    return fences


def test_sessions_that_do_not_answer_are_fenced_a_few_at_a_time_and_deleted(fences: Fences) -> None:
    """Previously, a client with several threads was created for all sessions at the same time."""
    changing = Coordinator({}, "topic")
    state = changing.change(0, 4)
    assert (state.history.current.ranges, state.pending) == (4, None)
    assert sorted(fences.fenced) == sorted(Log.sessions)
    assert (fences.too_many, changing.members()) == (False, set())


def test_a_change_that_was_interrupted_fences_only_the_remaining_sessions(fences: Fences) -> None:
    changing = Coordinator({}, "topic")
    fences.unavailable = "session-50"
    with pytest.raises(BrokerUnavailableError):
        changing.change(0, 4)
    assert changing.members() == {"session-50"}
    fences.unavailable = ""
    assert changing.change(0, 4).history.current.ranges == 4
    assert sorted(fences.fenced) == sorted(Log.sessions)
