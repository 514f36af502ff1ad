"""Async worker: the process that makes external calls between micro-batches. See ``millstream.core.asynchronous.async_worker``."""

from millstream.drivers.async_worker.worker_client import EXECUTOR, AsyncWorkerAddress, AsyncWorkerConnection

__all__ = ["EXECUTOR", "AsyncWorkerAddress", "AsyncWorkerConnection"]
