"""Opening: creates a task's store from its specification, over the byte stores of the task."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from millstream.core.ports import ByteStores
from millstream.core.state.contract import Alone, Store, Surroundings
from millstream.core.state.expiry import ExpiringRows, index_name
from millstream.core.state.keyvalue import KeyValueStore, Overlay, PlainRows
from millstream.core.state.lru import LruRows
from millstream.core.state.objects import Objects
from millstream.core.state.session import SessionStore
from millstream.core.state.versioned import VersionedStore
from millstream.core.state.window import WindowStore
from millstream.core.topology.stores import (
    KeyValueSpec,
    LruSpec,
    SessionSpec,
    StoreSpec,
    VersionedSpec,
    WindowSpec,
)

_NOTHING: Mapping[str, Any] = {}


def open_store(
    spec: StoreSpec,
    stores: ByteStores,
    task: Surroundings | None = None,
    memory: Mapping[str, Any] = _NOTHING,
) -> Any:
    r"""Open a store of a task.

    Args:
        task: Provides stream time and counts dropped records; None for a store outside a task.
        memory: The last return value of the store's ``memory()``.

    Example:
        >>> from millstream.core.model import serdes
        >>> from millstream.core.topology.stores import key_value
        >>> from millstream.core.state.memory import MemoryStores
        >>> counts = open_store(key_value("counts", serdes.string, serdes.int64), MemoryStores())
        >>> counts.put("a", 1)
        >>> counts.drain().changes
        {'counts': [(b'a', b'\x00\x00\x00\x00\x00\x00\x00\x01')]}
    """
    return _open(spec, stores, task or Alone(), memory)


@singledispatch
def _open(spec: StoreSpec, stores: ByteStores, task: Surroundings, memory: Mapping[str, Any]) -> Store:
    raise NotImplementedError(f"there is no store for {type(spec).__name__}")


@_open.register
def _(spec: KeyValueSpec, stores: ByteStores, task: Surroundings, memory: Mapping[str, Any]) -> Store:
    if spec.ttl_ms is None:
        objects = Objects[Any, Any](spec)
        overlay = Overlay(objects.values, stores.open(spec.name))
        return KeyValueStore(spec, objects, PlainRows(spec.name, overlay))
    objects = Objects[Any, Any](spec, more_stamps=1)
    overlay = Overlay(objects.values, stores.open(spec.name))
    index = stores.open(index_name(spec.name))
    return KeyValueStore(spec, objects, ExpiringRows(spec.name, overlay, index, spec.ttl_ms, task))


@_open.register
def _(spec: LruSpec, stores: ByteStores, task: Surroundings, memory: Mapping[str, Any]) -> Store:
    objects = Objects[Any, Any](spec)
    overlay = Overlay(objects.values, stores.open(spec.name))
    return KeyValueStore(spec, objects, LruRows(spec.name, overlay, stores, spec.capacity, memory))


@_open.register
def _(spec: WindowSpec, stores: ByteStores, task: Surroundings, memory: Mapping[str, Any]) -> Store:
    return WindowStore[Any, Any](spec, stores, task, memory)


@_open.register
def _(spec: SessionSpec, stores: ByteStores, task: Surroundings, memory: Mapping[str, Any]) -> Store:
    return SessionStore[Any, Any](spec, stores, task, memory)


@_open.register
def _(spec: VersionedSpec, stores: ByteStores, task: Surroundings, memory: Mapping[str, Any]) -> Store:
    return VersionedStore[Any, Any](spec, stores, task, memory)
