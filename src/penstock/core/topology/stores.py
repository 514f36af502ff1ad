"""The functions that specify stores: ``ps.stores.key_value(...)`` and its like.

What they give is defined in ``penstock.core.topology.specs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.core.model.arguments import checked
from penstock.core.model.durations import Duration, millis
from penstock.core.model.serdes import Serde
from penstock.core.topology.specs import (
    LATEST,
    Changelog,
    Engine,
    Kept,
    KeyValueSpec,
    LruSpec,
    Order,
    SessionSpec,
    SlicedSpec,
    StoreOptions,
    StoreSpec,
    VersionedSpec,
    WindowSpec,
    by_time,
    checked_name,
)

__all__ = [
    "LATEST",
    "Changelog",
    "Engine",
    "Kept",
    "KeyValueSpec",
    "LruSpec",
    "Order",
    "SessionSpec",
    "SlicedSpec",
    "StoreOptions",
    "StoreSpec",
    "VersionedSpec",
    "WindowSpec",
    "checked_name",
    "key_value",
    "lru",
    "options",
    "session",
    "versioned",
    "window",
]


@checked
def options(
    name: str,
    *,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
    changelog_config: Mapping[str, str] | None = None,
    history_retention: Duration | None = None,
    retention: Duration | None = None,
    cache: bool = True,
) -> StoreOptions:
    """Say how an operator of the DSL keeps its result, where a name alone is not enough.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.
        changelog_config: Further configuration of that topic by Kafka's names, as ``{"min.insync.replicas": "2"}``.
        history_retention: How long earlier versions of each row can be read, by the table's own time: a timedelta, or
            milliseconds; None keeps only the newest by offset. Only for ``table`` and ``to_table``.
        retention: How long windows can be read after they began, in stream time; None is size and grace together, the
            least there is. Only for windowed aggregations.
        cache: Whether updates of a row within a micro-batch are merged before they are forwarded, as far as the setting
            ``statestore_cache_max_bytes`` allows; False forwards every update (``withCachingDisabled``).

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
    return StoreOptions(
        name,
        engine,
        changelog,
        history_retention_ms=None if history_retention is None else millis(history_retention),
        retention_ms=None if retention is None else millis(retention),
        cache=cache,
        changelog_config=changelog_config or {},
    )


@checked
def key_value(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    *,
    timestamped: bool = False,
    ttl: Duration | None = None,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
    changelog_config: Mapping[str, str] | None = None,
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
        changelog_config: Further configuration of that topic by Kafka's names, as ``{"min.insync.replicas": "2"}``.

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
        changelog_config=changelog_config or {},
    )


@checked
def lru(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    *,
    capacity: int,
    timestamped: bool = False,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
    changelog_config: Mapping[str, str] | None = None,
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
        changelog_config: Further configuration of that topic by Kafka's names, as ``{"min.insync.replicas": "2"}``.

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
        changelog_config=changelog_config or {},
    )


@checked
def window(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    *,
    retention: Duration,
    size: Duration,
    retain_duplicates: bool = False,
    timestamped: bool = False,
    order: Order = "key",
    strict: bool = False,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
    changelog_config: Mapping[str, str] | None = None,
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
        order: Whether windows of several keys come by key, then time, or by time, then key; not with duplicates. A read of one key in a store
            by time looks at all keys of these times.
        strict: Whether every put is refused, and counted as dropped, that reads could not see; else only one whose slice of
            time has expired.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.
        changelog_config: Further configuration of that topic by Kafka's names, as ``{"min.insync.replicas": "2"}``.

    Returns:
        What ``add_state_store`` takes.

    Raises:
        TopologyError: If the name cannot be the name of a store, or an option is impossible.

    Source: ``org.apache.kafka.streams.state.Stores.persistentWindowStore``; with ``order="time"`` and ``strict``,
    ``inMemoryWindowStore``.

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
        by_time=by_time(name, order),
        strict=strict,
        engine=engine,
        changelog=changelog,
        changelog_config=changelog_config or {},
    )


@checked
def session(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    *,
    retention: Duration,
    timestamped: bool = False,
    order: Order = "key",
    strict: bool = False,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
    changelog_config: Mapping[str, str] | None = None,
) -> SessionSpec:
    """Specify a session store: values by key, start and end of a session.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        key: Serde of the keys.
        value: Serde of the values.
        retention: Sessions that end so long before the latest end, or longer, can no longer be read.
        timestamped: Keep a timestamp with each value; reads then give ``ValueAndTimestamp``.
        order: Whether sessions of several keys come by key, then time, or by time, then key (time is that of the ends). A read of one key in a store
            by time looks at all keys of these times.
        strict: Whether every put is refused, and counted as dropped, that reads could not see; else only one whose slice of
            time has expired.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.
        changelog_config: Further configuration of that topic by Kafka's names, as ``{"min.insync.replicas": "2"}``.

    Returns:
        What ``add_state_store`` takes.

    Raises:
        TopologyError: If the name cannot be the name of a store, or an option is impossible.

    Source: ``org.apache.kafka.streams.state.Stores.persistentSessionStore``; with ``order="time"`` and ``strict``,
    ``inMemorySessionStore``.

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
        by_time=by_time(name, order),
        strict=strict,
        engine=engine,
        changelog=changelog,
        changelog_config=changelog_config or {},
    )


@checked
def versioned(
    name: str,
    key: Serde[Any],
    value: Serde[Any],
    *,
    history_retention: Duration,
    engine: Engine | None = None,
    changelog: Changelog = "spark",
    changelog_config: Mapping[str, str] | None = None,
) -> VersionedSpec:
    """Specify a versioned store: the values of each key over time.

    Args:
        name: Letters, digits, dots, dashes and underscores.
        key: Serde of the keys.
        value: Serde of the values.
        history_retention: How far back ``get(key, as_of)`` can look; the latest version of a key never expires.
        engine: What holds the local copy; None is the application's setting.
        changelog: "kafka" publishes the changes to a changelog topic as well.
        changelog_config: Further configuration of that topic by Kafka's names, as ``{"min.insync.replicas": "2"}``.

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
        changelog_config=changelog_config or {},
    )
