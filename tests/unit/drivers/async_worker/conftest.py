"""The line that a test asks its async worker through; which one that is, each file says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.drivers.async_worker import AsyncWorkerAddress, AsyncWorkerConnection


@pytest.fixture
def line(address: AsyncWorkerAddress) -> Iterator[AsyncWorkerConnection]:
    line = AsyncWorkerConnection(address)
    yield line
    line.close()
