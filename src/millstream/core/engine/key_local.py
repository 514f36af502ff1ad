"""Stores of key-local processors: access to a key outside the task's key range is refused.

A processor with ``key_local=True`` promises to use only entries of its record's key. If it uses another key, another task may have the
entry, and the result would be silently wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from millstream.core.model.errors import ProcessingError
from millstream.core.model.partitioning import KeyRange
from millstream.core.model.serdes import window_bytes
from millstream.core.model.windowed import Windowed
from millstream.core.topology.stores import StoreSpec, TimedSpec

_BY_KEY: Final = frozenset(
    {
        "get",
        "put",
        "check",
        "put_if_absent",
        "delete",
        "fetch",
        "reverse_fetch",
        "remove",
        "find_sessions",
        "reverse_find_sessions",
        "fetch_session",
    }
)


class KeyLocalStore:
    """A store of a key-local processor. Owned by the task."""

    def __init__(
        self,
        store: Any,
        spec: StoreSpec,
        key_range: KeyRange,
        processor: str,
        raw_key: Callable[[], bytes | None],
    ) -> None:
        self._store, self._spec, self._key_range, self._processor = store, spec, key_range, processor
        self._raw_key = raw_key
        self._window_bytes = window_bytes(spec.key)
        self._last_key: object = self
        """An immutable key that is in the range. A processor mostly reads and writes one key, and hashing it costs more than either."""

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in _BY_KEY:
            return attribute
        checked = self.__dict__[name] = self._checked(attribute)  # so that it is created once
        return checked

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance() must work for the wrapped store's type
        return type(self._store)

    def put_all(self, entries: Any) -> None:
        for key, value in entries:
            self.put(key, value)

    def _checked(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def checked(key: Any, *args: Any, **options: Any) -> Any:
            if key is not self._last_key:
                self._check(key)
            return method(key, *args, **options)

        return checked

    def _check(self, key: Any) -> None:
        """Raise ProcessingError if a key is not in the range."""
        spec = self._spec
        plain = key.key if isinstance(spec, TimedSpec) and isinstance(key, Windowed) else key
        if plain is not None and not self._holds(self._without_window(plain)):
            raise ProcessingError(
                f"processor {self._processor!r} promises key_local=True, but uses key {plain!r} of store {spec.name!r}, which "
                f"is not in the key range of its task ({self._key_range}): another task has that entry. Use only the key of the "
                "record, serialised in the store as in the topic, or leave out key_local=True and parallelism="
            )
        if spec.key.immutable:
            self._last_key = key

    def _holds(self, data: bytes) -> bool:
        """Return whether a serialised key is in the range. The key of the current record always is, so it is not hashed again."""
        return data == self._raw_key() or self._key_range.holds(data)

    def _without_window(self, key: Any) -> bytes:
        """Return the bytes of a key by which records are divided."""
        data = self._spec.key.serialize(key)
        return data[: len(data) - self._window_bytes]
