"""Sinks: serialise records and send them to topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from millstream.core.engine.columns import Columns, Form, call_per_row
from millstream.core.engine.compile import Call, Compiled, columns_of, compile_node
from millstream.core.engine.operators.results import reason
from millstream.core.engine.runtime import Row
from millstream.core.model.errors import ProductionError
from millstream.core.model.partitioning import Partitions
from millstream.core.model.record import Headers, Records
from millstream.core.model.serdes import Side, serialize_for_topic
from millstream.core.topology import nodes as n

_FRAME_BYTES: Final = 100
"""Maximum overhead of Kafka's protocol per record or header, bytes."""


@compile_node.register
def _compile_sink(node: n.Sink, compiled: Compiled) -> Call:
    if not isinstance(node.topic, str) or node.partitioner is not None or _in_context(node):
        return _choosing_sink(node, compiled)
    runtime, name, topic = compiled.runtime, node.name, node.topic
    partitions, window_bytes = _partitions(node, topic, compiled), node.window_bytes
    append, on_error = runtime.rows(topic, placed=partitions is not None).append, runtime.on_error
    key_bytes, value_bytes = node.key.serialize, node.value.serialize
    most = runtime.most_bytes_of(topic)

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        side: Side | None = "key"
        try:
            data = None if key is None else key_bytes(key)
            side = "value"
            row = data, None if value is None else value_bytes(value), timestamp, headers
            side = None
            if most:
                _check_size(row, topic, most)
            append(
                row
                if partitions is None
                else (*row, -1 if data is None else partitions[data[:-window_bytes]])
            )
        except Exception as error:
            on_error("produce", name, reason(error, key, value), target=topic, side=side)

    return sink


def _check_size(row: Row, topic: str, most: int) -> None:
    key, value, _, headers = row
    size = _FRAME_BYTES + len(key or b"") + len(value or b"") + (_header_bytes(headers) if headers else 0)
    if size > most:
        raise ProductionError(
            f"the record has {size} bytes, but topic {topic!r} accepts at most {most}: raise the producer setting "
            "message.max.bytes and the topic's max.message.bytes"
        )


def _may_be_too_large(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers] | None, most: int
) -> bool:
    """Return True if a record may be too large. Adds up the largest key, value and headers of the batch, as if of one record."""
    largest = max(map(len, filter(None, keys)), default=0) + max(map(len, filter(None, values)), default=0)
    return _FRAME_BYTES + largest + max(map(_header_bytes, headers or ()), default=0) > most


def _header_bytes(headers: Headers) -> int:
    return sum(_FRAME_BYTES + 4 * len(name) + len(data or b"") for name, data in headers)


def _in_context(node: n.Sink) -> bool:
    return node.key.contextual is not None or node.value.contextual is not None


@columns_of.register
def _sink_columns(node: n.Sink, compiled: Compiled) -> Form | None:
    if not isinstance(node.topic, str) or node.partitioner is not None or _in_context(node):
        return None
    runtime, row, topic, key, value = compiled.runtime, compiled.call(node), node.topic, node.key, node.value
    choose, window_bytes = _partitions(node, topic, compiled), node.window_bytes
    most = runtime.most_bytes_of(topic)

    def sink(columns: Columns) -> None:
        try:
            keys, values = columns.keys.serialised(key), columns.values.serialised(value)
        except Exception:  # then process record by record, to find the bad ones
            return call_per_row(columns, row, runtime)
        headers = columns.headers if columns.headers and any(columns.headers) else None
        if most and _may_be_too_large(keys, values, headers, most):
            return call_per_row(columns, row, runtime)
        records = Records(keys, values, columns.timestamps, [], headers)
        if choose is not None:
            chosen_by = columns.keys.without_windows(key, window_bytes)
            records.partitions = [-1 if data is None else choose[data] for data in chosen_by]
        return runtime.send(topic, records)

    return Form(sink)


def _partitions(node: n.Sink, topic: str, compiled: Compiled) -> Partitions | None:
    """Return the choice of partitions for windowed keys: all windows of a key go to the partition of the key.

    None for a topic with one partition, or keys without windows.
    """
    count = compiled.runtime.partitions_of(topic) if node.window_bytes else 0
    return Partitions(count) if count > 1 else None


def _chosen_partitions(choice: int | Iterable[int] | None, topic: str, count: int) -> tuple[int, ...]:
    """Return the chosen partitions; -1 for the partition of the key.

    Raises:
        ValueError: If the topic does not have a chosen partition.
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


def _topic_of(node: n.Sink, compiled: Compiled) -> Callable[[Any, Any, int, Headers], str]:
    runtime, chosen = compiled.runtime, node.topic
    if isinstance(chosen, str):
        return lambda *_: chosen

    def topic_of(key: Any, value: Any, timestamp: int, headers: Headers) -> str:
        topic = chosen(key, value, runtime.context(timestamp, headers))
        if not isinstance(topic, str):
            raise TypeError(f"the function that chooses the topic returned {topic!r} instead of a topic name")
        return topic

    return topic_of


def _choosing_sink(node: n.Sink, compiled: Compiled) -> Call:
    """Compile a sink that chooses topic or partition per record, or has serdes that need topic and headers."""
    runtime, name, window_bytes = compiled.runtime, node.name, node.window_bytes
    topic_of = _topic_of(node, compiled)
    partitions_in: dict[str, Partitions | None] = {}

    def send(topic: str, key: Any, value: Any, row: Row) -> None:
        if node.partitioner is None:
            if window_bytes and topic not in partitions_in:
                partitions_in[topic] = _partitions(node, topic, compiled)
            choose = partitions_in.get(topic)
            if choose is None or row[0] is None:
                return runtime.rows(topic).append(row)
            return runtime.rows(topic, placed=True).append((*row, choose[row[0][:-window_bytes]]))
        count = runtime.partitions_of(topic)
        chosen = _chosen_partitions(node.partitioner(topic, key, value, count), topic, count)
        if not chosen:
            return runtime.drop("no partition chosen")
        return runtime.rows(topic, placed=True).extend([(*row, partition) for partition in chosen])

    def sink(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        topic: str | None = None
        side: Side | None = None
        try:
            topic = topic_of(key, value, timestamp, headers)
            side = "key"
            key_data, headers = serialize_for_topic(node.key, key, topic, side, headers)
            side = "value"
            value_data, headers = serialize_for_topic(node.value, value, topic, side, headers)
            side = None
            row = key_data, value_data, timestamp, headers
            if most := runtime.most_bytes_of(topic):
                _check_size(row, topic, most)
            send(topic, key, value, row)
        except Exception as error:
            runtime.on_error("produce", name, reason(error, key, value), target=topic, side=side)

    return sink
