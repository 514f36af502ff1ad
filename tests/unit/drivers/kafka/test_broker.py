"""Questions to the broker that are asked again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.core.model.errors import BrokerUnavailableError
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.election import living_drivers
from millstream.testing._cluster import free_ports


def timing_out(times: float) -> Callable[[], int]:
    """Return a question that takes too long that many times; how often it was asked is the answer."""
    asked = 0

    def question() -> int:
        nonlocal asked
        asked += 1
        if asked <= times:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Failed to query partition leaders"))
        return asked

    return question


def nobody(timeout_s: float) -> Broker:
    return Broker(
        {"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}", "log_level": 0}, "group", timeout_s=timeout_s
    )


def test_an_attempt_that_takes_too_long_is_followed_by_another() -> None:
    assert nobody(1).ask("asking", timing_out(2)) == 3


def test_offsets_that_are_missing_because_a_broker_was_lost_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start that met the restart of a leader ended the application at once."""
    answers = iter([-1, -1, 7])

    def answer(_: Broker, wanted: dict[Any, Any], **__: bool) -> dict[Any, Any]:
        return {partition: SimpleNamespace(offset=next(answers)) for partition in wanted}

    monkeypatch.setattr(Broker, "_answers", answer)
    assert nobody(5).end_offsets({"topic": 1}) == {"topic": {0: 7}}


def test_as_long_as_there_is_time() -> None:
    began = monotonic()
    with pytest.raises(BrokerUnavailableError, match="while asking for offsets"):
        nobody(0.4).ask("asking for offsets", timing_out(float("inf")))
    assert 0.4 <= monotonic() - began < 5


def test_a_future_without_an_answer_in_time_is_a_broker_that_does_not_respond() -> None:
    """It raises a TimeoutError, which ended the thread of the election when a broker was killed."""
    with pytest.raises(BrokerUnavailableError, match="while describing group 'drivers'"):
        nobody(0.4).ask("describing group 'drivers'", lambda: Future[int]().result(0))


def test_drivers_of_a_broker_that_does_not_respond_are_unknown() -> None:
    with pytest.raises(BrokerUnavailableError, match="while describing group"):
        living_drivers(nobody(0.4), "shop")
