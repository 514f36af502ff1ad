"""Fakes for tests of state: Spark's map state, and a local copy whose process dies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from millstream.core.ports import Changes, LocalCopy, Segments, StoreChange, Version
from millstream.drivers.segments import segments_of


def segments_by_store(changes: Changes) -> Segments:
    """Return changes as the log encodes them."""
    return {store: [data for _, _, data in segments_of(items)] for store, items in changes.items()}


class MapState:
    """Spark's map state as far as the log uses it, of one attempt."""

    def __init__(self, committed: Mapping[Any, Any] | None = None) -> None:
        self.content: dict[Any, Any] = dict(committed or {})
        self.reads = 0

    def getValue(self, key: Any) -> Any:  # noqa: N802 - Spark's name
        self.reads += 1
        return self.content.get(key)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802 - Spark's name
        self.content[key] = value

    def removeKey(self, key: Any) -> None:  # noqa: N802 - Spark's name
        self.content.pop(key, None)


class CutOffError(Exception):
    """The process has died."""


class MortalCopy:
    """A copy whose process dies after a number of writes."""

    def __init__(self, copy: LocalCopy, writes: int) -> None:
        self._copy = copy
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._copy, name)

    def apply(
        self, changes: Mapping[str, Iterable[StoreChange]], version: Version, dropped: Collection[str] = ()
    ) -> None:
        self._writes -= 1
        if self._writes < 0:
            raise CutOffError
        self._copy.apply(changes, version, dropped)
