"""The snapshots that tasks have published for a rebuild.

All tasks publish to one partition. A process that rebuilds many tasks reads it once, and for each further task only what was added: a
repeated attempt must see the snapshot of the attempt before it, whose changes are in the changelogs. Snapshots that the Spark driver reads
and passes on would be too old for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.core.ports import ChangelogReader, OffsetRange

SNAPSHOT: Final = b"task "
"""Key prefix of snapshots. Their topic also contains the marks of delivered batches."""


class PublishedSnapshots:
    """The newest snapshot of each task. Owned by one thread."""

    def __init__(self, reader: ChangelogReader, topic: str) -> None:
        self._reader = reader
        self._topic = topic
        self._read = OffsetRange(topic, 0, -1, -1)
        self._newest: dict[bytes, bytes] = {}

    def newest(self) -> Mapping[bytes, bytes]:
        """Return the newest snapshot of each task as JSON, by the key of its record."""
        extent = self._reader.extent(self._topic, 0)
        if extent.start != self._read.start or extent.end < self._read.end:
            self.forget()
        added = extent._replace(start=max(extent.start, self._read.end))
        for records in self._reader.read(added):
            self._newest |= {
                bytes(key): bytes(value)
                for key, value in zip(records.keys, records.values)
                if key is not None and value is not None and key.startswith(SNAPSHOT)
            }
        self._read = extent
        return self._newest

    def forget(self) -> None:
        """Free the memory. The next call reads everything."""
        self._read = OffsetRange(self._topic, 0, -1, -1)
        self._newest = {}
