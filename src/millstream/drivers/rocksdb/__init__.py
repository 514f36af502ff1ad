"""RocksDB: the local copy of a task's stores, without a limit on the key length. Needs the extra ``millstream[rocksdb]``."""

from millstream.drivers.rocksdb.rocksdb_copy import open_local_copy

__all__ = ["open_local_copy"]
