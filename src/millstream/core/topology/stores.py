"""Stores: what a store is called, what it holds, how long, and where it is kept. ``ms.stores.key_value(...)`` and its like.

A specification says *what*; ``millstream.core.state.opening`` makes the store of a task from it. Its *fingerprint* names what
must stay the same for content to be readable: kind and serdes. How long entries are kept, which engine holds the local
copy and where changes are published may differ from one start of the application to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

from millstream.core.model.arguments import checked_constructor
from millstream.core.model.calendars import Windows
from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.topics import checked_name, checked_topic_config

__all__ = [
    "LATEST",
    "Changelog",
    "Engine",
    "Kept",
    "Order",
    "StoreOptions",
    "StoreSpec",
    "key_value",
    "lru",
    "options",
    "session",
    "versioned",
    "window",
]

Engine = Literal["lmdb", "rocksdb", "memory"]
"""What holds the local copy of a store; None in a specification is the application's setting."""
Changelog = Literal["spark", "kafka"]
"""Where the changes of a store are published: Spark's state always has them, a changelog topic has them if asked."""

Order = Literal["key", "time"]
"""How a window or session store orders its entries, over several keys."""

LATEST: Final = -1
"""What ``put`` of a versioned store returns for a version that no later one ends (``PUT_RETURN_CODE_VALID_TO_UNDEFINED``)."""

_SHORTEST_SLICE_MS = 60_000


class Storage(TypedDict):
    """Where a store is kept; see :class:`StoreSpec`."""

    engine: Engine | None
    changelog: Changelog
    changelog_config: Mapping[str, str]


@dataclass(frozen=True)
class StoreSpec:
    """A store, as it is added to a topology (Kafka Streams: ``StoreBuilder``). Its subclasses are the kinds of stores.

    Args:
        name: Letters, digits, dots, dashes and underscores, unique in the topology; a restart finds the store's content by it.
        key: Serde of the keys; iteration is in the order of the serialised keys.
        value: Serde of the values.
        timestamped: Keep a timestamp with each value; reads then return ``ValueAndTimestamp``. Stores of the DSL do.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.
        changelog_config: Further configuration of that topic by Kafka's names, as ``{"min.insync.replicas": "2"}``.
        cache: Whether a table of the DSL that is kept here merges updates before it forwards them, if the application has caches.

    Raises:
        TopologyError: If the name cannot be the name of a store, or an option is impossible.
    """

    name: str
    key: Serde[Any]
    value: Serde[Any]
    _: KW_ONLY
    timestamped: bool = False
    engine: Engine | None = None
    changelog: Changelog = "spark"
    changelog_config: Mapping[str, str] = field(default_factory=dict, compare=False)
    cache: bool = True

    def __post_init__(self) -> None:
        checked_name(self.name, "store")
        _one_of(self.name, "engine", self.engine, (None, *get_args(Engine)))
        _one_of(self.name, "changelog", self.changelog, get_args(Changelog))
        try:
            checked_topic_config(self.changelog_config)
        except ValueError as error:
            raise TopologyError(f"store {self.name!r}: changelog_config: {error}") from None
        if self.changelog_config and self.changelog != "kafka":
            raise TopologyError(
                f"store {self.name!r}: changelog_config needs changelog='kafka', else there is no topic"
            )

    @property
    def kind(self) -> str:
        """What kind of store this is, as far as the layout of its content goes."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """What must stay the same for the store's content to be readable."""
        kind = f"timestamped-{self.kind}" if self.timestamped else self.kind
        return f"{kind} {self.key.name} -> {self.value.name}"

    def _in_millis(self, option: str, least: int, why: str = "") -> None:
        """Keep a duration in milliseconds; refuse one that is too short."""
        value = millis(getattr(self, option))
        if value < least:
            raise TopologyError(f"store {self.name!r}: {option} is at least {least} ms, not {value}{why}")
        object.__setattr__(self, option, value)


@checked_constructor
@dataclass(frozen=True, kw_only=True)
class KeyValueSpec(StoreSpec):
    """A key-value store: ``ms.stores.key_value``. Options of all stores are those of :class:`StoreSpec`.

    Args:
        ttl: An entry expires so long after its last write, by the task's stream time: a timedelta, or milliseconds. None is never.

    Source: ``org.apache.kafka.streams.state.Stores.keyValueStoreBuilder``; ``ttl`` has no counterpart there.

    Example:
        >>> from millstream.core.model import serdes
        >>> key_value("seen", serdes.string, serdes.int64).fingerprint
        'key-value string -> int64'
    """

    ttl: Duration | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ttl is not None:
            self._in_millis("ttl", 1)

    @property
    def ttl_ms(self) -> int | None:
        """The same in milliseconds."""
        return None if self.ttl is None else millis(self.ttl)

    @property
    def kind(self) -> str:
        """Expiring entries carry the time of their last write."""
        return "key-value" if self.ttl is None else "expiring-key-value"


@checked_constructor
@dataclass(frozen=True, kw_only=True)
class LruSpec(StoreSpec):
    """A key-value store that evicts its least recently used entry when it has too many: ``ms.stores.lru``.

    Args:
        capacity: How many entries a task keeps, at least 1.

    Source: ``org.apache.kafka.streams.state.Stores.lruMap``.

    Example:
        >>> from millstream.core.model import serdes
        >>> lru("recent", serdes.string, serdes.json, capacity=1000).fingerprint
        'lru string -> json'
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
    """A store that is kept in slices of time (see docs/decisions/0014-slices-of-time.md)."""

    @property
    def retention_ms(self) -> int:
        """How far behind the store's stream time entries can be read."""
        raise NotImplementedError

    @property
    def slice_ms(self) -> int:
        """How much time a new slice holds: half the retention, and at least a minute, as Kafka Streams' segments."""
        return max(self.retention_ms // 2, _SHORTEST_SLICE_MS)


@dataclass(frozen=True, kw_only=True)
class TimedSpec(SlicedSpec):
    """A store whose entries have a key and a time.

    Args:
        retention: Entries so long before the latest one, or longer, can no longer be read. A window's time is its start, a
            session's its end. A timedelta, or milliseconds.
        order: Whether entries of several keys are ordered by key, then time, or by time, then key. A read of one key in a store
            by time looks at all keys of these times.
        strict: Whether every put is refused, and counted as dropped, that reads could not see; else only one whose slice of
            time has expired.
        with_open: Whether another store has what has not closed yet; both have to begin together. For stores of the DSL.
    """

    retention: Duration
    order: Order = "key"
    strict: bool = False
    with_open: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(self.name, "order", self.order, get_args(Order))
        self._in_millis("retention", 0)

    @property
    def retention_ms(self) -> int:
        """The retention in milliseconds."""
        return millis(self.retention)

    @property
    def by_time(self) -> bool:
        """Whether entries are ordered by time, then by key."""
        return self.order == "time"


@checked_constructor
@dataclass(frozen=True, kw_only=True)
class WindowSpec(TimedSpec):
    """A window store, values by key and start of a window: ``ms.stores.window``.

    Args:
        size: How long a window is, at most the retention; only the ends of windows that are read follow from it.
        retain_duplicates: Keep every put for the same key and window instead of the last; not ordered by time.
        windows: The windows of the user's own whose ends do not follow from the size. For stores of the DSL.
        expired: What a put into a slice that has expired is counted as. For stores of the DSL.

    Source: ``org.apache.kafka.streams.state.Stores.persistentWindowStore``; with ``order="time"`` and ``strict``,
    ``inMemoryWindowStore``.

    Example:
        >>> from millstream.core.model import serdes
        >>> window("clicks", serdes.string, serdes.int64, retention=3_600_000, size=60_000).fingerprint
        'window string -> int64'
    """

    size: Duration
    retain_duplicates: bool = False
    expired: str = "expired window"
    windows: Windows | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._in_millis("size", 0)
        self._in_millis("retention", self.size_ms, "; windows would expire before they end")
        if self.by_time and self.retain_duplicates:
            raise TopologyError(f"store {self.name!r}: duplicates are kept in the order of keys only")

    @property
    def size_ms(self) -> int:
        """The size in milliseconds."""
        return millis(self.size)

    @property
    def kind(self) -> str:
        """Duplicates carry a number; the order of time is another order of the entries."""
        if self.by_time:
            return "window-by-time"
        if self.with_open:
            return "window-with-open"
        return "window-with-duplicates" if self.retain_duplicates else "window"


@checked_constructor
@dataclass(frozen=True, kw_only=True)
class SessionSpec(TimedSpec):
    """A session store, values by key, start and end of a session: ``ms.stores.session``.

    Source: ``org.apache.kafka.streams.state.Stores.persistentSessionStore``; with ``order="time"`` and ``strict``,
    ``inMemorySessionStore``.

    Example:
        >>> from millstream.core.model import serdes
        >>> session("visits", serdes.string, serdes.int64, retention=3_600_000).fingerprint
        'session string -> int64'
    """

    @property
    def kind(self) -> str:
        """Sessions by key, end and start; the order of time is another order of the entries, and open ones have a place beside."""
        return "session" + ("-with-open" if self.with_open else "") + ("-by-time" if self.by_time else "")


@checked_constructor
@dataclass(frozen=True, kw_only=True)
class VersionedSpec(SlicedSpec):
    """A versioned store, the values of each key over time: ``ms.stores.versioned``. Its values have timestamps of their own.

    Args:
        history_retention: How far back ``get(key, as_of)`` can look; the latest version of a key never expires.

    Source: ``org.apache.kafka.streams.state.Stores.persistentVersionedKeyValueStore``.

    Example:
        >>> from millstream.core.model import serdes
        >>> versioned("prices", serdes.string, serdes.float64, history_retention=3_600_000).fingerprint
        'versioned string -> float64'
    """

    timestamped: bool = field(default=False, init=False)
    history_retention: Duration

    def __post_init__(self) -> None:
        super().__post_init__()
        self._in_millis("history_retention", 0)

    @property
    def retention_ms(self) -> int:
        """The history retention in milliseconds."""
        return millis(self.history_retention)

    @property
    def kind(self) -> str:
        """The latest versions, and slices of earlier ones."""
        return "versioned"


@checked_constructor
@dataclass(frozen=True)
class StoreOptions:
    """How an operator of the DSL keeps its result, where a name alone is not enough: ``ms.stores.options``.

    Args:
        name: As in :class:`StoreSpec`, as are ``engine``, ``changelog`` and ``changelog_config``.
        history_retention: How long earlier versions of each row can be read, by the table's own time; None keeps only the newest
            by offset. Only for ``table`` and ``to_table``.
        retention: How long windows can be read after they began, in stream time; None is size and grace together, the
            least there is. Only for windowed aggregations.
        cache: Whether updates of a row within a micro-batch are merged before they are forwarded, as far as the setting
            ``statestore_cache_max_bytes`` allows; False forwards every update (``withCachingDisabled``).

    Source: ``org.apache.kafka.streams.kstream.Materialized``.

    Example:
        >>> import millstream as ms
        >>> builder = ms.StreamsBuilder()
        >>> kept = ms.stores.options("counts", changelog="kafka")
        >>> counts = builder.stream("words").group_by_key().count(store=kept)
        >>> builder.build().plan("shop").changelogs
        {'counts': 'shop-counts-changelog'}
    """

    name: str
    _: KW_ONLY
    engine: Engine | None = None
    changelog: Changelog = "spark"
    changelog_config: Mapping[str, str] = field(default_factory=dict, compare=False)
    history_retention: Duration | None = None
    retention: Duration | None = None
    cache: bool = True

    @property
    def storage(self) -> Storage:
        """Where the store is kept, as arguments of its specification."""
        return Storage(engine=self.engine, changelog=self.changelog, changelog_config=self.changelog_config)


Kept: TypeAlias = "str | StoreOptions"
"""What operators of the DSL take as ``store``: a name, or a name with options."""

key_value = KeyValueSpec
lru = LruSpec
window = WindowSpec
session = SessionSpec
versioned = VersionedSpec
options = StoreOptions


def with_number(store: str, number: int) -> str:
    """Return the name under which the user of a store with a number is remembered; with 0 that is the name of the store.

    No name of a store contains ``#``, so the result is unique.

    Example:
        >>> with_number("counts", 0), with_number("counts", 2)
        ('counts', 'counts#2')
    """
    return f"{store}#{number}" if number else store


def _one_of(store: str, option: str, given: object, allowed: tuple[object, ...]) -> None:
    if given not in allowed:
        wanted = ", ".join(repr(choice) for choice in allowed)
        raise TopologyError(f"store {store!r}: {option} is one of {wanted}, not {given!r}")
