"""Asynchronous operators: ``KStream.map_values_async``, ``foreach_async`` and ``process_async``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from millstream.core.asynchronous.effects import Acting, ActingOnBatch, Performing
from millstream.core.dsl.graph import check_no_history, check_no_retention
from millstream.core.dsl.handle import StreamHandle
from millstream.core.model.calls import Calls
from millstream.core.model.errors import TopologyError
from millstream.core.topology.async_nodes import Carried, ForeachAsync, MapValuesAsync, ProcessAsync, carried
from millstream.core.topology.checks import check_takes
from millstream.core.topology.stores import KeyValueSpec, LruSpec, StoreLike


class AsyncFunction(NamedTuple):
    """A user function with the options of its operator."""

    function: Callable[..., Any]
    calls: Calls
    store: StoreLike | None
    name: str | None


def map_values_async(stream: StreamHandle[Any, Any], function: AsyncFunction, *, with_key: bool) -> str:
    """Add an operator that calls a function to compute new values, and return its node."""
    check_takes(function.function, ("key", "value") if with_key else ("value",))
    node, unfinished = _unfinished(stream, "map-values-async", function)
    return stream._graph.add(
        MapValuesAsync(node, (stream._node,), function.function, function.calls, unfinished, with_key)
    )


def foreach_async(stream: StreamHandle[Any, Any], function: AsyncFunction) -> None:
    """Add an operator that calls a function at the end of a stream."""
    check_takes(function.function, ("key", "value"))
    node, unfinished = _unfinished(stream, "foreach-async", function)
    acting = Acting if function.calls.batch is None else ActingOnBatch
    called = acting(function.function)
    stream._graph.add(ForeachAsync(node, (stream._node,), called, function.calls, unfinished))


def process_async(stream: StreamHandle[Any, Any], function: AsyncFunction, stores: Iterable[str]) -> str:
    """Add an operator that calls a function that writes and forwards, and return its node.

    Raises:
        TopologyError: If a store is not a key-value store, calls with stores may overlap, or calls take batches.
    """
    if function.calls.batch is not None:
        raise TopologyError(
            "process_async(batch=...): a context belongs to one record; use map_values_async for calls with many records"
        )
    graph, connected = stream._graph, tuple(stores)
    for store in connected:
        spec = graph.topology.stores.get(store)
        if spec is None or not isinstance(spec, (KeyValueSpec, LruSpec)):
            raise TopologyError(
                f"process_async(stores=[{store!r}]): there is no key-value store with this name; add it with "
                "add_state_store(...) first. Stores of other kinds cannot be used, because they have no single entry per "
                "key to send with a call"
            )
    order = function.calls.order
    if connected and order != "key":
        raise TopologyError(
            f"process_async(stores=[...], order={order!r}): the entry of a key is sent with its call, so concurrent calls for a key "
            "would overwrite each other's writes. Use order='key', or write in a downstream processor"
        )
    check_takes(function.function, ("record", "context"))
    node, unfinished = _unfinished(stream, "process-async", function)
    called = Performing(function.function)
    return graph.add(ProcessAsync(node, (stream._node,), called, function.calls, unfinished, connected))


def _unfinished(
    stream: StreamHandle[Any, Any], operation: str, function: AsyncFunction
) -> tuple[str, Carried]:
    """Return the name of an operator's node, and its stores of unfinished records."""
    graph, (_, _, store, name) = stream._graph, function
    node = graph.name(f"KSTREAM-{operation.replace('-', '').upper()}", name)
    if name is not None and store is None:
        store = f"{name}-unfinished"
    options = graph.store_options(
        store, lambda: f"{node}-unfinished", stream._path, f"{operation}-unfinished", name
    )
    check_no_history(options)
    check_no_retention(options)
    return node, carried(options, *stream._serdes())
