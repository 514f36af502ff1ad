"""Store specifications: what a store is called, what it holds, how long, and where it is kept.

A specification says *what*; ``penstock.core.state.opening`` makes the store of a task from it. Its *fingerprint* names what
must stay the same for content to be readable: kind and serdes. How long entries are kept, which engine holds the local
copy and where changes are published may differ from one start of the application to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from penstock.core.model.calendars import Windows
from penstock.core.model.errors import TopologyError
from penstock.core.model.serdes import Serde
from penstock.core.topology.topic_config import checked_topic_config

Engine = Literal["lmdb", "rocksdb", "memory"]
"""What holds the local copy of a store; None in a specification is the application's setting."""
Changelog = Literal["spark", "kafka"]
"""Where the changes of a store are published: Spark's state always has them, a changelog topic has them if asked."""

Order = Literal["key", "time"]
"""What the entries of a window or session store come by, over several keys."""

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
        cache: Whether a table of the DSL that is kept in it merges updates before it forwards them, if the application has
            caches.
        changelog_config: Further configuration of the changelog topic, by Kafka's names.
    """

    name: str
    key: Serde[Any]
    value: Serde[Any]
    timestamped: bool = False
    engine: Engine | None = None
    changelog: Changelog = "spark"
    cache: bool = True
    changelog_config: Mapping[str, str] = field(default_factory=dict, compare=False)

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
        with_open: Whether another store has what has not closed yet; both have to begin together.
    """

    retention_ms: int
    with_open: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least("retention", self.retention_ms, 0)

    @property
    def slice_ms(self) -> int:
        """How much time a new slice holds: half the retention, and at least a minute, as Kafka Streams' segments."""
        return max(self.retention_ms // 2, _SHORTEST_SLICE_MS)


@dataclass(frozen=True, kw_only=True)
class TimedSpec(SlicedSpec):
    """A store whose entries have a key and a time.

    Attributes:
        by_time: Whether entries lie in the order of time, then of keys.
        strict: Whether a put that reads could not see is refused; else only one into a slice that has expired.
    """

    by_time: bool = False
    strict: bool = False


@dataclass(frozen=True, kw_only=True)
class WindowSpec(TimedSpec):
    """A window store.

    Attributes:
        size_ms: How long a window is; only the ends of windows that are read follow from it.
        windows: The windows of the user's own whose ends do not follow from the size.
        retain_duplicates: Whether a further put for the same key and window is kept beside the earlier ones.
        expired: What a put into a slice that has expired is counted as.

    Duplicates are kept in the order of keys only.
    """

    size_ms: int
    retain_duplicates: bool = False
    expired: str = "expired window"
    windows: Windows | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least("size", self.size_ms, 0)
        self._at_least("retention", self.retention_ms, self.size_ms, "; windows would expire before they end")
        if self.by_time and self.retain_duplicates:
            raise TopologyError(f"store {self.name!r}: duplicates are kept in the order of keys only")

    @property
    def kind(self) -> str:
        """Duplicates carry a number; the order of time is another order of the entries."""
        if self.by_time:
            return "window-by-time"
        if self.with_open:
            return "window-with-open"
        return "window-with-duplicates" if self.retain_duplicates else "window"


@dataclass(frozen=True, kw_only=True)
class SessionSpec(TimedSpec):
    """A session store; the time of a session is its end."""

    @property
    def kind(self) -> str:
        """Sessions by key, end and start; the order of time is another order of the entries, and open ones have a place beside."""
        return "session" + ("-with-open" if self.with_open else "") + ("-by-time" if self.by_time else "")


@dataclass(frozen=True, kw_only=True)
class VersionedSpec(SlicedSpec):
    """A versioned store: the history of each key; ``retention_ms`` is its history retention."""

    @property
    def kind(self) -> str:
        """The latest versions, and slices of earlier ones."""
        return "versioned"


@dataclass(frozen=True)
class StoreOptions:
    """How an operator of the DSL keeps its result; what ``ps.stores.options`` gives.

    Attributes:
        name: The store's name.
        engine: What holds the local copy; None is the application's setting.
        changelog: Where changes are published.
        history_retention_ms: How far back a versioned table can be read; None is a table without versions.
        retention_ms: How long windows and sessions are kept; None is as long as they can change.
        cache: Whether updates are merged before they are forwarded, if the application has caches.
        changelog_config: Further configuration of the changelog topic, by Kafka's names.
    """

    name: str
    engine: Engine | None = None
    changelog: Changelog = "spark"
    history_retention_ms: int | None = None
    retention_ms: int | None = None
    cache: bool = True
    changelog_config: Mapping[str, str] = field(default_factory=dict, compare=False)


Kept: TypeAlias = "str | StoreOptions"
"""What operators of the DSL take as ``store``: a name, or a name with options."""


def with_number(store: str, number: int) -> str:
    """Give the name under which the user of a store with a number is remembered; the one with 0 is remembered as the store.

    ``#`` is in no store's name, so nothing else is called so.

    Example:
        >>> with_number("counts", 0), with_number("counts", 2)
        ('counts', 'counts#2')
    """
    return f"{store}#{number}" if number else store


def by_time(name: str, order: Order) -> bool:
    """Give whether an order is that of time.

    Raises:
        TopologyError: If it is none.
    """
    _one_of(name, "order", order, get_args(Order))
    return order == "time"


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
