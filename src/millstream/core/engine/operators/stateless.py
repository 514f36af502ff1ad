"""Stateless operators: each input record yields any number of output records.

The columnar forms of nodes that call a user's function or compute an expression are created here, for other operators too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final

from millstream.core.engine.columns import Columns, ColumnsCall, Form, by_rows, call_per_row
from millstream.core.engine.compile import (
    Call,
    Compiled,
    columns_of,
    compile_node,
    discard,
    form_downstream,
    row_of,
)
from millstream.core.engine.failures import Attempt
from millstream.core.engine.operators.results import check_done, pair_of, truth_of
from millstream.core.model.expressions import Expression, applied
from millstream.core.model.record import Headers
from millstream.core.topology import nodes as n
from millstream.core.topology.join_nodes import StreamMerge, TableMerge

_NO_KEY = "null key at a repartition"


@compile_node.register
def _compile_filter(node: n.Filter, compiled: Compiled) -> Call:
    child, predicate, keep = compiled.children(node), node.predicate, node.keep
    on_error, name = compiled.runtime.on_error, node.name

    def filter_(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            kept = predicate(key, value)
            if kept is not True and kept is not False:
                kept = truth_of(kept)
        except Exception as error:
            return on_error("process", name, error)
        if kept is keep:
            child(key, value, timestamp, headers)

    return filter_


@columns_of.register
def _filter_columns(node: n.Filter, compiled: Compiled) -> Form | None:
    predicate, keep = node.predicate, node.keep

    def passes(key: Any, value: Any) -> bool:
        kept = predicate(key, value)
        return (kept if kept is True or kept is False else truth_of(kept)) is keep

    def then(child: ColumnsCall, columns: Columns, marks: list[bool]) -> None:
        child(columns.only(marks))

    if isinstance(predicate, Expression):
        kept = applied(operator.truth if keep else operator.not_, predicate)
        return of_expression(node, compiled, kept, then)
    return of_function(node, compiled, passes, then)


@compile_node.register
def _compile_with_key(node: n.WithKey, compiled: Compiled) -> Call:
    child, drop = compiled.children(node), _dropping(node, compiled)

    def with_key(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None:
            return drop(1)
        return child(key, value, timestamp, headers)

    return with_key


def _dropping(node: n.WithKey, compiled: Compiled) -> Callable[[int], None]:
    """Return a function that counts dropped records without a key; it does nothing if the node does not count them."""
    runtime = compiled.runtime
    return (lambda count: runtime.drop(_NO_KEY, count)) if node.counted else discard


@columns_of.register
def _with_key_columns(node: n.WithKey, compiled: Compiled) -> Form | None:
    form = form_downstream(node, compiled)
    if form is None:
        return None
    child, drop = form.call, _dropping(node, compiled)

    def with_key(columns: Columns) -> None:
        if columns.keys.any_null():
            kept = columns.keys.present()
            drop(kept.count(False))
            columns = columns.only(kept)
        child(columns)

    return Form(with_key, form.calls_functions, form.by_rows)


@compile_node.register
def _compile_map(node: n.Map, compiled: Compiled) -> Call:
    child, mapper = compiled.children(node), node.mapper
    on_error, name = compiled.runtime.on_error, node.name

    def map_(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            pair = mapper(key, value)
            if type(pair) is not tuple or len(pair) != 2:
                pair = pair_of(pair, "map")
            key, value = pair
        except Exception as error:
            return on_error("process", name, error)
        child(key, value, timestamp, headers)

    return map_


@columns_of.register
def _map_columns(node: n.Map, compiled: Compiled) -> Form | None:
    mapper = node.mapper

    def pair(key: Any, value: Any) -> tuple[Any, Any]:
        result = mapper(key, value)
        return result if type(result) is tuple and len(result) == 2 else pair_of(result, "map")

    def then(child: ColumnsCall, columns: Columns, pairs: list[tuple[Any, Any]]) -> None:
        keys, values = map(list, zip(*pairs))
        child(columns.with_values(values).with_keys(keys))

    return of_function(node, compiled, pair, then)


@compile_node.register
def _compile_map_values(node: n.MapValues, compiled: Compiled) -> Call:
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


@columns_of.register
def _map_values_columns(node: n.MapValues, compiled: Compiled) -> Form | None:
    if isinstance(node.mapper, Expression):
        return of_expression(node, compiled, node.mapper, forward_values)
    return of_function(node, compiled, node.mapper, forward_values, with_key=node.with_key)


def forward_values(child: ColumnsCall, columns: Columns, values: list[Any]) -> None:
    child(columns.with_values(values))


@compile_node.register
def _compile_select_key(node: n.SelectKey, compiled: Compiled) -> Call:
    child, mapper = compiled.children(node), node.mapper
    on_error, name = compiled.runtime.on_error, node.name

    def select_key(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            key = mapper(key, value)
        except Exception as error:
            return on_error("process", name, error)
        child(key, value, timestamp, headers)

    return select_key


@columns_of.register
def _select_key_columns(node: n.SelectKey, compiled: Compiled) -> Form | None:
    def then(child: ColumnsCall, columns: Columns, keys: list[Any]) -> None:
        child(columns.with_keys(keys))

    if isinstance(node.mapper, Expression):
        return of_expression(node, compiled, node.mapper, then)
    return of_function(node, compiled, node.mapper, then)


@compile_node.register
def _compile_flat_map(node: n.FlatMap, compiled: Compiled) -> Call:
    child, mapper = compiled.children(node), node.mapper
    on_error, name = compiled.runtime.on_error, node.name

    def flat_map(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            results = [
                each if type(each) is tuple and len(each) == 2 else pair_of(each, "flat_map")
                for each in mapper(key, value)
            ]
        except Exception as error:
            return on_error("process", name, error)
        for new_key, new_value in results:
            child(new_key, new_value, timestamp, headers)

    return flat_map


@compile_node.register
def _compile_flat_map_values(node: n.FlatMapValues, compiled: Compiled) -> Call:
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


@compile_node.register
def _compile_peek(node: n.Peek, compiled: Compiled) -> Call:
    child, action = compiled.children(node), node.action
    on_error, name = compiled.runtime.on_error, node.name

    def peek(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            if (result := action(key, value)) is not None:
                check_done(result)
        except Exception as error:
            return on_error("process", name, error)
        child(key, value, timestamp, headers)

    return peek


@compile_node.register(n.Pass)
@compile_node.register(n.Late)
@compile_node.register(n.Cogroup)
@compile_node.register(StreamMerge)
@compile_node.register(TableMerge)
def _compile_pass(node: n.Node, compiled: Compiled) -> Call:
    return compiled.children(node)


@columns_of.register
def _pass_columns(node: n.Pass, compiled: Compiled) -> Form | None:
    return form_downstream(node, compiled)


@compile_node.register
def _compile_branch(node: n.Branch, compiled: Compiled) -> Call:
    calls = compiled.named_children(node)
    branches: list[tuple[Callable[[Any, Any], object] | None, Call]] = [
        (predicate, calls.get(route, discard)) for predicate, route in zip(node.predicates, node.routes)
    ]
    on_error, name = compiled.runtime.on_error, node.name

    def branch(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for predicate, child in branches:
            try:
                chosen = predicate is None or predicate(key, value)
                if chosen is not True and chosen is not False:
                    chosen = truth_of(chosen)
            except Exception as error:
                return on_error("process", name, error)
            if chosen:
                return child(key, value, timestamp, headers)
        return None

    return branch


def of_function(
    node: n.Node,
    compiled: Compiled,
    function: Callable[..., Any],
    then: Callable[[ColumnsCall, Columns, list[Any]], None],
    *,
    with_key: bool = True,
) -> Form | None:
    """Create the columnar form of a node that calls a user's function for each record.

    Args:
        then: Forwards the records with their results to the nodes downstream.
        with_key: True if the function takes key and value; False if it takes the value only.
    """
    form, row, runtime = form_downstream(node, compiled), row_of(node, compiled), compiled.runtime
    if form is None:
        return None
    if form.calls_functions:
        return by_rows(row, runtime) if compiled.is_stateless(node) else None
    apply = applying(node, compiled, form, function, then)

    def call(columns: Columns) -> None:
        values = columns.values.objects()
        apply(columns, *((columns.keys.objects(), values) if with_key else (values,)))

    return Form(call, calls_functions=True)


def applying(
    node: n.Node,
    compiled: Compiled,
    form: Form,
    function: Callable[..., Any],
    then: Callable[[ColumnsCall, Columns, list[Any]], None],
) -> Callable[..., None]:
    """Return a function of a batch and its columns of arguments: it calls a user's function for each record and handles the records that fail.

    Args:
        form: The form of the nodes downstream; it calls no functions.
        then: Forwards the records with their results to the nodes downstream.
    """
    child, row, runtime = form.call, row_of(node, compiled), compiled.runtime

    def apply(columns: Columns, *arguments: list[Any]) -> None:
        start, size = 0, len(columns.timestamps)
        rest, call_each = zip(*arguments), _LOOPS[len(arguments)]
        while True:
            done: list[Any] = []
            failed: Exception | None = None
            try:
                call_each(function, rest, done)
            except Exception as error:
                failed = error
            end = start + len(done)
            if done:
                then(child, columns if len(done) == size else columns.part(start, end), done)
            if failed is None:
                return
            runtime.locate(columns.positions[end])
            runtime.on_error("process", node.name, failed, again=Attempt(row, _record(columns, end)))
            start = end + 1

    return apply


def _call_with_one(function: Callable[..., Any], rest: Iterable[Any], done: list[Any]) -> None:
    for (first,) in rest:
        done.append(function(first))


def _call_with_two(function: Callable[..., Any], rest: Iterable[Any], done: list[Any]) -> None:
    for first, second in rest:
        done.append(function(first, second))


def _call_with_three(function: Callable[..., Any], rest: Iterable[Any], done: list[Any]) -> None:
    for first, second, third in rest:
        done.append(function(first, second, third))


_LOOPS: Final = {1: _call_with_one, 2: _call_with_two, 3: _call_with_three}
"""Loops over calls of a function, by its number of arguments. A call with ``*arguments`` takes longer, and ``map`` would take a
StopIteration of the function for the end of the records. If a call fails, the results before it are in ``done``."""


def _record(columns: Columns, number: int) -> tuple[Any, Any, int, Headers]:
    headers = () if columns.headers is None else columns.headers[number]
    return (
        columns.keys.objects()[number],
        columns.values.objects()[number],
        columns.timestamps[number],
        headers,
    )


def of_expression(
    node: n.Node,
    compiled: Compiled,
    expression: Expression,
    then: Callable[[ColumnsCall, Columns, list[Any]], None],
) -> Form | None:
    """Create the columnar form of a node that computes an expression of the value."""
    form, row, runtime = form_downstream(node, compiled), row_of(node, compiled), compiled.runtime
    if form is None:
        return None
    child = form.call

    def call(columns: Columns) -> None:
        try:
            results = list(expression.over(columns.values.objects()))
        except Exception:  # then process record by record, to find the bad ones
            return call_per_row(columns, row, runtime)
        return then(child, columns, results)

    return Form(call, form.calls_functions)
