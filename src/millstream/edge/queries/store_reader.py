"""The public interface of interactive queries: a reader of one store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Final, Generic, TypeVar, overload

from millstream.core.model.errors import MillstreamError
from millstream.core.model.record import K, V
from millstream.core.model.windowed import Windowed
from millstream.core.queries.question import Answer, Question
from millstream.edge.lab.html import table_html

_SHOWN: Final = 20
Ask = Callable[[Question], Answer]
T = TypeVar("T")
"""The type of the key in a window or session."""


class StoreReader(Generic[K, V]):
    """A store of a running application, read-only. Created by :meth:`RunningApplication.store`.

    Every answer comes from the committed state of all tasks that keep the store. Several entries are returned as a list, ordered by
    serialised key; windows and sessions are in the order of their store. Without a limit, more than 10,000
    entries are an error. Times are int ms since the epoch; ranges include both ends.

    All methods raise ``StoreError`` if this kind of store does not have the method, or if the store cannot be read.

    A reader has the types of the table in its store, which a type checker takes from an annotation; nothing checks them when the
    program runs. The store of a ``KTable[ms.Windowed[str], int]`` has a ``StoreReader[ms.Windowed[str], int]``. The values of a
    versioned store are of the type ``ms.VersionedRecord``, and with ``timestamps``, values are of the type ``ms.ValueAndTimestamp``.

    Args:
        name: The name of the store.
        ask: Sends a question to the application and returns its answer.
        timestamps: Whether to return values of a timestamped store as ``ValueAndTimestamp``.
        max_lag: The maximum number of unprocessed records in the topics of the store; None for no limit.

    Source: ``org.apache.kafka.streams.state.ReadOnlyKeyValueStore``, ``ReadOnlyWindowStore``, ``ReadOnlySessionStore`` (KIP-67).

    Example:
        >>> counts: ms.StoreReader[str, int] = running.store("counts")  # doctest: +SKIP
        >>> counts.get("tea")  # doctest: +SKIP
        3
    """

    def __init__(self, name: str, ask: Ask, *, timestamps: bool = False, max_lag: int | None = None) -> None:
        self.name = name
        self._ask = ask
        self._timestamps = timestamps
        self._max_lag = max_lag

    def answer(self, method: str, *arguments: Any, limit: int | None = None) -> Answer:
        """Call a method by name, and return its value with the state to which it belongs.

        Args:
            method: The name of a method; see the table in ``docs/how-to/query-a-store.md``.
            arguments: The arguments of the method.
            limit: Maximum number of entries.

        Returns:
            The value with its micro-batch, offsets and lag.

        Source: ``StateQueryResult`` and ``Position`` (KIP-796).
        """
        return self._ask(Question(self.name, method, arguments, limit, self._timestamps, self._max_lag))

    def get(self, key: K, as_of: int | None = None) -> V | None:
        """Return the value of a key, or None.

        Args:
            key: The key.
            as_of: For a versioned store, the time of the version, ms since the epoch; None for the latest version.

        Returns:
            The value; a ``VersionedRecord`` of a versioned store.

        Source: ``ReadOnlyKeyValueStore.get``; ``VersionedKeyValueStore.get``.
        """
        arguments = (key,) if as_of is None else (key, as_of)
        found: V | None = self.answer("get", *arguments).value
        return found

    def range(
        self, low: K | None = None, high: K | None = None, *, limit: int | None = None
    ) -> list[tuple[K, V]]:
        """Return the pairs of key and value between two keys.

        Args:
            low: The first key, inclusive; None for no bound.
            high: The last key, inclusive; None for no bound.
            limit: Maximum number of pairs.

        Source: ``ReadOnlyKeyValueStore.range``.
        """
        return self._entries("range", low, high, limit=limit)

    def reverse_range(
        self, low: K | None = None, high: K | None = None, *, limit: int | None = None
    ) -> list[tuple[K, V]]:
        """Return the same pairs as :meth:`range`, in reverse order.

        Args:
            low: The first key, inclusive; None for no bound.
            high: The last key, inclusive; None for no bound.
            limit: Maximum number of pairs.

        Source: ``ReadOnlyKeyValueStore.reverseRange`` (KIP-617).
        """
        return self._entries("reverse_range", low, high, limit=limit)

    def prefix_scan(self, prefix: K | bytes, *, limit: int | None = None) -> list[tuple[K, V]]:
        """Return the pairs whose serialised key begins with a prefix.

        Args:
            prefix: The prefix, as bytes or as a key to serialise.
            limit: Maximum number of pairs.

        Source: ``ReadOnlyKeyValueStore.prefixScan`` (KIP-614).
        """
        return self._entries("prefix_scan", prefix, limit=limit)

    def all(self, *, limit: int | None = None) -> list[tuple[K, V]]:
        """Return all entries; of a versioned store, the latest version of each key.

        Args:
            limit: Maximum number of entries.

        Source: ``ReadOnlyKeyValueStore.all``; ``ReadOnlyWindowStore.all``.
        """
        return self._entries("all", limit=limit)

    def reverse_all(self, *, limit: int | None = None) -> list[tuple[K, V]]:
        """Return all entries in reverse order.

        Args:
            limit: Maximum number of entries.

        Source: ``ReadOnlyKeyValueStore.reverseAll`` (KIP-617).
        """
        return self._entries("reverse_all", limit=limit)

    def approximate_count(self) -> int:
        """Return the number of keys of a key-value store.

        Source: ``ReadOnlyKeyValueStore.approximateNumEntries``.
        """
        count: int = self.answer("approximate_count").value
        return count

    def info(self) -> Mapping[str, Any]:
        """Return facts about the store.

        Returns:
            The facts by name, which are ``kind``, ``key`` and ``value`` (names of serdes), ``timestamps``, ``engine``, and for a key-value
            store ``approximate_count``.
        """
        facts: Mapping[str, Any] = self.answer("info").value
        return facts

    @overload
    def fetch(
        self: StoreReader[Windowed[T], V], key: T, *, limit: int | None = None
    ) -> list[tuple[Windowed[T], V]]: ...
    @overload
    def fetch(self: StoreReader[Windowed[T], V], key: T, time_from: int) -> V | None: ...
    @overload
    def fetch(
        self: StoreReader[Windowed[T], V], key: T, time_from: int, time_to: int, *, limit: int | None = None
    ) -> list[tuple[int, V]]: ...
    def fetch(
        self, key: Any, time_from: int | None = None, time_to: int | None = None, *, limit: int | None = None
    ) -> Any:
        """Return the value of a key in the window that starts at a time; with two times, the pairs of start and value between them.

        For a session store, and without times, return the pairs of session and value of a key.

        Args:
            key: The key.
            time_from: The start of the window, or the earliest start, ms since the epoch.
            time_to: The latest start, ms since the epoch, inclusive.
            limit: Maximum number of pairs.

        Source: ``ReadOnlyWindowStore.fetch``; ``ReadOnlySessionStore.fetch``.
        """
        times = (time_from,) if time_to is None else (time_from, time_to)
        given = () if times == (None,) else times
        return self.answer("fetch", key, *given, limit=limit).value

    def fetch_all(self, time_from: int, time_to: int, *, limit: int | None = None) -> list[tuple[K, V]]:
        """Return the windows of all keys that start between two times.

        Args:
            time_from: The earliest start, ms since the epoch, inclusive.
            time_to: The latest start, ms since the epoch, inclusive.
            limit: Maximum number of windows.

        Returns:
            Pairs of ``Windowed`` key and value.

        Source: ``ReadOnlyWindowStore.fetchAll``.
        """
        return self._entries("fetch_all", time_from, time_to, limit=limit)

    def fetch_range(
        self: StoreReader[Windowed[T], V],
        key_from: T | None,
        key_to: T | None,
        *times: int,
        limit: int | None = None,
    ) -> list[tuple[Windowed[T], V]]:
        """Return the windows of a range of keys that start between two times, or the sessions of a range of keys.

        Args:
            key_from: The first key, inclusive; None for no bound.
            key_to: The last key, inclusive; None for no bound.
            times: For a window store, the earliest and the latest start, ms since the epoch, inclusive.
            limit: Maximum number of windows or sessions.

        Returns:
            Pairs of ``Windowed`` key and value.

        Source: ``ReadOnlyWindowStore.fetch`` and ``ReadOnlySessionStore.fetch`` with two keys.
        """
        return self._entries("fetch_range", key_from, key_to, *times, limit=limit)

    def fetch_session(self: StoreReader[Windowed[T], V], key: T, start: int, end: int) -> V | None:
        """Return the value of the session with exactly these bounds, or None.

        Args:
            key: The key.
            start: The time of the first record of the session, ms since the epoch.
            end: The time of the last record of the session, ms since the epoch.

        Source: ``ReadOnlySessionStore.fetchSession``.
        """
        found: V | None = self.answer("fetch_session", key, start, end).value
        return found

    def find_sessions(
        self: StoreReader[Windowed[T], V],
        key: T,
        earliest_end: int,
        latest_start: int,
        *,
        limit: int | None = None,
    ) -> list[tuple[Windowed[T], V]]:
        """Return the sessions of a key that end at or after one time and start at or before another.

        Args:
            key: The key.
            earliest_end: The first of these times, ms since the epoch.
            latest_start: The second of these times, ms since the epoch.
            limit: Maximum number of sessions.

        Returns:
            Pairs of ``Windowed`` key and value.

        Source: ``ReadOnlySessionStore.findSessions``.
        """
        return self._entries("find_sessions", key, earliest_end, latest_start, limit=limit)

    def _entries(self, method: str, *arguments: Any, limit: int | None) -> list[tuple[K, V]]:
        entries: list[tuple[K, V]] = self.answer(method, *arguments, limit=limit).value
        return entries

    def __repr__(self) -> str:
        return f"<StoreReader {self.name!r}>"

    def _repr_html_(self) -> str:
        try:
            return table_html(("key", "value"), self.all(limit=_SHOWN))
        except MillstreamError as error:  # such as a store of an application that has ended
            return f"<p>{escape(str(error))}</p>"
