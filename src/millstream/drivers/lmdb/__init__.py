"""LMDB: the local copy of a task's stores."""

from millstream.drivers.lmdb.lmdb_copy import open_local_copy

__all__ = ["open_local_copy"]
