"""How joins of tables by a foreign key are put into the graph; the face is ``on=`` of ``KTable.join`` and ``left_join``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.core.dsl.graph import FOREIGN_KEY_PARTS, Graph
from millstream.core.dsl.joins import same_builder
from millstream.core.model import serdes
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.subscriptions import SUBSCRIPTION, answer
from millstream.core.topology import joins as nodes
from millstream.core.topology.joins import ForeignKey, Joiner, JoinKind, stores_of_table
from millstream.core.topology.nodes import StreamPartitioner, TableSource
from millstream.core.topology.stores import Kept, StoreOptions, StoreSpec, key_value
from millstream.core.topology.windowed import is_windowed_here

if TYPE_CHECKING:
    from millstream.core.dsl.joinable_table import JoinableTable


class ForeignKeyOptions(NamedTuple):
    """What was given with a join of tables; ``JoinableTable.join`` says what each means."""

    on: Callable[..., Any] | None = None
    partitioner: Callable[[Any, int], int] | None = None
    other_partitioner: Callable[[Any, int], int] | None = None
    ignores_null: bool = False


def foreign_key_of(on: Callable[..., Any], *, with_key: bool) -> ForeignKey:
    """Give a function that takes the key, whether the user's does or not."""
    return on if with_key else lambda key, value: on(value)


def join_tables(
    left: JoinableTable[Any, Any],
    right: JoinableTable[Any, Any],
    joiner: Joiner,
    kind: JoinKind,
    foreign: ForeignKeyOptions,
    value: Serde[Any] | None,
    store: Kept | None,
    name: str | None,
    *,
    with_key: bool,
) -> str:
    """Add a join of two tables by a foreign key; give its last node."""
    assert foreign.on is not None
    graph, on = left._graph, foreign_key_of(foreign.on, with_key=with_key)
    same_builder(graph, right._graph)
    _check_partitions(graph, left, right)
    key, other_key = left._key or graph.default_key, right._key or graph.default_key
    left_value, right_value = left._value or graph.default_value, right._value or graph.default_value
    given = None if store is None else graph.given(store)
    whole = _whole(graph, (left, right), given, name)
    asking = _topic(graph, whole, "subscription-registration")
    subscribing = graph.name(f"{_KIND}-SUBSCRIPTION-REGISTRATION")
    subscribe = nodes.Subscribe(
        subscribing, (left._node,), on, kind, key, left_value, other_key, foreign.ignores_null
    )
    asked = _through_topic(
        graph, asking, (graph.add(subscribe),), other_key, SUBSCRIPTION, foreign.other_partitioner
    )
    subscribed = _name(graph, graph.names.store(f"{_KIND}-SUBSCRIPTION"), whole, "subscriptions")
    both = _answering(
        graph, asked, right, _subscriptions(graph, subscribed, given, key, other_key), key, other_key
    )
    answering = _topic(graph, whole, "subscription-response")
    answered = _through_topic(graph, answering, both, key, answer(right_value), foreign.partitioner)
    resolving = graph.name(f"{_KIND}-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR")
    last = graph.name(f"{_KIND}-OUTPUT", name)
    kept = given or StoreOptions(_name(graph, graph.names.store(f"{_KIND}-OUTPUT"), whole, "store"))
    results = graph.add_store(kept, key, value or graph.default_value)
    left_stores = stores_of_table(graph.topology.nodes, left._node)
    resolve = nodes.Resolve(
        resolving, (answered,), left._node, left_stores, results, left_value, joiner, kind
    )
    graph.add(TableSource(last, (graph.add(resolve),), results))
    graph.begin(last, whole or last, name)
    return last


def _check_partitions(graph: Graph, *sides: JoinableTable[Any, Any]) -> None:
    """Refuse tables whose rows are not in the partitions of their own keys.

    Raises:
        TopologyError: If one is a windowed aggregation, whose rows are in those of the keys without the windows.
    """
    if any(is_windowed_here(graph.topology.nodes, side._node) for side in sides):
        raise TopologyError(
            "a windowed aggregation cannot be joined by a foreign key as it is: what is asked and answered would go to the "
            "partitions of the windowed keys, but the rows are in those of their keys. Bring the rows there first, with "
            "to_stream().repartition().to_table() behind the aggregation"
        )


_KIND: Final = "KTABLE-FK-JOIN"


def _whole(
    graph: Graph, sides: tuple[JoinableTable[Any, Any], ...], given: StoreOptions | None, name: str | None
) -> str | None:
    """Give what topics and stores of the join are called after; None if by numbers."""
    if name is not None or graph.names.numbered:
        return name
    if given is not None:
        return given.name
    return graph.names.kept("", f"{'-'.join(graph.path(side._node) for side in sides)}-join")


def _name(graph: Graph, numbered: str, whole: str | None, part: str) -> str:
    return graph.names.kept(numbered, "") if whole is None else graph.names.part(whole, f"-{part}")


def _topic(graph: Graph, whole: str | None, part: str) -> str:
    return _name(graph, f"{graph.name(f'{_KIND}-{part.upper()}')}-topic", whole, part)


def _answering(
    graph: Graph,
    asked: str,
    right: JoinableTable[Any, Any],
    kept: StoreSpec,
    key: Serde[Any],
    other_key: Serde[Any],
) -> tuple[str, str]:
    """Add the nodes that answer subscriptions: when one comes, and when a row of the right table changes."""
    kind = f"{_KIND}-SUBSCRIPTION-PROCESSOR"
    receiving, _, changing = (graph.name(kind) for _ in range(3))  # Kafka Streams receives and joins in two
    stores = stores_of_table(graph.topology.nodes, right._node)
    subscriptions = nodes.Subscriptions(receiving, (asked,), kept, right._node, stores, key, other_key)
    changes = nodes.SubscribedChanges(changing, (right._node,), kept, key, other_key)
    return graph.add(subscriptions), graph.add(changes)


def _through_topic(
    graph: Graph,
    topic: str,
    parents: tuple[str, ...],
    key: Serde[Any],
    value: Serde[Any],
    partitioner: Callable[[Any, int], int] | None,
) -> str:
    """Add a repartition, which rows without a foreign key cross too; give its name."""
    placed = None if partitioner is None else _by_key(partitioner)
    return graph.repartition(
        parents, topic, key, value, drop_null_keys=False, partitioner=placed, kinds=FOREIGN_KEY_PARTS
    )


def _by_key(partitioner: Callable[[Any, int], int]) -> StreamPartitioner:
    def placed(topic: str, key: Any, value: Any, partitions: int) -> int | None:
        return None if key is None else partitioner(key, partitions)

    placed.__name__ = getattr(
        partitioner, "__name__", placed.__name__
    )  # a checkpoint knows a partitioner by its name
    return placed


def _subscriptions(
    graph: Graph, name: str, results: StoreOptions | None, key: Serde[Any], other_key: Serde[Any]
) -> StoreSpec:
    """Add the store of subscriptions, kept as the results are."""
    kept = results or StoreOptions(name)
    pairs = dataclasses.replace(serdes.bytes, name=f"{other_key.name} and {key.name}")
    spec = key_value(
        name,
        pairs,
        serdes.bytes,
        **kept.storage,
    )
    graph.topology.add_state_store(spec)
    return spec
