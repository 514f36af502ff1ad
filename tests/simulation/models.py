"""Installs the models in place of external systems, clocks and randomness."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.drivers.kafka import delivery, produce, transactions
from millstream.drivers.spark import sink, source
from millstream.drivers.spark.executor import host, statelog
from millstream.drivers.spark.planner import planner, repartitions, source_topics
from millstream.edge.application import running_application
from simulation.clients import Consumer, Producer
from simulation.world import World


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Replace external systems, clocks and randomness with the models."""
    scheduler = world.scheduler
    clock = SimpleNamespace(
        monotonic=lambda: scheduler.now_ms / 1000, sleep=lambda s: scheduler.step("sleeps")
    )
    spec = world.host_spec()
    with _only_critical_logs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(produce, "Producer", lambda settings: Producer(world.broker, settings))
        patch.setattr(delivery, "Consumer", lambda settings: Consumer(world.broker, settings))
        patch.setattr(delivery, "warm", lambda make, settings: make(dict(settings)))
        patch.setattr(delivery, "in_time", lambda call: call(delivery.STEP_S))
        patch.setattr(transactions, "call_for_each", _call_in_order)
        patch.setattr(delivery, "monotonic", clock.monotonic)
        patch.setattr(delivery, "sleep", clock.sleep)
        patch.setattr(produce, "warm", lambda make, settings: _sender_of(world, make, settings))
        patch.setattr(produce, "warmed", lambda make, settings: world.senders.get(world.acting))
        patch.setattr(source.SourceSpec, "planning", lambda option: world.query.source)
        patch.setattr(source.SourceSpec, "reading", lambda option: world.query.source)
        patch.setattr(sink, "in_driver", lambda option: world.query)
        patch.setattr(sink, "in_executor", lambda option: option)
        patch.setattr(planner, "time", clock)
        patch.setattr(repartitions, "time", clock)
        patch.setattr(source_topics, "time", clock)
        patch.setattr(statelog, "secrets", SimpleNamespace(token_hex=world.token))
        patch.setattr(host, "uuid4", lambda: SimpleNamespace(hex=world.token(16)))
        patch.setattr(host, "_spec", lambda pickled: spec)
        context = SimpleNamespace(
            partitionId=lambda: world.placed[world.acting][0],
            attemptNumber=lambda: world.attempts[world.acting].number,
        )
        patch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
        patch.setattr(running_application, "ControlServer", lambda *arguments: None)
        yield


def _call_in_order(call: Callable[[int], object], numbers: Iterable[int]) -> None:
    """Call for one partition after the other, because an actor of the scheduler is one thread."""
    for number in numbers:
        call(number)


@contextmanager
def _only_critical_logs() -> Iterator[None]:
    logger = logging.getLogger("millstream")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _sender_of(world: World, make: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any]) -> Any:
    if world.acting not in world.senders:
        world.senders[world.acting] = make(dict(settings))
    return world.senders[world.acting]
