"""Stores: specifications of stores, with name, kind, retention and storage, such as ``ms.stores.key_value(...)``.

A specification defines *what* a store is; ``millstream.core.state.opening`` creates the store of a task from it. Its *fingerprint*
contains what must not change if the content is to stay readable: kind and serdes. Retention, store engine and changelog topic may
change from one start of the application to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Final, Generic, Literal, TypedDict, TypeVar, get_args

from millstream.core.model.arguments import checked_constructor
from millstream.core.model.calendars import Windows
from millstream.core.model.durations import Duration, millis
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde, never_null
from millstream.core.model.topics import checked_name, checked_topic_config

Engine = Literal["lmdb", "rocksdb", "memory"]
"""The store engine of the local copy. None in a specification uses the application's setting."""
Changelog = Literal["spark", "kafka"]
"""Where changes are published: always to Spark's state, and with "kafka" also to a changelog topic."""

Order = Literal["key", "time"]
"""The order of the entries of several keys in a window or session store."""

LATEST: Final = -1
"""Result of ``put`` of a versioned store if no later version exists (``PUT_RETURN_CODE_VALID_TO_UNDEFINED``)."""

_SHORTEST_SLICE_MS = 60_000

S = TypeVar("S")


class Storage(TypedDict):
    """Storage options of a store; see :class:`StoreSpec`."""

    engine: Engine | None
    changelog: Changelog
    changelog_config: Mapping[str, str]


@dataclass(frozen=True)
class StoreSpec:
    """A store that can be added to a topology (Kafka Streams: ``StoreBuilder``). Each kind of store is a subclass.

    Args:
        name: Letters, digits, dots, dashes and underscores, unique in the topology. A restart finds the content of the store by name.
        key: Serde of the keys; iteration is in the order of the serialised keys.
        value: Serde of the values.
        timestamped: Whether to keep a timestamp with each value; reads then return ``ValueAndTimestamp``. Stores of the DSL do.
        engine: Store engine of the local copy; None uses the application's setting.
        changelog: "kafka" also publishes the changes to a changelog topic.
        changelog_config: Additional configuration of that topic, by Kafka's names, for example ``{"min.insync.replicas": "2"}``.
        cache: Whether a table of the DSL in this store merges updates before it forwards them, if the application has caches.

    Raises:
        TopologyError: If the name or an option is invalid.
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

    advice_if_refused: ClassVar[str] = (
        "; an operator takes the name of its store, or ms.stores.options(name, ...), and a processor the names of stores that "
        "add_state_store(...) has added"
    )

    def __post_init__(self) -> None:
        checked_name(self.name, "store")
        object.__setattr__(self, "key", never_null(self.key))
        _one_of(self.name, "engine", self.engine, (None, *get_args(Engine)))
        _one_of(self.name, "changelog", self.changelog, get_args(Changelog))
        try:
            checked_topic_config(self.changelog_config)
        except ValueError as error:
            raise TopologyError(f"store {self.name!r}: changelog_config: {error}") from None
        if self.changelog_config and self.changelog != "kafka":
            raise TopologyError(f"store {self.name!r}: changelog_config applies only to changelog='kafka'")

    @property
    def kind(self) -> str:
        """The kind of the store, which determines the layout of its content."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """What must not change if the content of the store is to stay readable."""
        kind = f"timestamped-{self.kind}" if self.timestamped else self.kind
        return f"{kind} {self.key.name} -> {self.value.name}"

    def _in_millis(self, option: str, least: int, why: str = "") -> None:
        value = millis(getattr(self, option))
        if value < least:
            raise TopologyError(
                f"store {self.name!r}: {option} must be at least {least} ms, not {value}{why}"
            )
        object.__setattr__(self, option, value)


class StoreOf(StoreSpec, Generic[S]):
    """A specification whose type says which store a processor gets for it, for type checkers; see :class:`StoreSpec`."""


@checked_constructor
@dataclass(frozen=True, kw_only=True)
class KeyValueSpec(StoreOf[Any]):
    """A key-value store: ``ms.stores.key_value``. For the options of all stores, see :class:`StoreSpec`.

    Args:
        ttl: Time to live: an entry expires this long after its last write, in stream time of the task; ``timedelta`` or ms. None means
            never.

    Source: ``org.apache.kafka.streams.state.Stores.keyValueStoreBuilder``. Kafka Streams has no counterpart of ``ttl``.

    Example:
        >>> import millstream as ms
        >>> ms.stores.key_value("seen", ms.serdes.string, ms.serdes.int64).fingerprint
        'key-value string -> int64'
    """

    ttl: Duration | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ttl is not None:
            self._in_millis("ttl", 1)

    @property
    def ttl_ms(self) -> int | None:
        """The TTL in milliseconds, or None."""
        return None if self.ttl is None else millis(self.ttl)

    @property
    def kind(self) -> str:
        """The kind. Expiring entries carry the time of their last write."""
        return "key-value" if self.ttl is None else "expiring-key-value"


@checked_constructor
@dataclass(frozen=True, kw_only=True)
class LruSpec(StoreOf[Any]):
    """A key-value store that evicts its least recently used entry when its capacity is exceeded: ``ms.stores.lru``.

    Args:
        capacity: Maximum number of entries per task, at least 1.

    Source: ``org.apache.kafka.streams.state.Stores.lruMap``.

    Example:
        >>> import millstream as ms
        >>> ms.stores.lru("recent", ms.serdes.string, ms.serdes.json, capacity=1000).fingerprint
        'lru string -> json'
    """

    capacity: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capacity < 1:
            raise TopologyError(f"store {self.name!r}: capacity must be at least 1, not {self.capacity}")

    @property
    def kind(self) -> str:
        """The kind: a key-value store that keeps an order of use."""
        return "lru"


@dataclass(frozen=True, kw_only=True)
class SlicedSpec(StoreOf[Any]):
    """A store in slices (see docs/decisions/0014-windowed-stores-expire-in-time-slices.md)."""

    @property
    def retention_ms(self) -> int:
        """How far behind the store's time entries can be read, ms."""
        raise NotImplementedError

    @property
    def slice_ms(self) -> int:
        """Length of a new slice, ms: half the retention, at least a minute, like the segments of Kafka Streams."""
        return max(self.retention_ms // 2, _SHORTEST_SLICE_MS)


@dataclass(frozen=True)
class OperatorUse:
    """How an operator of the DSL uses a window or session store. Stores of the Processor API have the defaults.

    Args:
        expired: Name under which a put into an expired slice of a window store is counted.
        windows: User-defined windows, whose ends do not follow from the size.
        with_open: Whether another store contains the open windows or sessions; both must start together.
    """

    expired: str = "expired window"
    windows: Windows | None = field(default=None, compare=False)
    with_open: bool = False


@dataclass(frozen=True, kw_only=True)
class TimedSpec(SlicedSpec):
    """A store whose entries have a key and a time.

    Args:
        retention: Entries that are at least this much older than the latest entry can no longer be read. The time of a window is its
            start, the time of a session is its end. ``timedelta`` or ms.
        order: ``"key"`` orders the entries of several keys by key, then time; ``"time"`` by time, then key. With ``"time"``, a read of
            one key reads all keys of the time range.
        strict: Whether to drop and count every put of an entry that could not be read; otherwise only puts into an expired slice.
    """

    retention: Duration
    order: Order = "key"
    strict: bool = False
    _operator: OperatorUse = OperatorUse()

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
    """A window store, with values by key and start of a window: ``ms.stores.window``.

    Args:
        size: Length of a window, at most the retention. Reads use it only to compute the ends of windows.
        retain_duplicates: Whether to keep every put for the same key and window instead of only the last; not with ``order="time"``.

    Source: ``org.apache.kafka.streams.state.Stores.persistentWindowStore``; with ``order="time"`` and ``strict``,
    ``inMemoryWindowStore``.

    Example:
        >>> import millstream as ms
        >>> ms.stores.window("clicks", ms.serdes.string, ms.serdes.int64, retention=3_600_000, size=60_000).fingerprint
        'window string -> int64'
    """

    size: Duration
    retain_duplicates: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._in_millis("size", 0)
        self._in_millis("retention", self.size_ms, "; windows would expire before they end")
        if self.by_time and self.retain_duplicates:
            raise TopologyError(f"store {self.name!r}: duplicates need order='key'")

    @property
    def size_ms(self) -> int:
        """The size in milliseconds."""
        return millis(self.size)

    @property
    def kind(self) -> str:
        """The kind. Duplicates carry a number, and order by time is a different layout."""
        if self.by_time:
            return "window-by-time"
        if self._operator.with_open:
            return "window-with-open"
        return "window-with-duplicates" if self.retain_duplicates else "window"


@checked_constructor
@dataclass(frozen=True, kw_only=True)
class SessionSpec(TimedSpec):
    """A session store, with values by key, start and end of a session: ``ms.stores.session``.

    Source: ``org.apache.kafka.streams.state.Stores.persistentSessionStore``; with ``order="time"`` and ``strict``,
    ``inMemorySessionStore``.

    Example:
        >>> import millstream as ms
        >>> ms.stores.session("visits", ms.serdes.string, ms.serdes.int64, retention=3_600_000).fingerprint
        'session string -> int64'
    """

    @property
    def kind(self) -> str:
        """The kind. Order by time is a different layout, and open sessions may be in another store."""
        return (
            "session"
            + ("-with-open" if self._operator.with_open else "")
            + ("-by-time" if self.by_time else "")
        )


@checked_constructor
@dataclass(frozen=True, kw_only=True)
class VersionedSpec(SlicedSpec):
    """A versioned store, with the values of each key over time: ``ms.stores.versioned``. Each version has a timestamp.

    Args:
        history_retention: How far back ``get(key, as_of)`` can read; ``timedelta`` or ms. The latest version never expires.

    Source: ``org.apache.kafka.streams.state.Stores.persistentVersionedKeyValueStore``.

    Example:
        >>> import millstream as ms
        >>> ms.stores.versioned("prices", ms.serdes.string, ms.serdes.float64, history_retention=3_600_000).fingerprint
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
        """The kind: the latest versions, and slices with earlier ones."""
        return "versioned"


def name_of(store: str | StoreSpec) -> str:
    """Return the name of a store that is given by its name or its specification."""
    return store if isinstance(store, str) else store.name


def _one_of(store: str, option: str, given: object, allowed: tuple[object, ...]) -> None:
    if given not in allowed:
        wanted = ", ".join(repr(choice) for choice in allowed)
        raise TopologyError(f"store {store!r}: {option} must be one of {wanted}, not {given!r}")
