"""What tests share: one real broker and one Spark session per test run, because each of them costs seconds to start.

The session is made by the very function that `Application` uses when the user has none, so the Python workers are forked
from Millstream's own daemon. Names of topics, groups and directories are what keeps tests apart; nothing else is shared.
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
# are collected with it, and on any change of the code.
providers._get_local_constants = providers.Constants

_END_S = 120.0
_SESSIONS: list[pytest.Session] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    _SESSIONS.append(session)
    gc.disable()  # collected tests live to the end


def pytest_collection_finish() -> None:
    """Take modules and tests, a million objects, out of garbage collection: it would look at all of them again and again."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests for ``make soak``. Put files with the longest time limits of those that need a broker or Spark first.

    Files that only compute come last.

    The first mostly wait, so several of them share the processor. At the end, files that only compute leave no core idle.
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
    """A process that cannot end when all tests are over fails and says where it waits, instead of waiting for ever.

    A process of xdist waits for the others, and is ended by the process that has started it.
    """
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(_END_S, exit=True, file=sys.__stderr__)


@atexit.register
def leave() -> None:
    """Exit after everything is closed, without the teardown of the interpreter.

    Tests leave the clients of brokers behind that they have killed, in whatever refers to them. To destroy them, which can
    take for ever (see `millstream.drivers.kafka.clients`), shows nothing: that programs end has tests of its own.
    """
    if _SESSIONS:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(_SESSIONS[-1].exitstatus))


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker for tests that leave it as they found it; a test that kills its broker starts one of its own."""
    with EmbeddedKafka(partitions=2) as broker:
        yield broker


def end_jvm(gateway: Any) -> None:
    """End the JVM that a stopped session leaves behind for the next one, as the end of the program would."""
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
