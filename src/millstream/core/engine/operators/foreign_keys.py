"""Foreign-key joins: left rows subscribe to right rows, subscriptions are answered, and answers become results."""

from __future__ import annotations

from typing import Any

from millstream.core.engine.compile import Call, Compiled, compile_node
from millstream.core.engine.operators.lookups import lookup
from millstream.core.model.record import Headers
from millstream.core.model.subscriptions import Instruction, Subscription, SubscriptionAnswer, mark_of
from millstream.core.state.keys import FOREVER, entry_prefix
from millstream.core.topology import join_nodes as f

Asked = tuple[tuple[bool, Instruction], ...]

_LATE = "late change of a versioned table"
_JOINING = (Instruction.JOIN, Instruction.JOIN_QUIETLY)
_QUIET = (Instruction.END_QUIETLY, Instruction.JOIN_QUIETLY)


@compile_node.register
def _compile_subscribe(node: f.Subscribe, compiled: Compiled) -> Call:
    runtime, name, child, on = compiled.runtime, node.name, compiled.children(node), node.on
    versioned, inner = compiled.versioned(node.parents[0]), node.kind == "inner"
    key_bytes, value_bytes, other_bytes = node.key.serialize, node.value.serialize, node.other_key.serialize
    asked = _asked_by_inner if inner else _asked_by_left
    ignores_null = node.ignores_null

    def named(key: Any, value: Any) -> tuple[Any, bytes | None]:
        other = None if value is None else on(key, value)
        return other, None if other is None else other_bytes(other)

    def subscribe(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        if versioned and not runtime.latest:
            return runtime.drop(_LATE)
        if new is None and old is None:
            return None
        try:
            (before, before_bytes), (after, after_bytes) = named(key, old), named(key, new)
            mark = None if new is None else mark_of(value_bytes(new))
            subscriber = key_bytes(key)
        except Exception as error:
            return runtime.on_error("process", name, error)
        ignored = ignores_null and (
            (old is not None and before is None) or (new is not None and after is None)
        )
        if ignored or (inner and new is not None and after is None):
            runtime.drop("null foreign key in a join")
        if ignored:
            return None
        for to_new, instruction in asked(before_bytes, after_bytes, deleted=new is None):
            child(
                after if to_new else before, Subscription(instruction, mark, subscriber), timestamp, headers
            )
        return None

    return subscribe


def _asked_by_inner(before: bytes | None, after: bytes | None, *, deleted: bool) -> Asked:
    """Return the instructions of an inner join. The flag is True for the new foreign key, False for the old one."""
    if after is None:
        return ((False, Instruction.END_QUIETLY if before is None else Instruction.END),)
    if before is None or before == after:
        return ((True, Instruction.JOIN_QUIETLY),)
    return ((False, Instruction.LEAVE), (True, Instruction.JOIN))


def _asked_by_left(before: bytes | None, after: bytes | None, *, deleted: bool) -> Asked:
    """Return the instructions of a left join, in which a row without a foreign key has a result, too."""
    asked = (True, Instruction.END if deleted else Instruction.JOIN)
    return (asked,) if before is None or before == after else ((False, Instruction.LEAVE), asked)


@compile_node.register
def _compile_subscriptions(node: f.Subscriptions, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store, row_of = runtime.stores[node.store.name], lookup(node.other, compiled, forwarded=True)
    other_bytes, subscriber_of = node.other_key.serialize, node.key.deserialize

    def subscriptions(key: Any, sent: Subscription, timestamp: int, headers: Headers) -> None:
        instruction, mark, subscriber = sent
        joining, row = instruction in _JOINING, None
        try:
            if key is not None:
                store.put(entry_prefix(other_bytes(key)) + subscriber, mark if joining else None)
                row = row_of(key, FOREVER)
        except Exception as error:
            return runtime.on_error("process", name, error)
        if instruction is Instruction.LEAVE:
            return None
        value, then = (None, -1) if row is None else row[:2]
        quiet = instruction in _QUIET and (row is None or not joining)
        answer = SubscriptionAnswer(mark, value if joining else None, quiet)
        return child(subscriber_of(subscriber), answer, max(timestamp, then), headers)

    return subscriptions


@compile_node.register
def _compile_subscribed_changes(node: f.SubscribedChanges, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    scan, versioned = runtime.stores[node.store.name].prefix_scan, compiled.versioned(node.parents[0])
    other_bytes, subscriber_of = node.other_key.serialize, node.key.deserialize

    def subscribed_changes(key: Any, new: Any, old: Any, timestamp: int, headers: Headers) -> None:
        if versioned and not runtime.latest:
            return runtime.drop(_LATE)
        try:
            prefix = entry_prefix(other_bytes(key))
            subscribers = [
                (subscriber_of(entry_key[len(prefix) :]), mark) for entry_key, mark in scan(prefix)
            ]
        except Exception as error:
            return runtime.on_error("process", name, error)
        for subscriber, mark in subscribers:
            child(subscriber, SubscriptionAnswer(mark, new, quiet=False), timestamp, headers)
        return None

    return subscribed_changes


@compile_node.register
def _compile_resolve(node: f.Resolve, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    row_of, joiner = lookup(node.other, compiled, forwarded=True), node.joiner
    inner = node.kind == "inner"
    result_of, key_bytes = runtime.stores[node.results.name].fetch, node.results.key.serialize
    value_bytes = node.value.serialize

    def resolve(key: Any, answer: SubscriptionAnswer, timestamp: int, headers: Headers) -> None:
        mark, other, quiet = answer
        try:
            row = row_of(key, FOREVER)
            if mark != (None if row is None else mark_of(value_bytes(row[0]))):
                return runtime.drop("stale answer in a foreign-key join")
            alone = row is None or (other is None and inner)
            result = None if row is None or alone else joiner(key, row[0], other)
            if result is None and quiet and result_of(key_bytes(key)) is None:
                return None
        except Exception as error:
            return runtime.on_error("process", name, error)
        return child(key, result, timestamp, headers)

    return resolve
