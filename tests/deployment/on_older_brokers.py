"""Applications on brokers of older versions. Only `make deployments` runs this file."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

from docs.markdown import ROOT
from millstream.testing.kafka import resolve_jars

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1800)]

LOGGING: Final = ("ch.qos.reload4j:reload4j:1.2.25", "org.slf4j:slf4j-reload4j:1.7.36")
TESTS: Final = ("permissions", "time", "fan_out_sender")
"""They use both guarantees, internal topics, the time index, and transactions of producers with fan-out."""


@pytest.mark.parametrize("version", ["3.3.2", "3.9.1"])
def test_applications_run_on_brokers_of_an_older_version(version: str) -> None:
    brokers = (f"org.apache.kafka:kafka_2.13:{version}", f"org.apache.kafka:kafka-tools:{version}")
    jars = resolve_jars(*brokers, *LOGGING, folder=f"kafka-{version}")
    files = [f"tests/integration/test_{name}.py" for name in TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *files, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "MILLSTREAM_KAFKA_JARS": str(jars)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5_000:]
