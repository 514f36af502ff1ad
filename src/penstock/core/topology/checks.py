"""Checks of what a topology is given, node by node and store by store."""

from __future__ import annotations

from datetime import timedelta

from penstock.core.model.errors import TopologyError
from penstock.core.topology.nodes import Source
from penstock.core.topology.specs import KeyValueSpec, StoreSpec


def check_reset(node: Source) -> None:
    """Refuse a source that cannot know where to begin.

    Raises:
        TopologyError: If its offset reset is impossible.
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
    """Refuse a store that cannot be filled from a topic of its own.

    Args:
        store: The store.
        what: What it is to be: "global" or "read-only".

    Raises:
        TopologyError: If it is of another kind, or has a changelog topic beside.
    """
    if not isinstance(store, KeyValueSpec) or store.ttl_ms is not None:
        raise TopologyError(
            f"{what} store {store.name!r}: a {what} store is a key-value store without ttl, not {store.kind}"
        )
    if store.changelog != "spark":
        raise TopologyError(
            f"{what} store {store.name!r}: leave changelog={store.changelog!r} out; its topic is its changelog"
        )
