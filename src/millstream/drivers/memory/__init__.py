"""Memory: the local copy of a task's stores in the Python worker process, lost when the process ends."""

from millstream.drivers.memory.memory_copy import open_local_copy

__all__ = ["open_local_copy"]
