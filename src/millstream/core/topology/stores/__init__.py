"""Stores: their specifications, their storage, and what processors see of them. Users import this package as ``ms.stores``."""

from millstream.core.topology.stores.creating import key_value, lru, session, versioned, window
from millstream.core.topology.stores.interfaces import (
    KeyValueStore,
    SessionStore,
    VersionedKeyValueStore,
    WindowStore,
)
from millstream.core.topology.stores.options import StoreLike, StoreOptions
from millstream.core.topology.stores.specs import LATEST, Changelog, Engine, Order, StoreSpec
from millstream.core.topology.stores.specs import KeyValueSpec as KeyValueSpec
from millstream.core.topology.stores.specs import LruSpec as LruSpec
from millstream.core.topology.stores.specs import OperatorUse as OperatorUse
from millstream.core.topology.stores.specs import SessionSpec as SessionSpec
from millstream.core.topology.stores.specs import SlicedSpec as SlicedSpec
from millstream.core.topology.stores.specs import StoreOf as StoreOf
from millstream.core.topology.stores.specs import TimedSpec as TimedSpec
from millstream.core.topology.stores.specs import VersionedSpec as VersionedSpec
from millstream.core.topology.stores.specs import WindowSpec as WindowSpec
from millstream.core.topology.stores.specs import name_of as name_of

__all__ = [
    "LATEST",
    "Changelog",
    "Engine",
    "KeyValueStore",
    "Order",
    "SessionStore",
    "StoreLike",
    "StoreOptions",
    "StoreSpec",
    "VersionedKeyValueStore",
    "WindowStore",
    "key_value",
    "lru",
    "options",
    "session",
    "versioned",
    "window",
]

options = StoreOptions
