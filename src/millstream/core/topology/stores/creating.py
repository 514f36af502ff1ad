"""The functions of ``ms.stores`` that specify a store: the classes of the kinds.

Type checkers see functions, whose results know the types of the store: with ``timestamped``, its values are ``ValueAndTimestamp``. A
class with type parameters could not say that, and each mention of it would have to name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, Unpack, overload

from millstream.core.model.durations import Duration
from millstream.core.model.record import K, V, ValueAndTimestamp
from millstream.core.model.serdes import Serde
from millstream.core.topology.stores.interfaces import (
    KeyValueStore,
    SessionStore,
    VersionedKeyValueStore,
    WindowStore,
)
from millstream.core.topology.stores.specs import (
    Changelog,
    Engine,
    KeyValueSpec,
    LruSpec,
    Order,
    SessionSpec,
    StoreOf,
    VersionedSpec,
    WindowSpec,
)


class _Common(TypedDict, total=False):
    engine: Engine | None
    changelog: Changelog
    changelog_config: Mapping[str, str]
    cache: bool


class _KeyValue(_Common, total=False):
    ttl: Duration | None


class _Lru(_Common, total=False):
    capacity: Required[int]


class _Session(_Common, total=False):
    retention: Required[Duration]
    order: Order
    strict: bool


class _Window(_Session, total=False):
    size: Required[Duration]
    retain_duplicates: bool


class _Versioned(_Common, total=False):
    history_retention: Required[Duration]


if TYPE_CHECKING:

    @overload
    def key_value(
        name: str,
        key: Serde[K],
        value: Serde[V],
        *,
        timestamped: Literal[False] = ...,
        **options: Unpack[_KeyValue],
    ) -> StoreOf[KeyValueStore[K, V]]: ...
    @overload
    def key_value(
        name: str, key: Serde[K], value: Serde[V], *, timestamped: Literal[True], **options: Unpack[_KeyValue]
    ) -> StoreOf[KeyValueStore[K, ValueAndTimestamp]]: ...
    @overload
    def key_value(
        name: str, key: Serde[K], value: Serde[V], *, timestamped: bool, **options: Unpack[_KeyValue]
    ) -> StoreOf[KeyValueStore[K, Any]]: ...
    def key_value(name: str, key: Serde[K], value: Serde[V], **options: Any) -> StoreOf[Any]: ...

    @overload
    def lru(
        name: str,
        key: Serde[K],
        value: Serde[V],
        *,
        timestamped: Literal[False] = ...,
        **options: Unpack[_Lru],
    ) -> StoreOf[KeyValueStore[K, V]]: ...
    @overload
    def lru(
        name: str, key: Serde[K], value: Serde[V], *, timestamped: Literal[True], **options: Unpack[_Lru]
    ) -> StoreOf[KeyValueStore[K, ValueAndTimestamp]]: ...
    @overload
    def lru(
        name: str, key: Serde[K], value: Serde[V], *, timestamped: bool, **options: Unpack[_Lru]
    ) -> StoreOf[KeyValueStore[K, Any]]: ...
    def lru(name: str, key: Serde[K], value: Serde[V], **options: Any) -> StoreOf[Any]: ...

    @overload
    def window(
        name: str,
        key: Serde[K],
        value: Serde[V],
        *,
        timestamped: Literal[False] = ...,
        **options: Unpack[_Window],
    ) -> StoreOf[WindowStore[K, V]]: ...
    @overload
    def window(
        name: str, key: Serde[K], value: Serde[V], *, timestamped: Literal[True], **options: Unpack[_Window]
    ) -> StoreOf[WindowStore[K, ValueAndTimestamp]]: ...
    @overload
    def window(
        name: str, key: Serde[K], value: Serde[V], *, timestamped: bool, **options: Unpack[_Window]
    ) -> StoreOf[WindowStore[K, Any]]: ...
    def window(name: str, key: Serde[K], value: Serde[V], **options: Any) -> StoreOf[Any]: ...

    @overload
    def session(
        name: str,
        key: Serde[K],
        value: Serde[V],
        *,
        timestamped: Literal[False] = ...,
        **options: Unpack[_Session],
    ) -> StoreOf[SessionStore[K, V]]: ...
    @overload
    def session(
        name: str, key: Serde[K], value: Serde[V], *, timestamped: Literal[True], **options: Unpack[_Session]
    ) -> StoreOf[SessionStore[K, ValueAndTimestamp]]: ...
    @overload
    def session(
        name: str, key: Serde[K], value: Serde[V], *, timestamped: bool, **options: Unpack[_Session]
    ) -> StoreOf[SessionStore[K, Any]]: ...
    def session(name: str, key: Serde[K], value: Serde[V], **options: Any) -> StoreOf[Any]: ...

    def versioned(
        name: str, key: Serde[K], value: Serde[V], **options: Unpack[_Versioned]
    ) -> StoreOf[VersionedKeyValueStore[K, V]]: ...

else:
    key_value = KeyValueSpec
    lru = LruSpec
    window = WindowSpec
    session = SessionSpec
    versioned = VersionedSpec
