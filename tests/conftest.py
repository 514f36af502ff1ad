"""Shared fixtures: one real broker and one Spark session per test run, because each takes seconds to start.

The session comes from the function that `Application` uses if the user has no session, so Millstream's own daemon forks the Python
workers. The names of topics, groups and directories keep tests apart.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from pyspark.sql import SparkSession

from millstream.drivers.spark.driver.spark_session import session_for
from millstream.testing import EmbeddedKafka
from proofs.sizes import FULL

settings.register_profile(
    "millstream",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.register_profile("random", settings.get_profile("millstream"), derandomize=False, print_blob=True)
settings.register_profile(
    "thorough",
    settings.get_profile("random"),
    max_examples=1000,
    stateful_step_count=60,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "millstream"))

# Hypothesis draws from the constants in all local modules that are loaded, so the examples of a test would depend on which other tests
# are collected with it, and on every change of the code.
providers._get_local_constants = providers.Constants

_END_S = 120.0
_SESSIONS: list[pytest.Session] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    _SESSIONS.append(session)
    gc.disable()  # collected tests live until the end of the run


def pytest_collection_finish() -> None:
    """Exclude modules and tests, a million objects, from garbage collection, which would traverse them again and again."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests for ``make soak``, and order the files: first those with a broker or Spark, longest time limit first.

    Tests with a broker or Spark mostly wait, so several share the processor. Files that only compute run last and leave no core idle.
    """
    if not FULL and (later := [item for item in items if item.get_closest_marker("soak")]):
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if item not in later]
    order: dict[Path, tuple[bool, float]] = {}
    for item in items:
        waits = any(item.get_closest_marker(name) for name in ("broker", "spark"))
        limit = item.get_closest_marker("timeout")
        rank = (not waits, -limit.args[0] if limit else 0.0)
        order[item.path] = min(order.get(item.path, rank), rank)
    items.sort(key=lambda item: order[item.path])  # stable: the tests of a file stay together


def pytest_unconfigure(config: pytest.Config) -> None:
    """Dump the stacks and exit with an error if the process does not end after the last test, instead of waiting for ever.

    A process of xdist waits for the others; the process that started it ends it.
    """
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(_END_S, exit=True, file=sys.__stderr__)


@atexit.register
def leave() -> None:
    """Exit after everything is closed, without the teardown of the interpreter.

    Tests that kill a broker leave its clients behind, and destroying those can take for ever (see `millstream.drivers.kafka.clients`).
    Other tests check that programs end.
    """
    if _SESSIONS:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(_SESSIONS[-1].exitstatus))


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """The broker that tests share; a test that kills its broker starts its own."""
    with EmbeddedKafka(partitions=2) as broker:
        yield broker


def end_jvm(gateway: Any) -> None:
    """End the JVM of a stopped session, which Spark keeps for the next session until the program ends."""
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END_S)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The active session, so every application of the run becomes a query of it."""
    session_for("millstream-tests", "local[2]", {"spark.ui.enabled": "false"})
    session = SparkSession.getActiveSession()
    assert session is not None
    gateway = session.sparkContext._gateway
    yield session
    session.stop()
    end_jvm(gateway)
