"""Store specifications: what a store is called, what it holds, how long, and where it is kept.

A specification says *what*; ``penstock.core.state.opening`` makes the store of a task from it. Its *fingerprint* names what
must stay the same for content to be readable: kind and serdes. How long entries are kept, which engine holds the local
copy and where changes are published may differ from one start of the application to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from penstock.core.model.durations import Duration, millis
from penstock.core.model.errors import TopologyError
from penstock.core.model.serdes import Serde

Engine = Literal["lmdb", "rocksdb", "memory"]
"""What holds the local copy of a store; None in a specification is the application's setting."""
Changelog = Literal["spark", "kafka"]
"""Where the changes of a store are published: Spark's state always has them, a changelog topic has them if asked."""

LATEST: Final = -1
"""What ``put`` of a versioned store gives for a version that no later one ends (``PUT_RETURN_CODE_VALID_TO_UNDEFINED``)."""

_SHORTEST_SLICE_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """A store, as it is added to a topology (Kafka Streams: ``StoreBuilder``). Its subclasses are the kinds of stores.

    Attributes:
        name: Unique in its topology; the store's state is found by it after a restart.
        key: Serde of the keys; iteration is in the order of the serialised keys.
        value: Serde of the values.
        timestamped: Whether each value is kept with the timestamp of its record; stores made by the DSL are.
        engine: What holds the local copy; None is the application's setting.
        changelog: Where changes are published.
    """

    name: str
    key: Serde[Any]
    value: Serde[Any]
    timestamped: bool = False
    engine: Engine | None = None
    changelog: Changelog = "spark"

    def __post_init__(self) -> None:
        checked_name(self.name, "store")
        _one_of(self.name, "engine", self.engine, (None, *get_args(Engine)))
        _one_of(self.name, "changelog", self.changelog, get_args(Changelog))

    @property
    def kind(self) -> str:
        """What kind of store this is, as far as the layout of its content goes."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """What must stay the same for the store's content to be readable."""
        kind = f"timestamped-{self.kind}" if self.timestamped else self.kind
        return f"{kind} {self.key.name} -> {self.value.name}"

    def _at_least(self, option: str, value: int, least: int, why: str = "") -> None:
        if value < least:
            raise TopologyError(f"store {self.name!r}: {option} is at least {least} ms, not {value}{why}")


@dataclass(frozen=True, kw_only=True)
class KeyValueSpec(StoreSpec):
    """A key-value store.

    Attributes:
        ttl_ms: How long after its last write an entry expires, in stream time; None is never.
    """

    ttl_ms: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ttl_ms is not None:
            self._at_least("ttl", self.ttl_ms, 1)

    @property
    def kind(self) -> str:
        """Expiring entries carry the time of their last write."""
        return "key-value" if self.ttl_ms is None else "expiring-key-value"


@dataclass(frozen=True, kw_only=True)
class LruSpec(StoreSpec):
    """A key-value store with a bounded number of entries, which gives up the least recently used one.

    Attributes:
        capacity: How many entries a task keeps.
    """

    capacity: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capacity < 1:
            raise TopologyError(f"store {self.name!r}: capacity is at least 1, not {self.capacity}")

    @property
    def kind(self) -> str:
        """A key-value store beside an order of use."""
        return "lru"


@dataclass(frozen=True, kw_only=True)
class SlicedSpec(StoreSpec):
    """A store that is kept in slices of time (see docs/decisions/0014-slices-of-time.md).

    Attributes:
        retention_ms: How far behind the store's stream time entries can be read.
    """

    retention_ms: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least("retention", self.retention_ms, 0)

    @property
    def slice_ms(self) -> int:
        """How much time a new slice holds: half the retention, and at least a minute, as Kafka Streams' segments."""
        return max(self.retention_ms // 2, _SHORTEST_SLICE_MS)


@dataclass(frozen=True, kw_only=True)
class WindowSpec(SlicedSpec):
    """A window store.

    Attributes:
        size_ms: How long a window is; only the ends of windows that are read follow from it.
        retain_duplicates: Whether a further put for the same key and window is kept beside the earlier ones.
    """

    size_ms: int
    retain_duplicates: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least("size", self.size_ms, 0)
        self._at_least("retention", self.retention_ms, self.size_ms, "; windows would expire before they end")

    @property
    def kind(self) -> str:
        """Duplicates carry a number."""
        return "window-with-duplicates" if self.retain_duplicates else "window"


@dataclass(frozen=True, kw_only=True)
class SessionSpec(SlicedSpec):
    """A session store."""

    @property
    def kind(self) -> str:
        """Sessions by key, end and start."""
        return "session"


@dataclass(frozen=True, kw_only=True)
class VersionedSpec(SlicedSpec):
    """A versioned store: the history of each key; ``retention_ms`` is its history retention."""

    @property
    def kind(self) -> str:
        """The latest versions, and slices of earlier ones."""
        return "versioned"


@dataclass(frozen=True)
class StoreOptions:
    """How an operator of the DSL keeps its result; what :func:`options` gives.

    Attributes:
        name: The store's name.
        engine: What holds the local copy; None is the application's setting.
        changelog: Where changes are published.
    """

    name: str
    engine: Engine | None = None
    changelog: Changelog = "spark"


Kept: TypeAlias = "str | StoreOptions"
"""What operators of the DSL take as ``store``: a name, or a name with options."""


def options(name: str, *, engine: Engine | None = None, changelog: Changelog = "spark") -> StoreOptions:
    """Say how an operator of the DSL keeps its result, where a name alone is not enough.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.

    Returns:
        What ``count``, ``reduce``, ``aggregate``, ``table`` and ``to_table`` take as ``store``.

    Source: ``org.apache.kafka.streams.kstream.Materialized``.

    Example:
        >>> import penstock as ps
        >>> builder = ps.StreamsBuilder()
        >>> kept = ps.stores.options("counts", changelog="kafka")
        >>> counts = builder.stream("words").group_by_key().count(store=kept)
        >>> builder.build().plan("shop").changelogs
        {'counts': 'shop-counts-changelog'}
    """
    return StoreOptions(name, engine, changelog)


def key_value(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    *,
    timestamped: bool = False,
    ttl: Duration | None = None,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
) -> KeyValueSpec:
    """Specify a key-value store.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        key: Serde of the keys.
        value: Serde of the values.
        timestamped: Keep a timestamp with each value; ``get`` then gives ``ValueAndTimestamp``.
        ttl: An entry expires so long after its last write, by the task's stream time: a timedelta, or milliseconds.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.

    Returns:
        What ``add_state_store`` takes.

    Raises:
        TopologyError: If the name cannot be the name of a store, or an option is impossible.

    Source: ``org.apache.kafka.streams.state.Stores.keyValueStoreBuilder``; ``ttl`` has no counterpart there.

    Example:
        >>> from penstock.core.model import serdes
        >>> key_value("seen", serdes.string, serdes.int64).fingerprint
        'key-value string -> int64'
    """
    return KeyValueSpec(
        name=name,
        key=key,
        value=value,
        timestamped=timestamped,
        ttl_ms=None if ttl is None else millis(ttl),
        engine=engine,
        changelog=changelog,
    )


def lru(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    *,
    capacity: int,
    timestamped: bool = False,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
) -> LruSpec:
    """Specify a key-value store that gives up its least recently used entry when it has too many.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        key: Serde of the keys.
        value: Serde of the values.
        capacity: How many entries a task keeps, at least 1.
        timestamped: Keep a timestamp with each value; ``get`` then gives ``ValueAndTimestamp``.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.

    Returns:
        What ``add_state_store`` takes.

    Raises:
        TopologyError: If the name cannot be the name of a store, or an option is impossible.

    Source: ``org.apache.kafka.streams.state.Stores.lruMap``.

    Example:
        >>> from penstock.core.model import serdes
        >>> lru("recent", serdes.string, serdes.json, capacity=1000).fingerprint
        'lru string -> json'
    """
    return LruSpec(
        name=name,
        key=key,
        value=value,
        capacity=capacity,
        timestamped=timestamped,
        engine=engine,
        changelog=changelog,
    )


def window(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    *,
    retention: Duration,
    size: Duration,
    retain_duplicates: bool = False,
    timestamped: bool = False,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
) -> WindowSpec:
    """Specify a window store: values by key and start of a window.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        key: Serde of the keys.
        value: Serde of the values.
        retention: Windows that start so long before the latest one, or longer, can no longer be read; at least ``size``.
        size: How long a window is.
        retain_duplicates: Keep every put for the same key and window instead of the last.
        timestamped: Keep a timestamp with each value; reads then give ``ValueAndTimestamp``.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.

    Returns:
        What ``add_state_store`` takes.

    Raises:
        TopologyError: If the name cannot be the name of a store, or an option is impossible.

    Source: ``org.apache.kafka.streams.state.Stores.persistentWindowStore``.

    Example:
        >>> from penstock.core.model import serdes
        >>> window("clicks", serdes.string, serdes.int64, retention=3_600_000, size=60_000).fingerprint
        'window string -> int64'
    """
    return WindowSpec(
        name=name,
        key=key,
        value=value,
        retention_ms=millis(retention),
        size_ms=millis(size),
        retain_duplicates=retain_duplicates,
        timestamped=timestamped,
        engine=engine,
        changelog=changelog,
    )


def session(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    *,
    retention: Duration,
    timestamped: bool = False,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
) -> SessionSpec:
    """Specify a session store: values by key, start and end of a session.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        key: Serde of the keys.
        value: Serde of the values.
        retention: Sessions that end so long before the latest end, or longer, can no longer be read.
        timestamped: Keep a timestamp with each value; reads then give ``ValueAndTimestamp``.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.

    Returns:
        What ``add_state_store`` takes.

    Raises:
        TopologyError: If the name cannot be the name of a store, or an option is impossible.

    Source: ``org.apache.kafka.streams.state.Stores.persistentSessionStore``.

    Example:
        >>> from penstock.core.model import serdes
        >>> session("visits", serdes.string, serdes.int64, retention=3_600_000).fingerprint
        'session string -> int64'
    """
    return SessionSpec(
        name=name,
        key=key,
        value=value,
        retention_ms=millis(retention),
        timestamped=timestamped,
        engine=engine,
        changelog=changelog,
    )


def versioned(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    *,
    history_retention: Duration,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
) -> VersionedSpec:
    """Specify a versioned store: the values of each key over time.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        key: Serde of the keys.
        value: Serde of the values.
        history_retention: How far back ``get(key, as_of)`` can look; the latest version of a key never expires.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.

    Returns:
        What ``add_state_store`` takes.

    Raises:
        TopologyError: If the name cannot be the name of a store, or an option is impossible.

    Source: ``org.apache.kafka.streams.state.Stores.persistentVersionedKeyValueStore``.

    Example:
        >>> from penstock.core.model import serdes
        >>> versioned("prices", serdes.string, serdes.float64, history_retention=3_600_000).fingerprint
        'versioned string -> float64'
    """
    return VersionedSpec(
        name=name,
        key=key,
        value=value,
        retention_ms=millis(history_retention),
        engine=engine,
        changelog=changelog,
    )


def _one_of(store: str, option: str, given: object, allowed: tuple[object, ...]) -> None:
    if given not in allowed:
        wanted = ", ".join(repr(choice) for choice in allowed)
        raise TopologyError(f"store {store!r}: {option} is one of {wanted}, not {given!r}")


_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def checked_name(name: str, what: str) -> str:
    """Give the name back if it can be part of a topic's name, as Kafka Streams demands of ``Named``.

    Raises:
        TopologyError: If it is empty, too long or has other characters.
    """
    if (
        not isinstance(name, str)
        or not 0 < len(name) < 250
        or not _ALLOWED.issuperset(name)
        or name in (".", "..")
    ):
        raise TopologyError(
            f"{name!r} cannot be the name of a {what}: use 1 to 249 letters, digits, '.', '_' or '-', "
            "because topic names are made from it"
        )
    return name
