"""Checks of the nodes, stores, functions and suppliers of a topology."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final

from millstream.core.model.arguments import arguments_problem, is_coroutine, kind_problem
from millstream.core.model.errors import TopologyError
from millstream.core.model.topics import checked_name
from millstream.core.topology.async_nodes import Asynchronous, ProcessAsync
from millstream.core.topology.global_nodes import GlobalJoin
from millstream.core.topology.nodes import (
    FlatMap,
    FlatMapValues,
    MapValues,
    Materialised,
    Node,
    Repartition,
    Sink,
    Source,
    TableMapValues,
)
from millstream.core.topology.patterns import check_overlap
from millstream.core.topology.processor import Processor, ValueTransformer
from millstream.core.topology.stores import KeyValueSpec, StoreSpec
from millstream.core.topology.window_nodes import CalendarAggregate

_BASES: Final[tuple[tuple[type, str, str], ...]] = (
    (Processor, "process", "self, record"),
    (ValueTransformer, "transform", "self, key, value"),
)
"""Base classes, with the method that a derived class must define, and its parameters."""
_TAKING_ITERABLES: Final = (FlatMap, FlatMapValues, Repartition, Sink)
"""Nodes with a function that returns an iterable. A partitioner may return several partitions."""


def check_node(node: Node, nodes: Mapping[str, Node], global_nodes: Collection[str]) -> None:
    """Check that a node can be added; ``global_nodes`` contains the names of the nodes that fill global stores."""
    if not isinstance(node.name, str) or not node.name:
        raise TopologyError(f"{node.name!r} cannot be the name of a node: use a non-empty string")
    if node.name in nodes:
        named = (
            "; the node is named after the store of its aggregation" if isinstance(node, Repartition) else ""
        )
        raise TopologyError(
            f"two nodes have the name {node.name!r}; node names must be unique{named}. Set another name= or store= for one of them"
        )
    if isinstance(node, Source):
        _check_reset(node)
        _check_topics(node, [other for other in nodes.values() if isinstance(other, Source)])
    elif not node.parents:
        raise TopologyError(f"node {node.name!r} has no parents, so no record can ever reach it")
    if isinstance(node, Sink) and isinstance(node.topic, str):
        checked_name(node.topic, "topic")
    if isinstance(node, ProcessAsync):
        _check_stores(node, nodes.values())
    check_functions(node)
    if isinstance(node, Materialised) and not node.store.value.immutable:
        _check_initializer(node.name, getattr(node, "initializer", None))
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


def _check_initializer(node: str, initializer: Callable[[], object] | None) -> None:
    """Refuse an initializer that returns one object for all keys, if it can be changed in place.

    It is called twice, as the supplier of a processor is. An exception is left to the record that needs the first aggregate.
    """
    if initializer is None:
        return
    try:
        first, second = initializer(), initializer()
    except Exception:
        return
    if first is second and not _is_compared_by_value(first):
        raise TopologyError(
            f"node {node!r}: the initializer returns the same {type(first).__name__} at each call, so all keys would share one aggregate; "
            "create a new one in it, as in `lambda: []`"
        )


def _is_compared_by_value(made: object) -> bool:
    """Whether an object is hashed by its value, which therefore should not change: a number, text, a tuple of these, an enum member."""
    try:
        hash(made)
    except TypeError:
        return False
    return made is None or type(made).__hash__ is not object.__hash__


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
    if node.pattern is not None and isinstance(node.pattern.pattern, bytes):
        raise TopologyError(
            f"source {node.name!r}: the names of topics are str, but {node.pattern!r} matches bytes; leave the b before the pattern out"
        )
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


def check_takes(function: Callable[..., Any], takes: Sequence[str]) -> None:
    """Check that a function, which may be a coroutine function, has results and can be called with the given arguments.

    Functions without a signature pass.

    Args:
        takes: Names of the positional arguments, for the message.

    Example:
        >>> check_takes(len, ["value"])
        >>> check_takes(lambda value: value, ["key", "value"])
        Traceback (most recent call last):
        ...
        millstream.core.model.errors.TopologyError: '<lambda>' is called with (key, value), but it takes (value)
    """
    problem = None if is_coroutine(function) else kind_problem(function)
    problem = problem or arguments_problem(function, takes)
    if problem is not None:
        raise TopologyError(problem)


def check_with_key(
    function: Callable[..., Any], takes: Sequence[str], *, with_key: bool, iterable: bool = False
) -> None:
    """Check the kind and the arguments of a function that takes the key, as its first argument, only if the option ``with_key`` is set.

    Args:
        takes: Names of the other arguments.
        iterable: Whether it returns an iterable, so that it may be a generator function.
    """
    with_it = ("key", *takes)
    problem = kind_problem(function, iterable=iterable)
    if problem is None:
        problem = arguments_problem(function, with_it if with_key else takes)
        fits_otherwise = arguments_problem(function, takes if with_key else with_it) is None
        if problem is not None and fits_otherwise:
            problem += f"; {'leave with_key=True out' if with_key else 'set with_key=True'}"
    if problem is not None:
        raise TopologyError(problem)


def check_functions(node: Node) -> None:
    """Reject functions of a node whose calls have no result, and functions that take other arguments.

    Most methods of the DSL check the arguments by their annotations. Here, only those functions are checked whose arguments depend on
    other options.

    Raises:
        TopologyError: If an attribute is such a function, or a tuple that contains one.
    """
    if isinstance(node, Asynchronous):
        return
    iterable = isinstance(node, _TAKING_ITERABLES)
    _check_kinds(node.name, vars(node).values(), iterable=iterable)
    if isinstance(node, CalendarAggregate):
        _check_kinds(node.name, (node.windows.windows_for,), iterable=True)
    if isinstance(node, (MapValues, FlatMapValues, TableMapValues)):
        check_with_key(node.mapper, ("value",), with_key=node.with_key, iterable=iterable)
    if isinstance(node, GlobalJoin):
        check_takes(node.selector, ("key", "value"))


def _check_kinds(node: str, parts: Iterable[object], *, iterable: bool) -> None:
    for part in parts:
        for each in part if isinstance(part, tuple) else (part,):
            if callable(each) and (problem := kind_problem(each, iterable=iterable)) is not None:
                raise TopologyError(f"node {node!r}: {problem}")


def provided_stores(name: str, supplier: Callable[[], Any]) -> tuple[StoreSpec, ...]:
    """Return the stores that a supplier provides in its attribute ``stores``, or that its method of that name returns.

    Source: ``org.apache.kafka.streams.processor.ConnectedStoreProvider`` (KIP-401).
    """
    provided = getattr(supplier, "stores", ())
    try:
        stores = tuple(provided() if callable(provided) else provided)
    except TypeError:
        stores = (provided,)
    for store in stores:
        if not isinstance(store, StoreSpec):
            raise TopologyError(
                f"processor {name!r}: the attribute 'stores' of a supplier, or the result of its static method of that name, must "
                f"contain the specifications of its stores, such as ms.stores.key_value(...), not {store!r}; pass names of stores that "
                "are added elsewhere as stores=[...] beside the supplier, and rename other attributes"
            )
    return stores


def checked_supplier(name: str, supplier: Callable[[], Any]) -> Callable[[], Any]:
    """Return a supplier if it can create a processor, or a value transformer, for each task.

    A function is called twice to check that it creates a new object each time. A class always does.

    Raises:
        TopologyError: If the supplier is itself a processor, fails, or returns the same object twice.

    Source: ``ApiUtils.checkSupplier``.
    """
    if _is_processor(supplier) and not isinstance(supplier, type):
        raise TopologyError(
            f"processor {name!r}: pass the class or a function that creates a processor, not {supplier!r}; "
            "every task needs its own processor"
        )
    if isinstance(supplier, type):
        if not any("__init__" in vars(cls) for cls in supplier.__mro__[:-1]):
            check_defined(name, supplier)  # an __init__ may give the objects other methods than the class has
        return supplier
    made = supplied(name, supplier)
    if _is_processor(made) and made is supplier():
        raise TopologyError(
            f"processor {name!r}: the function returns the same processor at each call; create a new one in it, because every task needs "
            "its own processor"
        )
    check_defined(name, made)
    return supplier


def check_defined(name: str, made: object) -> None:
    """Check that a processor or a transformer, or its class, defines the method that is called for each record.

    Raises:
        TopologyError: If it has only the method of the base class.
    """
    cls = made if isinstance(made, type) else type(made)
    for base, method, parameters in _BASES:
        if not issubclass(cls, base):
            continue
        defined = getattr(made, method)
        if getattr(defined, "__func__", defined) is getattr(base, method):
            similar = get_close_matches(method, vars(cls).keys() - {method}, 1)
            hint = f"; is {similar[0]}() meant to be this method?" if similar else ""
            raise TopologyError(
                f"processor {name!r}: {cls.__name__} does not define {method}({parameters}){hint}"
            )


def supplied(name: str, supplier: Callable[[], Any]) -> Any:
    """Call a supplier.

    Raises:
        TopologyError: If it raises an exception.
    """
    try:
        return supplier()
    except Exception as error:
        raise TopologyError(
            f"processor {name!r}: its supplier, which is called without arguments, failed: {type(error).__name__}: {error}. Pass a class, "
            "or a function that creates the processor, such as `lambda: P(x)`"
        ) from error


def _is_processor(made: object) -> bool:
    return hasattr(made, "process") or hasattr(made, "transform")
