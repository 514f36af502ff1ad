"""The connection between a test and its async worker; each test file defines the address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.drivers.async_worker import AsyncWorkerAddress, AsyncWorkerConnection


@pytest.fixture
def connection(address: AsyncWorkerAddress) -> Iterator[AsyncWorkerConnection]:
    connection = AsyncWorkerConnection(address)
    yield connection
    connection.close()
