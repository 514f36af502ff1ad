"""A slice of topics in a file: one line of JSON per record, as ``millstream record`` writes it.

Keys, values and headers are the bytes that were read: as text if they are UTF-8, otherwise as ``{"base64": ...}``. A slice can therefore be
inspected, edited and stored beside a test.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from millstream.core.model.errors import SettingsError
from millstream.core.model.ids import TopicPartition
from millstream.testing._records import ConsumedRecord


def slice_line(record: ConsumedRecord) -> str:
    """Return a record as a line of a file.

    Example:
        >>> slice_line(ConsumedRecord("in", 0, 7, 5, b"k", None))
        '{"topic": "in", "partition": 0, "offset": 7, "timestamp": 5, "key": "k", "value": null}'
    """
    data: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": json_value(record.key),
        "value": json_value(record.value),
    }
    if record.headers:
        data["headers"] = [[name, json_value(value)] for name, value in record.headers]
    return json.dumps(data, ensure_ascii=False)


def read_slice(file: str | Path) -> list[ConsumedRecord]:
    """Read a slice.

    Returns:
        Its records, merged by timestamp. Records of a partition keep their order.

    Raises:
        SettingsError: If the file cannot be read, or a line is not a record.
    """
    try:
        lines = (
            Path(file).read_text(encoding="utf-8").split("\n")
        )  # not splitlines: JSON may contain other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the slice {str(file)!r} cannot be read: {error}") from None
    records = [_read(str(file), number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return list(merged(records))


def merged(records: Iterable[ConsumedRecord]) -> Iterator[ConsumedRecord]:
    """Yield records in timestamp order, as far as the order of each partition allows."""
    queues: defaultdict[TopicPartition, deque[ConsumedRecord]] = defaultdict(deque)
    for record in records:
        queues[TopicPartition(record.topic, record.partition)].append(record)
    while queues:
        partition = min(queues, key=lambda partition: (queues[partition][0].timestamp, partition))
        yield queues[partition].popleft()
        if not queues[partition]:
            del queues[partition]


def _read(file: str, number: int, line: str) -> ConsumedRecord:
    try:
        data: Any = json.loads(line)
        headers = tuple((str(name), _bytes(value)) for name, value in data.get("headers", ()))
        topic, partition = str(data["topic"]), int(data.get("partition", 0))
        offset, timestamp = int(data.get("offset", number - 1)), int(data.get("timestamp", 0))
        key, value = _bytes(data.get("key")), _bytes(data.get("value"))
        return ConsumedRecord(topic, partition, offset, timestamp, key, value, headers)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise SettingsError(
            f"line {number} of {file!r} is not a record ({type(error).__name__}: {error}): it is JSON with topic, partition, timestamp, key and value, as "
            "millstream record writes it"
        ) from None


def json_value(data: bytes | None) -> object:
    """Return bytes as a JSON value: text if they are UTF-8, otherwise base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(part: Any) -> bytes | None:
    if part is None:
        return None
    return part.encode() if isinstance(part, str) else base64.b64decode(part["base64"], validate=True)
