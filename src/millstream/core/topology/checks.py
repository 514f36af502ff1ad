"""Checks of the arguments for nodes and stores of a topology."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any

from millstream.core.model.errors import TopologyError
from millstream.core.topology.nodes import Source
from millstream.core.topology.stores import KeyValueSpec, StoreSpec


def check_reset(node: Source) -> None:
    """Check the offset reset of a source.

    Raises:
        TopologyError: If the offset reset is invalid.
    """
    reset = node.offset_reset
    known = (
        reset >= timedelta()
        if isinstance(reset, timedelta)
        else reset in (None, "earliest", "latest", "none")
    )
    if not known:
        raise TopologyError(
            f"source {node.name!r}: offset_reset is 'earliest', 'latest', 'none', a timedelta that is not negative, or None, not {reset!r}"
        )


def check_kept(store: StoreSpec, what: str) -> None:
    """Check that a store can be filled from a topic.

    Args:
        store: The store.
        what: "global" or "read-only", for the message.

    Raises:
        TopologyError: If it is of another kind, or has a changelog topic.
    """
    if not isinstance(store, KeyValueSpec) or store.ttl_ms is not None:
        raise TopologyError(
            f"{what} store {store.name!r}: a {what} store is a key-value store without ttl, not {store.kind}"
        )
    if store.changelog != "spark":
        raise TopologyError(
            f"{what} store {store.name!r}: leave changelog={store.changelog!r} out; its topic is its changelog"
        )


def check_takes(function: Callable[..., Any], takes: Iterable[str]) -> None:
    """Check that a function can be called with the given arguments; functions without a signature pass.

    Args:
        function: The function.
        takes: Names of the positional arguments, for the message.

    Raises:
        TopologyError: If it cannot take them.

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

    Args:
        node: Name of the node.
        parts: Attributes of the node, including functions.

    Raises:
        TopologyError: If an attribute is a coroutine function, or a tuple that contains one.
    """
    for part in parts:
        for each in part if isinstance(part, tuple) else (part,):
            if iscoroutinefunction(each):
                raise TopologyError(
                    f"node {node!r}: {each.__qualname__!r} is a coroutine function, and nobody would wait for it there. Calls of the "
                    "world outside are made by map_values_async, foreach_async and process_async, or issued by a processor"
                )
