"""Connects to the async worker of an application on a host, and refuses asynchronous operators where there is none."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.asynchronous.async_worker import AsyncWorker
from millstream.core.model.errors import TopologyError
from millstream.core.topology.plan import Plan
from millstream.drivers.async_worker import AsyncWorkerAddress, AsyncWorkerConnection

_CONNECTIONS: dict[AsyncWorkerAddress, AsyncWorkerConnection] = {}


@dataclass(frozen=True)
class AsyncWorkers:
    """Connects a Python worker to the async worker beside its executor. Sent with cloudpickle.

    Attributes:
        application: Identifies the application and its checkpoint, so that two applications with the same id do not share an async
            worker.
    """

    application: str

    def __call__(self, checkpoint: str) -> AsyncWorker:
        """Return the async worker for a checkpoint. A process keeps one connection."""
        address = AsyncWorkerAddress.here(f"{self.application}/{checkpoint}")
        if address not in _CONNECTIONS:
            for connection in _CONNECTIONS.values():
                connection.close()
            _CONNECTIONS.clear()
            _CONNECTIONS[address] = AsyncWorkerConnection(address)
        return _CONNECTIONS[address]


def refuse_calls(plan: Plan) -> None:
    """Refuse asynchronous operators in a user's own query.

    Raises:
        TopologyError: If the plan has such operators, because nothing would wake the query when a call ends.
    """
    if plan.makes_calls:
        raise TopologyError(
            "ms.spark.transform cannot run asynchronous operators: your own query is not woken when a call has ended. Run "
            "the topology as a millstream.Application"
        )
