"""Checks of the nodes and stores of a topology."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any

from millstream.core.model.errors import TopologyError
from millstream.core.model.topics import checked_name
from millstream.core.topology.async_nodes import Asynchronous, ProcessAsync
from millstream.core.topology.nodes import Node, Sink, Source
from millstream.core.topology.patterns import check_overlap
from millstream.core.topology.stores import KeyValueSpec, StoreSpec


def check_node(node: Node, nodes: Mapping[str, Node], global_nodes: Collection[str]) -> None:
    """Check that a node can be added; ``global_nodes`` contains the names of the nodes that fill global stores."""
    if not isinstance(node.name, str) or not node.name:
        raise TopologyError(f"{node.name!r} cannot be the name of a node: use a non-empty string")
    if node.name in nodes:
        raise TopologyError(f"two nodes have the name {node.name!r}; node names must be unique")
    if isinstance(node, Source):
        _check_reset(node)
        _check_topics(node, [other for other in nodes.values() if isinstance(other, Source)])
    elif not node.parents:
        raise TopologyError(f"node {node.name!r} has no parents, so no record can ever reach it")
    if isinstance(node, Sink) and isinstance(node.topic, str):
        checked_name(node.topic, "topic")
    if isinstance(node, ProcessAsync):
        _check_stores(node, nodes.values())
    if not isinstance(node, Asynchronous):
        check_plain(node.name, vars(node).values())
    for parent in node.parents:
        _check_parent(node, parent, nodes, global_nodes)


def _check_reset(node: Source) -> None:
    reset = node.offset_reset
    known = (
        reset >= timedelta()
        if isinstance(reset, timedelta)
        else reset in (None, "earliest", "latest", "none")
    )
    if not known:
        raise TopologyError(
            f"source {node.name!r}: offset_reset must be 'earliest', 'latest', 'none', a timedelta that is not negative, or None, not {reset!r}"
        )


def _check_stores(node: ProcessAsync, others: Iterable[Node]) -> None:
    for other in others:
        if isinstance(other, ProcessAsync) and (
            shared := [store for store in node.stores if store in other.stores]
        ):
            raise TopologyError(
                f"{other.name!r} and {node.name!r} both use store {shared[0]!r}: the entry of a key is sent with a call, so calls of two "
                "operators for a key would overwrite each other's writes. Use one operator, or write in a downstream processor"
            )


def _check_topics(node: Source, sources: list[Source]) -> None:
    if not node.topics and node.pattern is None:
        raise TopologyError(f"source {node.name!r} reads no topic")
    for topic in node.topics:
        checked_name(topic, "topic")
        for other in sources:
            if topic in other.topics:
                raise TopologyError(
                    f"topic {topic!r} has two sources, {other.name!r} and {node.name!r}; "
                    "read it once and use the stream in both places"
                )
    check_overlap(node, sources)


def _check_parent(node: Node, name: str, nodes: Mapping[str, Node], global_nodes: Collection[str]) -> None:
    parent = nodes.get(name)
    if parent is None:
        raise TopologyError(
            f"node {node.name!r} has the parent {name!r}, which does not exist; "
            f"add parents before their children{existing_names(nodes)}"
        )
    if name in global_nodes:
        raise TopologyError(
            f"node {node.name!r} has the parent {name!r}, which fills a global store and has no other output"
        )
    if isinstance(parent, Sink):
        raise TopologyError(f"node {node.name!r} has the sink {name!r} as its parent; a sink has no output")


def check_complete(
    nodes: Mapping[str, Node], stores: Mapping[str, StoreSpec], global_nodes: Collection[str]
) -> None:
    """Run the checks that need all nodes and stores; ``global_nodes`` contains the names of the nodes that fill global stores.

    Raises:
        TopologyError: If there is no source, a store is missing or unused, or a global store is used like a store of the task.
    """
    if not any(isinstance(node, Source) for node in nodes.values()):
        raise TopologyError("the topology has no source, so it would process nothing; begin with stream(...)")
    for node in nodes.values():
        for store in node.store_names:
            if store not in stores:
                raise TopologyError(
                    f"{node.name!r} uses store {store!r}, which was never added; add it with add_state_store(...)"
                    f"{existing_names(stores)}"
                )
    _check_global_stores(nodes, global_nodes)
    _check_stores_of_calls(nodes)
    used = {store for node in nodes.values() for store in node.store_names}
    for store in stores:
        if store not in used:
            raise TopologyError(f"store {store!r} is not connected to any processor; connect it or remove it")


def _check_stores_of_calls(nodes: Mapping[str, Node]) -> None:
    """Refuse that an operator writes to an entry of a store while it is away with a call of ``process_async``.

    An operator behind the ``process_async`` alone writes when the call has ended.
    """
    for node in nodes.values():
        if not isinstance(node, ProcessAsync) or not node.stores:
            continue
        behind = {node.name}
        for other in nodes.values():  # parents come before their children
            if other.parents and behind.issuperset(other.parents):
                behind.add(other.name)
            shared = [store for store in node.stores if store in other.store_names]
            if shared and other.name not in behind:
                raise TopologyError(
                    f"{other.name!r} uses store {shared[0]!r} of {node.name!r}, but does not receive its records from {node.name!r} alone: "
                    "the entry of a key is sent with a call, so what another operator writes during the call would be overwritten. Use the "
                    f"store only in {node.name!r} and in processors behind it, or use a processor that issues calls"
                )


def _check_global_stores(nodes: Mapping[str, Node], global_nodes: Collection[str]) -> None:
    filled_by = {
        store: node.name for node in nodes.values() if node.name in global_nodes for store in node.store_names
    }
    for node in nodes.values():
        for store in node.store_names:
            if filled_by.get(store, node.name) != node.name:
                raise TopologyError(
                    f"{node.name!r} uses store {store!r} as its own, but this is a global store, which is filled from its "
                    "topic. A processor can read a global store without being connected to it; no other operator can use "
                    "it"
                )


def existing_names(names: Iterable[str]) -> str:
    """Return the part of a message that lists existing names, or an empty string if there are none."""
    listed = ", ".join(sorted(names))
    return f" (there are: {listed})" if listed else ""


def check_kept(store: StoreSpec, what: str) -> None:
    """Check that a store can be filled from a topic.

    Raises:
        TopologyError: If the store is of another kind, or has a changelog topic.
    """
    if not isinstance(store, KeyValueSpec) or store.ttl_ms is not None:
        raise TopologyError(
            f"{what} store {store.name!r}: a {what} store must be a key-value store without ttl, not {store.kind}"
        )
    if store.changelog != "spark":
        raise TopologyError(
            f"{what} store {store.name!r}: leave changelog={store.changelog!r} out; its topic is its changelog"
        )


def check_takes(function: Callable[..., Any], takes: Iterable[str]) -> None:
    """Check that a function can be called with the given arguments. Functions without a signature pass.

    Args:
        takes: Names of the positional arguments, for the message.

    Example:
        >>> check_takes(len, ["value"])
        >>> check_takes(lambda value: value, ["key", "value"])
        Traceback (most recent call last):
        ...
        millstream.core.model.errors.TopologyError: '<lambda>' is called with (key, value), but it takes (value)
    """
    given = tuple(takes)
    try:
        known = signature(function)
    except (TypeError, ValueError):  # built-in functions
        return
    try:
        known.bind(*given)
    except TypeError:
        name = getattr(function, "__qualname__", repr(function))
        own = ", ".join(str(each.replace(annotation=Parameter.empty)) for each in known.parameters.values())
        raise TopologyError(f"{name!r} is called with ({', '.join(given)}), but it takes ({own})") from None


def check_plain(node: str, parts: Iterable[object]) -> None:
    """Reject coroutine functions where they would not be awaited.

    Raises:
        TopologyError: If an attribute is a coroutine function, or a tuple that contains one.
    """
    for part in parts:
        for each in part if isinstance(part, tuple) else (part,):
            if iscoroutinefunction(each):
                raise TopologyError(
                    f"node {node!r}: {each.__qualname__!r} is a coroutine function, which this operator would not await. "
                    "Make external calls with map_values_async, foreach_async or process_async, or issue them in a "
                    "processor"
                )
