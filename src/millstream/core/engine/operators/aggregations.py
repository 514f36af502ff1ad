"""Aggregations: of streams by key, of tables by a new key."""

from __future__ import annotations

from collections import deque
from operator import and_
from typing import Any, Final

from millstream.core.engine.batch import Columns
from millstream.core.engine.columns import Form, behind, columns_of, each
from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.folding import folding, needs_values, read_before
from millstream.core.engine.runtime import Runtime
from millstream.core.model.errors import MillstreamError
from millstream.core.model.record import Headers
from millstream.core.topology import nodes as n

INCOMPLETE: Final = "null key or value in an aggregation"


@compile_node.register
def _compile_aggregate(node: n.Aggregate, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    fetch, key_bytes = store.fetch, node.store.key.serialize
    write = store.write_fitting if node.fits else store.write
    initializer, aggregator = node.initializer, node.aggregator

    def aggregate(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            return runtime.drop(INCOMPLETE)
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
def _aggregate_columns(node: n.Aggregate, compiled: Compiled) -> Form | None:
    form = behind(node, compiled)
    if node.fold is None or form is None:
        return None
    runtime, row, child, key = compiled.runtime, compiled.call(node), form.call, node.store.key
    store, with_values = runtime.stores[node.store.name], needs_values(node.fold)
    fetch, put, fold = store.fetch, store.write_fitting, folding(node.fold, node.store.value)

    def aggregate(columns: Columns) -> None:
        columns = _complete(columns, runtime)
        try:
            keys: Any = columns.keys.serialised(key)
            values = columns.values.objects() if with_values else ()
        except Exception:  # then record by record, which finds the bad ones
            return each(columns, row, runtime)
        once, before = read_before(fetch, keys)
        folded = fold(before, values, columns.timestamps)
        deque(map(put, once, folded.entries()), maxlen=0)
        done = len(folded.results)
        if done:
            folded_ones = columns if done == len(keys) else columns.part(0, done)
            child(folded_ones.with_values(folded.results, folded.timestamps))
        if done < len(keys):
            each(columns.part(done, len(keys)), row, runtime)
        return None

    return Form(aggregate, form.calls_functions)


def _complete(columns: Columns, runtime: Runtime) -> Columns:
    if not columns.keys.any_null() and not columns.values.any_null():
        return columns
    kept = [*map(and_, columns.keys.present(), columns.values.present())]
    runtime.drop(INCOMPLETE, kept.count(False))
    return columns.only(kept)


@compile_node.register
def _compile_cogroup(node: n.Cogroup, compiled: Compiled) -> Call:
    return compiled.children(node)


@compile_node.register
def _compile_table_aggregate(node: n.TableAggregate, compiled: Compiled) -> Call:
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
                raise MillstreamError(
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
