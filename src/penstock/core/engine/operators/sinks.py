"""Sinks: records on their way to topics."""

from __future__ import annotations

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
