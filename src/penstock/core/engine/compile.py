"""Compile: a sub-topology becomes closures, once per task.

Every node becomes one function that takes a record (key, value, timestamp, headers) or a change of a table (key, new
value, old value, timestamp, headers) as plain arguments and calls its children, depth first. No record object is made
unless a user's processor needs one, and there is no dispatch per record. This is the only implementation of the
operators: every driver, the test driver included, runs these closures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

from penstock.core.engine.context import NodeContext
from penstock.core.engine.runtime import Runtime
from penstock.core.model.errors import PenstockError, TopologyError
from penstock.core.model.record import Change, Headers, Record
from penstock.core.plan import nodes as n
from penstock.core.plan.split import SubTopology

Call = Callable[..., None]
"""A compiled node: of a stream ``(key, value, timestamp, headers)``, of a table ``(key, new, old, timestamp, headers)``."""


class Compiled:
    """The closures of a sub-topology in one task.

    Attributes:
        entries: Per source node what its records are handed to.
        contexts: The processors' contexts, in the order of the topology.
    """

    def __init__(self, sub: SubTopology, runtime: Runtime) -> None:
        self.entries: dict[str, Call] = {}
        self.contexts: list[NodeContext] = []
        self._sub = sub
        self.runtime = runtime
        self._calls: dict[str, Call] = {}
        for node in reversed(list(sub.nodes.values())):
            if isinstance(node, n.Source):
                self.entries[node.name] = self.children(node)
            else:
                self._calls[node.name] = _compile(node, self)
        self.contexts.reverse()

    def children(self, node: n.Node) -> Call:
        """Give one function that calls all children of a node."""
        return _fan_out([self._calls[child.name] for child in self._sub.children(node.name)], node.table)

    def named_children(self, node: n.Node) -> Mapping[str, Call]:
        """Give the functions of the children of a node by name."""
        return {child.name: self._calls[child.name] for child in self._sub.children(node.name)}

    def needs_old(self, node: n.Node) -> bool:
        """Tell whether anything behind a table needs the old values of its rows.

        A filter does: it forwards a deletion only for a row that it let through before.
        """
        return any(
            isinstance(child, (n.GroupTable, n.TableStore, n.TableFilter))
            or (child.table and self.needs_old(child))
            for child in self._sub.children(node.name)
        )


def _fan_out(calls: list[Call], table: bool) -> Call:
    if not calls:
        return _nothing
    if len(calls) == 1:
        return calls[0]
    if len(calls) == 2:
        first, second = calls

        def both(*args: Any) -> None:
            first(*args)
            second(*args)

        return both

    def each(*args: Any) -> None:
        for call in calls:
            call(*args)

    return each


def _nothing(*args: Any) -> None:
    """Take what nobody waits for."""


@singledispatch
def _compile(node: n.Node, compiled: Compiled) -> Call:
    raise TopologyError(f"the engine does not know nodes of type {type(node).__name__} ({node.name!r})")


@_compile.register
def _(node: n.Filter, compiled: Compiled) -> Call:
    child, predicate, keep = compiled.children(node), node.predicate, node.keep
    on_error, name = compiled.runtime.on_error, node.name

    def filter_(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            kept = bool(predicate(key, value)) is keep
        except Exception as error:
            return on_error("process", name, error)
        if kept:
            child(key, value, timestamp, headers)

    return filter_


@_compile.register
def _(node: n.Map, compiled: Compiled) -> Call:
    child, mapper = compiled.children(node), node.mapper
    on_error, name = compiled.runtime.on_error, node.name

    def map_(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            key, value = mapper(key, value)
        except Exception as error:
            return on_error("process", name, error)
        child(key, value, timestamp, headers)

    return map_


@_compile.register
def _(node: n.MapValues, compiled: Compiled) -> Call:
    child, mapper = compiled.children(node), node.mapper
    on_error, name = compiled.runtime.on_error, node.name

    def map_values(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            value = mapper(value)
        except Exception as error:
            return on_error("process", name, error)
        child(key, value, timestamp, headers)

    def map_values_with_key(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            value = mapper(key, value)
        except Exception as error:
            return on_error("process", name, error)
        child(key, value, timestamp, headers)

    return map_values_with_key if node.with_key else map_values


@_compile.register
def _(node: n.SelectKey, compiled: Compiled) -> Call:
    child, mapper = compiled.children(node), node.mapper
    on_error, name = compiled.runtime.on_error, node.name

    def select_key(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            key = mapper(key, value)
        except Exception as error:
            return on_error("process", name, error)
        child(key, value, timestamp, headers)

    return select_key


@_compile.register
def _(node: n.FlatMap, compiled: Compiled) -> Call:
    child, mapper = compiled.children(node), node.mapper
    on_error, name = compiled.runtime.on_error, node.name

    def flat_map(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            results = [(new_key, new_value) for new_key, new_value in mapper(key, value)]
        except Exception as error:
            return on_error("process", name, error)
        for new_key, new_value in results:
            child(new_key, new_value, timestamp, headers)

    return flat_map


@_compile.register
def _(node: n.FlatMapValues, compiled: Compiled) -> Call:
    child, mapper, with_key = compiled.children(node), node.mapper, node.with_key
    on_error, name = compiled.runtime.on_error, node.name

    def flat_map_values(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            results = list(mapper(key, value) if with_key else mapper(value))
        except Exception as error:
            return on_error("process", name, error)
        for result in results:
            child(key, result, timestamp, headers)

    return flat_map_values


@_compile.register
def _(node: n.Peek, compiled: Compiled) -> Call:
    child, action = compiled.children(node), node.action
    on_error, name = compiled.runtime.on_error, node.name

    def peek(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            action(key, value)
        except Exception as error:
            return on_error("process", name, error)
        child(key, value, timestamp, headers)

    return peek


@_compile.register
def _(node: n.Pass, compiled: Compiled) -> Call:
    return compiled.children(node)


@_compile.register
def _(node: n.Branch, compiled: Compiled) -> Call:
    calls = compiled.named_children(node)
    branches: list[tuple[Callable[[Any, Any], object] | None, Call]] = [
        (predicate, calls.get(route, _nothing)) for predicate, route in zip(node.predicates, node.routes)
    ]
    on_error, name = compiled.runtime.on_error, node.name

    def branch(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for predicate, child in branches:
            try:
                chosen = predicate is None or predicate(key, value)
            except Exception as error:
                return on_error("process", name, error)
            if chosen:
                return child(key, value, timestamp, headers)
        return None

    return branch


@_compile.register
def _(node: n.Process, compiled: Compiled) -> Call:
    runtime, name = compiled.runtime, node.name
    children = compiled.named_children(node)
    context = NodeContext(name, node.stores, runtime, compiled.children(node), children)
    context.processor = _new_processor(node)
    compiled.contexts.append(context)
    process = context.processor.process

    def run(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            process(Record(key, value, timestamp, headers))
        except Exception as error:
            runtime.on_error("process", name, error)

    return run


def _new_processor(node: n.Process) -> Any:
    processor = node.supplier()
    missing = [
        method for method in ("init", "process", "close") if not callable(getattr(processor, method, None))
    ]
    if missing:
        raise TopologyError(
            f"the supplier of processor {node.name!r} gave {processor!r}, which has no {', '.join(missing)}(); "
            "let its class derive from penstock.Processor"
        )
    return processor


@_compile.register
def _(node: n.Sink, compiled: Compiled) -> Call:
    if not isinstance(node.topic, str) or node.partitioner is not None:
        return _choosing_sink(node, compiled)
    runtime, name = compiled.runtime, node.name
    append, on_error = runtime.rows(node.topic).append, runtime.on_error
    key_bytes, value_bytes = node.key.serialize, node.value.serialize

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            append(
                (
                    None if key is None else key_bytes(key),
                    None if value is None else value_bytes(value),
                    timestamp,
                    headers,
                )
            )
        except Exception as error:
            on_error("produce", name, error)

    return sink


def _choosing_sink(node: n.Sink, compiled: Compiled) -> Call:
    """Compile a sink that chooses topics or partitions per record."""
    runtime, name = compiled.runtime, node.name
    topic_of, partitioner = node.topic, node.partitioner

    def send(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        topic = (
            topic_of
            if isinstance(topic_of, str)
            else topic_of(key, value, runtime.context(timestamp, headers))
        )
        if not isinstance(topic, str):
            raise TypeError(f"the function that chooses topics gave {topic!r} instead of a topic's name")
        row = (
            None if key is None else node.key.serialize(key),
            None if value is None else node.value.serialize(value),
            timestamp,
            headers,
        )
        if partitioner is None:
            runtime.rows(topic).append(row)
            return
        partition = partitioner(topic, key, value, runtime.partitions_of(topic))
        runtime.placed(topic).append((*row, -1 if partition is None else partition))

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            send(key, value, timestamp, headers)
        except Exception as error:
            runtime.on_error("produce", name, error)

    return sink


@_compile.register
def _(node: n.Aggregate, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    fetch, key_bytes = store.fetch, node.store.key.serialize
    write = store.write_fitting if node.fits else store.write
    initializer, aggregator = node.initializer, node.aggregator

    def aggregate(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            return runtime.drop("null key or value in an aggregation")
        old = None
        try:
            stored_key = key_bytes(key)
            entry = fetch(stored_key)
            if entry is not None:
                old, then = entry
                if then > timestamp:
                    timestamp = then
                new = aggregator(key, value, old)
            elif initializer is not None:
                new = aggregator(key, value, initializer())
            else:
                new = value
            write(stored_key, None if new is None else (new, timestamp))
        except Exception as error:
            return runtime.on_error("process", name, error)
        return child(key, new, old, timestamp, headers)

    return aggregate


@_compile.register
def _(node: n.TableSource, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    fetch, write, key_bytes = store.fetch, store.write, node.store.key.serialize

    def table_source(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return runtime.drop("null key in a table")
        try:
            stored_key = key_bytes(key)
            entry = fetch(stored_key)
            write(stored_key, None if value is None else (value, timestamp))
        except Exception as error:
            return runtime.on_error("process", name, error)
        return child(key, value, None if entry is None else entry[0], timestamp, headers)

    return table_source


@_compile.register
def _(node: n.TableFilter, compiled: Compiled) -> Call:
    child, predicate, keep = compiled.children(node), node.predicate, node.keep
    on_error, name = compiled.runtime.on_error, node.name

    def kept(key: Any, value: Any) -> Any:
        return value if value is not None and bool(predicate(key, value)) is keep else None

    def table_filter(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        try:
            new, old = kept(key, new), kept(key, old)
        except Exception as error:
            return on_error("process", name, error)
        if new is not None or old is not None:
            child(key, new, old, timestamp, headers)

    return table_filter


@_compile.register
def _(node: n.TableMapValues, compiled: Compiled) -> Call:
    child, mapper, with_key = compiled.children(node), node.mapper, node.with_key
    on_error, name, needs_old = compiled.runtime.on_error, node.name, compiled.needs_old(node)

    def mapped(key: Any, value: Any) -> Any:
        if value is None:
            return None
        return mapper(key, value) if with_key else mapper(value)

    def table_map_values(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        try:
            new = mapped(key, new)
            old = mapped(key, old) if needs_old else None
        except Exception as error:
            return on_error("process", name, error)
        child(key, new, old, timestamp, headers)

    return table_map_values


@_compile.register
def _(node: n.TableStore, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    fetch, write, key_bytes = store.fetch, store.write, node.store.key.serialize

    def table_store(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        try:
            stored_key = key_bytes(key)
            entry = fetch(stored_key)
            write(stored_key, None if new is None else (new, timestamp))
        except Exception as error:
            return runtime.on_error("process", name, error)
        child(key, new, None if entry is None else entry[0], timestamp, headers)

    return table_store


@_compile.register
def _(node: n.ToStream, compiled: Compiled) -> Call:
    child = compiled.children(node)

    def to_stream(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        child(key, new, timestamp, headers)

    return to_stream


@_compile.register
def _(node: n.GroupTable, compiled: Compiled) -> Call:
    child, selector = compiled.children(node), node.selector
    on_error, name = compiled.runtime.on_error, node.name

    def selected(key: Any, value: Any) -> tuple[Any, Any] | None:
        pair = None if value is None else selector(key, value)
        return None if pair is None or pair[0] is None or pair[1] is None else pair

    def group_table(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        try:
            before, after = selected(key, old), selected(key, new)
        except Exception as error:
            return on_error("process", name, error)
        if before and after and before[0] == after[0]:
            return child(after[0], Change(after[1], before[1]), timestamp, headers)
        if before:
            child(before[0], Change(None, before[1]), timestamp, headers)
        if after:
            child(after[0], Change(after[1], None), timestamp, headers)

    return group_table


@_compile.register
def _(node: n.TableAggregate, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    key_bytes = node.store.key.serialize

    def next_aggregate(key: Any, change: Any, aggregate: Any) -> Any:
        new, old = change
        if old is not None and aggregate is not None:
            aggregate = node.subtractor(key, old, aggregate)
        if new is None:
            return aggregate
        if aggregate is None:
            if node.initializer is None:
                return new
            aggregate = node.initializer()
        return node.adder(key, new, aggregate)

    def table_aggregate(key: Any, change: Any, timestamp: int, headers: Headers) -> None:
        try:
            if key is None or change is None:
                raise PenstockError(
                    "a record of a grouped table has no key or no change; is another program writing to it?"
                )
            stored_key = key_bytes(key)
            entry = store.fetch(stored_key)
            old, then = entry if entry is not None else (None, -1)
            timestamp = max(timestamp, then)
            new = next_aggregate(key, change, old)
            store.write(stored_key, None if new is None else (new, timestamp))
        except Exception as error:
            return runtime.on_error("process", name, error)
        child(key, new, old, timestamp, headers)

    return table_aggregate
