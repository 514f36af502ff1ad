"""Station: the process that makes calls to the outside world between micro-batches. See ``millstream.core.asynchronous.station``."""

from millstream.drivers.station.client import EXECUTOR, StationAddress, StationLine

__all__ = ["EXECUTOR", "StationAddress", "StationLine"]
