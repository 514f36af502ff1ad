"""How joins of tables by a foreign key are put into the graph; the face is ``on=`` of ``KTable.join`` and ``left_join``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.dsl.graph import Graph
from penstock.core.dsl.joins import same_builder
from penstock.core.model import serdes
from penstock.core.model.serdes import Serde
from penstock.core.model.subscriptions import SUBSCRIPTION, answer
from penstock.core.plan import foreign_keys as nodes
from penstock.core.plan.foreign_keys import ForeignKey
from penstock.core.plan.joins import Joiner, JoinKind, stores_of_table
from penstock.core.plan.nodes import Repartition, StreamPartitioner, TableSource
from penstock.core.plan.stores import Kept, StoreSpec, key_value

if TYPE_CHECKING:
    from penstock.core.dsl.joinable_table import JoinableTable


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
    last = graph.name("KTABLE-FK-JOIN", name)
    key, other_key = left._key or graph.default_key, right._key or graph.default_key
    left_value, right_value = left._value or graph.default_value, right._value or graph.default_value
    results = graph.add_store(store, f"{last}-store", key, value or graph.default_value)
    kept = _subscriptions(graph, f"{last}-subscriptions", results, key, other_key)

    def named(part: str) -> str:
        return graph.name(f"KTABLE-FK-JOIN-{part}", None)

    subscribe = nodes.Subscribe(
        named("SUBSCRIBE"), (left._node,), on, kind, key, left_value, other_key, foreign.ignores_null
    )
    asked = _through_topic(
        graph,
        f"{last}-subscription-registration",
        (graph.add(subscribe),),
        other_key,
        SUBSCRIPTION,
        foreign.other_partitioner,
    )
    right_stores = stores_of_table(graph.topology.nodes, right._node)
    subscriptions = nodes.Subscriptions(
        named("SUBSCRIPTIONS"), (asked,), kept, right._node, right_stores, key, other_key
    )
    changes = nodes.SubscribedChanges(named("CHANGES"), (right._node,), kept, key, other_key)
    both = graph.add(subscriptions), graph.add(changes)
    answers = f"{last}-subscription-response"
    answered = _through_topic(graph, answers, both, key, answer(right_value), foreign.partitioner)
    left_stores = stores_of_table(graph.topology.nodes, left._node)
    resolve = nodes.Resolve(
        named("RESOLVE"), (answered,), left._node, left_stores, results, left_value, joiner, kind
    )
    return graph.add(TableSource(last, (graph.add(resolve),), results))


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
    repartition = Repartition(
        topic, parents, topic, key, value, None, drop_null_keys=False, partitioner=placed
    )
    return graph.add(repartition)


def _by_key(partitioner: Callable[[Any, int], int]) -> StreamPartitioner:
    return lambda topic, key, value, partitions: None if key is None else partitioner(key, partitions)


def _subscriptions(
    graph: Graph, name: str, results: StoreSpec, key: Serde[Any], other_key: Serde[Any]
) -> StoreSpec:
    """Add the store of subscriptions, kept as the results are."""
    pairs = dataclasses.replace(serdes.bytes, name=f"{other_key.name} and {key.name}")
    spec = key_value(name, pairs, serdes.bytes, engine=results.engine, changelog=results.changelog)
    graph.topology.add_state_store(spec)
    return spec
