"""Sinks: records on their way to topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.core.engine.columns import Columns, Form, columns_of, each
from penstock.core.engine.compile import Call, Compiled, compile_node
from penstock.core.model.record import Headers, Records
from penstock.core.plan import nodes as n


@compile_node.register
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


@columns_of.register
def _(node: n.Sink, compiled: Compiled) -> Form | None:
    if not isinstance(node.topic, str) or node.partitioner is not None:
        return None
    runtime, row, topic, key, value = compiled.runtime, compiled.call(node), node.topic, node.key, node.value

    def sink(columns: Columns) -> None:
        try:
            keys, values = columns.keys.serialised(key), columns.values.serialised(value)
        except Exception:  # then record by record, which finds the bad ones
            return each(columns, row, runtime)
        headers = columns.headers if columns.headers and any(columns.headers) else None
        return runtime.send(topic, Records(keys, values, columns.timestamps, [], headers))

    return Form(sink)


def _chosen(choice: int | Iterable[int] | None, topic: str, count: int) -> tuple[int, ...]:
    """Give the partitions that a partitioner chose, -1 for the one that the key belongs to.

    Raises:
        ValueError: If one of them is none of the topic's.
    """
    if choice is None:
        return (-1,)
    chosen = (choice,) if isinstance(choice, int) else tuple(dict.fromkeys(choice))
    for partition in chosen:
        if not isinstance(partition, int) or partition < 0 or partition >= (count or partition + 1):
            raise ValueError(
                f"the partitioner chose partition {partition!r} of topic {topic!r}, which has "
                f"{f'the partitions 0 to {count - 1}' if count else 'no such partition'}"
            )
    return chosen


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
            return runtime.rows(topic).append(row)
        count = runtime.partitions_of(topic)
        chosen = _chosen(partitioner(topic, key, value, count), topic, count)
        if not chosen:
            return runtime.drop("no partition chosen")
        return runtime.placed(topic).extend([(*row, partition) for partition in chosen])

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        try:
            send(key, value, timestamp, headers)
        except Exception as error:
            runtime.on_error("produce", name, error)

    return sink
