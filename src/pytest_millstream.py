"""The pytest plugin of Millstream: fixtures for tests of topologies and applications.

pytest loads this module in every run of an environment that has Millstream installed. So it is a module of its own, outside of the
package, and imports Millstream only when a test asks for one of its fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.testing import EmbeddedKafka, TopologyTestDriver


@pytest.fixture
def millstream_driver() -> Iterator[Callable[..., TopologyTestDriver]]:
    """Make test drivers that are closed after the test: ``millstream_driver(topology, commit_every=10)``.

    Yields:
        A function of a topology, or of a builder, and the other arguments of ``TopologyTestDriver``; it returns a new driver.
    """
    from millstream.testing import TopologyTestDriver

    with ExitStack() as made:

        def make(topology: Any, **options: Any) -> TopologyTestDriver:
            built = topology.build() if hasattr(topology, "build") else topology
            return made.enter_context(TopologyTestDriver(built, **options))

        yield make


@pytest.fixture(scope="session")
def millstream_kafka() -> Iterator[EmbeddedKafka]:
    """A real broker for all tests of the run: an ``EmbeddedKafka`` whose topics have two partitions. It needs Java."""
    from millstream.testing import EmbeddedKafka

    with EmbeddedKafka(partitions=2) as broker:
        yield broker


@pytest.fixture(scope="session")
def millstream_spark() -> Iterator[SparkSession]:
    """A Spark session for all tests of the run, which applications use, so that only the first test waits for Spark."""
    from pyspark.sql import SparkSession

    from millstream.drivers.spark.driver.spark_session import session_for

    session_for("millstream-tests", "local[2]", {"spark.ui.enabled": "false"})
    session = SparkSession.getActiveSession()
    assert session is not None
    yield session
    session.stop()
