"""Stations: which process makes the calls of an application on a host, and what can have none."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.asynchronous.station import Station
from millstream.core.model.errors import TopologyError
from millstream.core.topology.asynchronous import Asynchronous, IssuingProcess
from millstream.core.topology.plan import Plan
from millstream.drivers.station import StationAddress, StationLine

_LINES: dict[StationAddress, StationLine] = {}


@dataclass(frozen=True)
class ApplicationStations:
    """Gives the station beside the executor that this worker belongs to. Crosses as cloudpickle.

    Attributes:
        application: The application, and where its state is: two of one name do not meet.
    """

    application: str

    def __call__(self, checkpoint: str) -> Station:
        """Return the station for the calls that belong to a checkpoint; a worker keeps one connection to it."""
        address = StationAddress.here(f"{self.application}/{checkpoint}")
        if address not in _LINES:
            for line in _LINES.values():
                line.close()
            _LINES.clear()
            _LINES[address] = StationLine(address)
        return _LINES[address]


def makes_calls(plan: Plan) -> bool:
    """Return whether a topology has operators whose calls a station makes."""
    return any(
        isinstance(node, (Asynchronous, IssuingProcess))
        for sub in plan.subtopologies
        for node in sub.nodes.values()
    )


def refuse_calls(plan: Plan) -> None:
    """Refuse asynchronous operators in somebody else's query.

    Raises:
        TopologyError: If there are any: nobody would wake the query when a call has ended.
    """
    if makes_calls(plan):
        raise TopologyError(
            "ms.spark.transform cannot run asynchronous operators: a query of your own is not woken when a call has ended. Run "
            "the topology as a millstream.Application"
        )
