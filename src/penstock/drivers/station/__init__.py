"""Station: the process that makes calls to the outside world between micro-batches. See ``penstock.core.asynchronous.station``."""

from penstock.drivers.station.client import EXECUTOR, StationAddress, StationLine

__all__ = ["EXECUTOR", "StationAddress", "StationLine"]
