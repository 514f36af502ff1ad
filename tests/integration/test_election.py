"""Several drivers of one application: Kafka elects one, and another one when that ends, dies or is suspended."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.election import SESSION_MS, Election

from .helpers import Apps

pytestmark = pytest.mark.broker

TAKEOVER_S = 10.0
CANDIDATE = """
import sys, threading
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.election import Election
settings = {"bootstrap.servers": sys.argv[1]}
candidate = Election(settings, Broker(settings, sys.argv[2]), sys.argv[2], 1)
candidate.when_replaced(lambda: print("replaced", flush=True))
candidate.wait()
print("elected", flush=True)
threading.Event().wait()
"""


def candidate(apps: Apps) -> Election:
    settings = {"bootstrap.servers": apps.kafka.bootstrap_servers}
    return Election(settings, Broker(settings, apps.id), apps.id, 1)


@contextmanager
def another_process(apps: Apps) -> Iterator[subprocess.Popen[str]]:
    """Start a candidate in another process, and wait until it is elected."""
    process = subprocess.Popen(
        [sys.executable, "-c", CANDIDATE, apps.kafka.bootstrap_servers, apps.id],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline() == "elected\n"
            yield process
        finally:
            process.kill()
            process.wait()


def test_a_driver_that_joins_is_not_elected_before_the_first_leaves(
    apps_without_spark: Apps,
) -> None:
    first = candidate(apps_without_spark)
    assert first.wait(30)
    second = candidate(apps_without_spark)
    try:
        assert not second.wait(4)  # longer than a rebalance
        assert first.wait(0)
        begin = time.monotonic()
        first.leave()
        assert second.wait(30)
        assert time.monotonic() - begin < SESSION_MS / 1000
    finally:
        first.leave()
        second.leave()


@pytest.mark.alone  # it measures how long the election takes
def test_a_driver_that_is_killed_is_replaced_within_ten_seconds(apps_without_spark: Apps) -> None:
    with another_process(apps_without_spark) as process:
        second = candidate(apps_without_spark)
        try:
            assert not second.wait(4)
            begin = time.monotonic()
            process.kill()
            assert second.wait(30)
            assert time.monotonic() - begin < TAKEOVER_S
        finally:
            second.leave()


def test_a_suspended_driver_learns_that_it_was_replaced(apps_without_spark: Apps) -> None:
    with another_process(apps_without_spark) as process:
        second = candidate(apps_without_spark)
        replaced = threading.Event()
        second.when_replaced(replaced.set)
        try:
            assert not second.wait(4)
            process.send_signal(signal.SIGSTOP)
            assert second.wait(30)
            process.send_signal(signal.SIGCONT)
            assert process.stdout is not None
            assert process.stdout.readline() == "replaced\n"
            assert second.wait(0)
            assert not replaced.is_set()
        finally:
            second.leave()
