"""Memory: a local copy that lives and dies with the worker process."""

from millstream.drivers.memory.copy import open_local_copy

__all__ = ["open_local_copy"]
