"""Asynchronous operators of the DSL; the faces are ``KStream.map_values_async``, ``foreach_async`` and ``process_async``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from millstream.core.model.calls import CallOptions, Calls
from millstream.core.model.durations import Duration
from millstream.core.model.errors import TopologyError
from millstream.core.topology.asynchronous import Carried, ForeachAsync, MapValuesAsync, ProcessAsync, carried
from millstream.core.topology.checks import check_takes
from millstream.core.topology.stores import Kept, KeyValueSpec, LruSpec

if TYPE_CHECKING:
    from millstream.core.dsl.kstream import KStream


def map_values_async(
    stream: KStream[Any, Any],
    function: Callable[..., Any],
    *,
    with_key: bool,
    batch: tuple[int, Duration] | None,
    store: Kept | None,
    name: str | None,
    **options: Unpack[CallOptions],
) -> str:
    """Add what calls a function for new values; give its node."""
    takes = ("key", "value") if with_key else ("value",)
    node, calls, kept = _parts(stream, "map-values-async", function, store, name, options, takes, batch)
    return stream._graph.add(MapValuesAsync(node, (stream._node,), function, calls, kept, with_key))


def foreach_async(
    stream: KStream[Any, Any],
    function: Callable[..., Any],
    *,
    batch: tuple[int, Duration] | None,
    store: Kept | None,
    name: str | None,
    **options: Unpack[CallOptions],
) -> None:
    """Add what calls a function at the end of a stream."""
    takes = ("key", "value")
    node, calls, kept = _parts(stream, "foreach-async", function, store, name, options, takes, batch)
    stream._graph.add(ForeachAsync(node, (stream._node,), function, calls, kept))


def process_async(
    stream: KStream[Any, Any],
    function: Callable[..., Any],
    *,
    stores: Iterable[str],
    store: Kept | None,
    name: str | None,
    **options: Unpack[CallOptions],
) -> str:
    """Add what calls a function that writes and forwards; give its node.

    Raises:
        TopologyError: If a store is no key-value store, if calls with stores may overlap, or if they are to be made in batches.
    """
    if "batch" in options:
        raise TopologyError(
            "process_async(batch=...): a context belongs to one record; use map_values_async for calls of many records"
        )
    graph, connected = stream._graph, tuple(stores)
    for each in connected:
        spec = graph.topology.stores.get(each)
        if spec is None or not isinstance(spec, (KeyValueSpec, LruSpec)):
            raise TopologyError(
                f"process_async(stores=[{each!r}]): there is no key-value store of that name; add it with "
                "add_state_store(...) before. Of other stores there is no one entry that could travel with a record"
            )
    order = options.get("order", "key")
    if connected and order != "key":
        raise TopologyError(
            f"process_async(stores=[...], order={order!r}): the state of a key travels with its call, so calls of a key that overlap "
            "would overwrite each other's writes. Leave order at 'key', or write in a processor behind this one"
        )
    takes = ("record", "context")
    node, calls, kept = _parts(stream, "process-async", function, store, name, options, takes)
    return graph.add(ProcessAsync(node, (stream._node,), function, calls, kept, connected))


def _parts(
    stream: KStream[Any, Any],
    word: str,
    function: Callable[..., Any],
    store: Kept | None,
    name: str | None,
    options: CallOptions,
    takes: tuple[str, ...],
    batch: tuple[int, Duration] | None = None,
) -> tuple[str, Calls, Carried]:
    check_takes(function, takes)
    graph = stream._graph
    calls = Calls(**options, batch=batch)
    node = graph.name(f"KSTREAM-{word.replace('-', '').upper()}", name)
    key, value = stream._key or graph.default_key, stream._value or graph.default_value
    if name is not None and store is None:
        store = f"{name}-unfinished"
    options_of_store = graph.kept_as(
        store, lambda: f"{node}-unfinished", stream._path, f"{word}-unfinished", name
    )
    kept = carried(options_of_store, key, value)
    for spec in kept.stores:
        graph.topology.add_state_store(spec)
    return node, calls, kept
