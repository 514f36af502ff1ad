"""Entry keys: the record key to which an entry of a byte store belongs.

State can be divided among key ranges only if each entry belongs to exactly one record key and contains the bytes of that key in the
topic, because these bytes determine the key range. Stores whose entries belong to several keys are refused, as are stores whose
serde may write bytes that differ from those in the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from millstream.core.model import serdes
from millstream.core.model.errors import IncompatibleTopologyError
from millstream.core.model.serdes import Serde, window_bytes
from millstream.core.ports import store_of
from millstream.core.state.expiry import index_name
from millstream.core.state.keys import split
from millstream.core.topology import nodes as n
from millstream.core.topology import window_nodes as w
from millstream.core.topology.layout import sources_of_stores
from millstream.core.topology.plan import Plan, SubTopology
from millstream.core.topology.stores import KeyValueSpec, SessionSpec, StoreSpec, WindowSpec

EntryKey = Callable[[bytes], bytes]
"""Extracts the serialised record key from the key of an entry."""

_EXACT: Final = (serdes.int16, serdes.int32, serdes.float64)
"""Serdes that reproduce the bytes they have read, besides those with ``verbatim``."""
_EXACT_IN_INTERNAL_TOPICS: Final = (serdes.json, serdes.uuid)
"""Serdes that reproduce the bytes they have read, provided that the same serde wrote them."""
_TIME_BYTES: Final = 8


@dataclass(frozen=True)
class EntryKeys:
    """Finds the record key of each entry in the stores of a sub-topology.

    Attributes:
        of_stores: One function per store, or per byte store if the byte stores of a store use different entry keys.
    """

    of_stores: dict[str, EntryKey] = field(default_factory=dict)

    def of(self, byte_store: str) -> EntryKey:
        """Return the function for the entries of a byte store.

        Raises:
            IncompatibleTopologyError: If the topology does not have the store.
        """
        found = self.of_stores.get(byte_store) or self.of_stores.get(store_of(byte_store))
        if found is None:
            raise IncompatibleTopologyError(
                f"the checkpoint has a store {store_of(byte_store)!r}, which this topology does not have. Edit the topology in one "
                "start, with parallelism= as it was, and change parallelism= in a later one"
            )
        return found


def entry_keys(plan: Plan, sub: SubTopology) -> EntryKeys:
    """Return the functions that extract the record keys from the entries of a sub-topology's stores.

    Raises:
        IncompatibleTopologyError: If the content of a store cannot be divided by key.
    """
    for reason in _obstacles(plan, sub):
        raise IncompatibleTopologyError(
            f"the state of sub-topology {sub.id} cannot be divided into key ranges: {reason}. Leave parallelism= as it was; or start "
            "over with parallelism=, after `millstream reset` or under another application id"
        )
    keys = EntryKeys()
    for spec in sub.stores.values():
        keys.of_stores[spec.name] = _of_spec(spec)
        if isinstance(spec, KeyValueSpec) and spec.ttl_ms is not None:
            keys.of_stores[index_name(spec.name)] = _stripping_key(_TIME_BYTES)
    for node in sub.nodes.values():
        if isinstance(node, w.SessionAggregate) and node.open is not None:
            keys.of_stores[node.open.name] = _stripping_key(2 * _TIME_BYTES)
        elif isinstance(node, w.Suppress):
            windows = _window_bytes(sub, node)
            keys.of_stores[node.buffer.name] = _stripping_key(_TIME_BYTES, windows)
            if node.buffer_times is not None:
                keys.of_stores[node.buffer_times.name] = _stripping_key(0, windows)
    return keys


def _of_spec(spec: StoreSpec) -> EntryKey:
    if isinstance(spec, WindowSpec):
        if spec.by_time:
            return _stripping_key(_TIME_BYTES)
        width = 12 if spec.retain_duplicates else 8
        return lambda entry: split(entry, width)[0]
    if isinstance(spec, SessionSpec):
        if spec.by_time:
            return lambda entry: split(entry[_TIME_BYTES:], 8)[0]
        return lambda entry: split(entry, 16)[0]
    return same_key


def same_key(entry: bytes) -> bytes:
    """Return the key of an entry in a store without times: the record key itself."""
    return entry


def _stripping_key(front: int, back: int = 0) -> EntryKey:
    """Return a function that strips ``front`` leading and ``back`` trailing bytes."""
    return lambda entry: entry[front : len(entry) - back]


def _obstacles(plan: Plan, sub: SubTopology) -> Iterator[str]:
    """Yield the reasons why stores cannot be divided by key."""
    for node in sub.nodes.values():
        if node.store_names and not node.divisible:
            yield f"the stores of node {node.name!r} ({type(node).__name__}) do not support it"
    for spec in sub.stores.values():
        if not isinstance(spec, (KeyValueSpec, WindowSpec, SessionSpec)):
            yield f"store {spec.name!r} is of the kind {spec.kind}, which does not support it"
        if spec.name in plan.changelogs:
            yield f"the changelog topic of store {spec.name!r} has a partition per task, and would have to be divided too"
    for name, sources in sources_of_stores(sub).items():
        key = _key_in_store(sub, name)
        for source in sources:
            if key is not None and not _is_exact(source, key, plan.internal_topics):
                yield (
                    f"store {name!r} writes keys with serdes.{key.name}, so the bytes of a key may differ from those that "
                    f"{source.name!r} reads with serdes.{source.key.name}, and its key range is not known"
                )


def _key_in_store(sub: SubTopology, store: str) -> Serde[Any] | None:
    """Return the serde of the record keys in a store, or None if another check covers their bytes.

    The stores of processors are checked when they are used. A buffer has the keys of the upstream aggregation or table.
    """
    users = [node for node in sub.nodes.values() if store in node.store_names]
    for node in users:
        if isinstance(node, w.Suppress):
            return None if _window_bytes(sub, node) else node.key
        if isinstance(node, w.SessionAggregate):
            return node.store.key
    return None if all(isinstance(node, n.Process) for node in users) else sub.stores[store].key


def _window_bytes(sub: SubTopology, node: w.Suppress) -> int:
    """Return the number of bytes that the window occupies after the record key, in the keys of a suppressed table."""
    sources = sources_of_stores(sub)[node.buffer.name]
    return 0 if any(source.key == node.key for source in sources) else window_bytes(node.key)


def _is_exact(source: n.Source, key: Serde[Any], internal: Collection[str]) -> bool:
    """Return whether a serde reproduces the key bytes that a source has read."""
    if source.key != key:
        return False
    own = all(topic in internal for topic in source.topics)
    return key.verbatim is not None or key in _EXACT or (own and key in _EXACT_IN_INTERNAL_TOPICS)
