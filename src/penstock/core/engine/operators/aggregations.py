"""Aggregations: of streams by key, of tables by a new key."""

from __future__ import annotations

from collections.abc import Callable
from operator import and_
from typing import Any, Final

from penstock.core.engine.columns import Columns, Form, behind, columns_of, each
from penstock.core.engine.compile import Call, Compiled, compile_node
from penstock.core.engine.runtime import Runtime
from penstock.core.model.errors import PenstockError
from penstock.core.model.record import Headers
from penstock.core.plan import nodes as n
from penstock.core.plan.folds import STEPS, Fold

_INCOMPLETE: Final = "null key or value in an aggregation"


@compile_node.register
def _(node: n.Aggregate, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    fetch, key_bytes = store.fetch, node.store.key.serialize
    write = store.write_fitting if node.fits else store.write
    initializer, aggregator = node.initializer, node.aggregator

    def aggregate(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            return runtime.drop(_INCOMPLETE)
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


@columns_of.register
def _(node: n.Aggregate, compiled: Compiled) -> Form | None:
    form = _to_stream(node, compiled)
    if node.fold is None or form is None:
        return None
    runtime, row, child = compiled.runtime, compiled.call(node), form.call
    advance = _advancing(node.fold, runtime.stores[node.store.name], fits=node.fits)
    key = node.store.key

    def aggregate(columns: Columns) -> None:
        columns = _complete(columns, runtime)
        try:
            keys = columns.keys.serialised(key)
        except Exception:  # then record by record, which finds the bad ones
            return each(columns, row, runtime)
        results: list[Any] = []
        timestamps: list[int] = []
        failed = False
        try:
            advance(keys, columns, results, timestamps)
        except Exception:  # this record and the rest likewise
            failed = True
        done = len(results)
        if done:
            child((columns.part(0, done) if failed else columns).with_values(results, timestamps))
        if failed:
            each(columns.part(done, len(keys)), row, runtime)
        return None

    return Form(aggregate, form.calls_functions)


def _to_stream(node: n.Aggregate, compiled: Compiled) -> Form | None:
    """Give the form of what is behind a table if it is a stream at most, for which old values do not count."""
    children = compiled.children_of(node)
    return behind(node, compiled) if all(isinstance(child, n.ToStream) for child in children) else None


def _complete(columns: Columns, runtime: Runtime) -> Columns:
    """Leave out the records without key or value."""
    if not columns.keys.any_null() and not columns.values.any_null():
        return columns
    kept = [*map(and_, columns.keys.present(), columns.values.present())]
    runtime.drop(_INCOMPLETE, kept.count(False))
    return columns.only(kept)


_Advance = Callable[[list[Any], Columns, list[Any], list[int]], None]
"""Takes serialised keys, records, and the lists that get a result and a timestamp for each record, until one fails."""


def _advancing(fold: Fold, store: Any, *, fits: bool) -> _Advance:
    fetch, write = store.fetch, store.write_fitting if fits else store.write

    def count(keys: list[Any], columns: Columns, results: list[Any], timestamps: list[int]) -> None:
        give, stamp = results.append, timestamps.append
        for key, timestamp in zip(keys, columns.timestamps):
            entry = fetch(key)
            if entry is None:
                number = 1
            else:
                number, then = entry
                number += 1
                if then > timestamp:
                    timestamp = then
            write(key, (number, timestamp))
            stamp(timestamp)
            give(number)

    def combine(keys: list[Any], columns: Columns, results: list[Any], timestamps: list[int]) -> None:
        give, stamp, step = results.append, timestamps.append, STEPS[fold]
        for key, value, timestamp in zip(keys, columns.values.objects(), columns.timestamps):
            entry = fetch(key)
            if entry is not None:
                so_far, then = entry
                value = step(so_far, value)
                if then > timestamp:
                    timestamp = then
            write(key, (value, timestamp))
            stamp(timestamp)
            give(value)

    return count if fold is Fold.COUNT else combine


@compile_node.register
def _(node: n.Cogroup, compiled: Compiled) -> Call:
    return compiled.children(node)


@compile_node.register
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
