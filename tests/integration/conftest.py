"""Fixtures of the tests that run applications: unique names, and applications that stop at the end of their test."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.testing import EmbeddedKafka

from .helpers import Apps


def unique(request: pytest.FixtureRequest) -> str:
    """Return a name for the application of a test that is readable in logs and unique on this broker."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    return f"{name[:40].strip('-')}-{secrets.token_hex(3)}"


@pytest.fixture
def apps(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Apps]:
    instance = Apps(kafka, unique(request), tmp_path)
    yield instance
    instance.stop_all()


@pytest.fixture
def apps_without_spark(kafka: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Apps:
    """Names and topics for tests that start no application."""
    return Apps(kafka, unique(request), tmp_path)


@pytest.fixture(scope="module")
def module_apps(
    kafka: EmbeddedKafka,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Apps]:
    """Like `apps`, for a run whose results several tests check."""
    name = unique(request).replace("test-", "").replace("-py", "").replace("integration-", "")
    instance = Apps(kafka, name, tmp_path_factory.mktemp("module"))
    yield instance
    instance.stop_all()


@pytest.fixture(autouse=True)
def quiet_clients() -> None:
    """librdkafka logs every lost connection, which would flood the output of tests that kill brokers."""
    logging.getLogger("millstream.librdkafka").setLevel(logging.CRITICAL)
