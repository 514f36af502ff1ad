"""Station: the process that makes calls to the outside world between micro-batches. See ``penstock.drivers.station.post``."""

from penstock.drivers.station.client import StationAddress, StationLine
from penstock.drivers.station.messages import Answer, Question

__all__ = ["Answer", "Question", "StationAddress", "StationLine"]
