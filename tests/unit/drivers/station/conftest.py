"""The line that a test asks its station through; which one that is, each file says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.drivers.station import StationAddress, StationLine


@pytest.fixture
def line(address: StationAddress) -> Iterator[StationLine]:
    line = StationLine(address)
    yield line
    line.close()
