"""Joins of tables by a foreign key: ``KTable.join`` and ``left_join`` with ``on=``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from millstream.core.dsl.graph import FOREIGN_KEY_PARTS, Graph
from millstream.core.dsl.handle import TableHandle
from millstream.core.dsl.operators.joining import BOTH_SIDES, JoinFunction
from millstream.core.dsl.operators.store_specs import bytes_store, named_bytes
from millstream.core.model.errors import TopologyError
from millstream.core.model.serdes import Serde
from millstream.core.model.subscriptions import SUBSCRIPTION, answer_serde
from millstream.core.topology import join_nodes as nodes
from millstream.core.topology.checks import check_with_key
from millstream.core.topology.join_nodes import ForeignKey, stores_of_table
from millstream.core.topology.nodes import StreamPartitioner, TableSource
from millstream.core.topology.stores import StoreLike, StoreOptions, StoreSpec
from millstream.core.topology.window_nodes import is_windowed_here

_KIND: Final = "KTABLE-FK-JOIN"

Partitioner = Callable[[Any, int], int]
"""Maps a key and a number of partitions to a partition."""


class ForeignKeyOptions(NamedTuple):
    """The options of a foreign-key join; see ``KTable.join``."""

    on: ForeignKey
    partitioner: Partitioner | None
    other_partitioner: Partitioner | None
    ignores_null: bool


def foreign_key_options(
    on: Callable[..., Any] | None,
    partitioners: tuple[Partitioner | None, Partitioner | None],
    *,
    with_key: bool,
    ignores_null: bool = False,
) -> ForeignKeyOptions | None:
    """Return the options of a foreign-key join, or None for a join by the keys of both tables.

    Raises:
        TopologyError: If there are partitioners without a foreign key.
    """
    if on is not None:
        check_with_key(on, ("value",), with_key=with_key)
        return ForeignKeyOptions(
            on if with_key else lambda key, value: on(value), *partitioners, ignores_null
        )
    if any(partitioner is not None for partitioner in partitioners):
        raise TopologyError(
            "partitioner= and other_partitioner= apply only to joins by a foreign key (on=...); leave them out"
        )
    return None


def join_by_foreign_key(
    sides: tuple[TableHandle[Any, Any], TableHandle[Any, Any]],
    join: JoinFunction,
    options: ForeignKeyOptions,
    value: Serde[Any] | None,
    store: StoreLike | None,
) -> str:
    """Add the join of two tables by a foreign key, and return its last node."""
    left, right = sides
    graph = left._graph
    graph.check_same(right._graph, BOTH_SIDES)
    _check_partitions(graph, *sides)
    (key, left_value), (other_key, right_value) = left._serdes(), right._serdes()
    named = None if store is None else graph.named_store(store)
    prefix = _prefix(graph, sides, named, join.name)
    topic = _topic(graph, prefix, "subscription-registration")
    subscribing = graph.name(f"{_KIND}-SUBSCRIPTION-REGISTRATION")
    subscribe = nodes.Subscribe(
        subscribing, (left._node,), options.on, join.kind, key, left_value, other_key, options.ignores_null
    )
    requests = _repartition(
        graph, topic, (graph.add(subscribe),), (other_key, SUBSCRIPTION), options.other_partitioner
    )
    name = _name(graph, graph.names.store(f"{_KIND}-SUBSCRIPTION"), prefix, "subscriptions")
    subscriptions = bytes_store(
        named or StoreOptions(name), name, named_bytes(f"{other_key.name} and {key.name}")
    )
    answers = _add_answers(right, requests, subscriptions, key)
    topic = _topic(graph, prefix, "subscription-response")
    responses = _repartition(graph, topic, answers, (key, answer_serde(right_value)), options.partitioner)
    resolving = graph.name(f"{_KIND}-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR")
    last = graph.name(f"{_KIND}-OUTPUT", join.name)
    results = graph.store(
        named or StoreOptions(_name(graph, graph.names.store(f"{_KIND}-OUTPUT"), prefix, "store")),
        key,
        value or graph.default_value,
    )
    left_stores = stores_of_table(graph.topology.nodes, left._node)
    resolve = nodes.Resolve(
        resolving, (responses,), left._node, left_stores, results, left_value, join.joiner, join.kind
    )
    graph.add(TableSource(last, (graph.add(resolve),), results))
    graph.begin(last, prefix or last, join.name)
    return last


def _check_partitions(graph: Graph, *sides: TableHandle[Any, Any]) -> None:
    """Reject tables whose rows are not in the partitions of their own keys."""
    if any(is_windowed_here(graph.topology.nodes, side._node) for side in sides):
        raise TopologyError(
            "a windowed aggregation cannot be joined by a foreign key directly: subscriptions and responses would go to "
            "the partitions of the windowed keys, but the rows are in the partitions of the keys without windows. "
            "Repartition the rows first, with to_stream().repartition().to_table() after the aggregation"
        )


def _prefix(
    graph: Graph, sides: tuple[TableHandle[Any, Any], ...], store: StoreOptions | None, name: str | None
) -> str | None:
    """Return the first part of the names of the topics and stores of the join, or None for numbered names."""
    if name is not None or graph.names.numbered:
        return name
    if store is not None:
        return store.name
    return graph.names.generate("", f"{'-'.join(side._path for side in sides)}-join")


def _name(graph: Graph, numbered: str, prefix: str | None, part: str) -> str:
    return graph.names.generate(numbered, "") if prefix is None else graph.names.part(prefix, f"-{part}")


def _topic(graph: Graph, prefix: str | None, part: str) -> str:
    return _name(graph, f"{graph.name(f'{_KIND}-{part.upper()}')}-topic", prefix, part)


def _add_answers(
    right: TableHandle[Any, Any], requests: str, subscriptions: StoreSpec, key: Serde[Any]
) -> tuple[str, str]:
    """Add the nodes that answer new subscriptions and announce changes of the right table to the subscribers."""
    graph, (other_key, _) = right._graph, right._serdes()
    kind = f"{_KIND}-SUBSCRIPTION-PROCESSOR"
    receiving, _, changing = (
        graph.name(kind) for _ in range(3)
    )  # Kafka Streams receives and joins in two nodes
    stores = stores_of_table(graph.topology.nodes, right._node)
    receive = nodes.Subscriptions(receiving, (requests,), subscriptions, right._node, stores, key, other_key)
    changes = nodes.SubscribedChanges(changing, (right._node,), subscriptions, key, other_key)
    return graph.add(receive), graph.add(changes)


def _repartition(
    graph: Graph,
    topic: str,
    parents: tuple[str, ...],
    serdes: tuple[Serde[Any], Serde[Any]],
    partitioner: Partitioner | None,
) -> str:
    """Add a repartition that also forwards rows without a foreign key, and return its name."""
    return graph.repartition(
        parents,
        topic,
        *serdes,
        drop_null_keys=False,
        partitioner=None if partitioner is None else _by_key(partitioner),
        kinds=FOREIGN_KEY_PARTS,
    )


def _by_key(partitioner: Partitioner) -> StreamPartitioner:
    def partition(topic: str, key: Any, value: Any, partitions: int) -> int | None:
        return None if key is None else partitioner(key, partitions)

    # A checkpoint identifies a partitioner by its name; "placed" is the name used for a partitioner that has none.
    partition.__name__ = getattr(partitioner, "__name__", "placed")
    return partition
