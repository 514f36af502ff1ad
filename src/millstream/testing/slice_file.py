"""A slice of topics in a file: one line of JSON per record, as ``millstream record`` writes it.

Keys, values and headers are the bytes that were read: as text if they are UTF-8, otherwise as ``{"base64": ...}``. A slice can therefore be
inspected, edited and stored beside a test.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.core.model.errors import SettingsError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers


@dataclass(frozen=True)
class SliceRecord:
    """A record of a slice. The timestamp is in ms since the epoch."""

    topic_partition: TopicPartition
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    def line(self) -> str:
        """Return the record as a line of a file.

        Example:
            >>> SliceRecord(TopicPartition("in", 0), 7, 5, b"k", None).line()
            '{"topic": "in", "partition": 0, "offset": 7, "timestamp": 5, "key": "k", "value": null}'
        """
        data: dict[str, object] = {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "key": json_value(self.key),
            "value": json_value(self.value),
        }
        if self.headers:
            data["headers"] = [[name, json_value(value)] for name, value in self.headers]
        return json.dumps(data, ensure_ascii=False)


def read_slice(file: str | Path) -> list[SliceRecord]:
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


def merged(records: Iterable[SliceRecord]) -> Iterator[SliceRecord]:
    """Yield records in timestamp order, as far as the order of each partition allows."""
    queues: defaultdict[TopicPartition, deque[SliceRecord]] = defaultdict(deque)
    for record in records:
        queues[record.topic_partition].append(record)
    while queues:
        partition = min(queues, key=lambda partition: (queues[partition][0].timestamp, partition))
        yield queues[partition].popleft()
        if not queues[partition]:
            del queues[partition]


def _read(file: str, number: int, line: str) -> SliceRecord:
    try:
        data: Any = json.loads(line)
        headers = tuple((str(name), _bytes(value)) for name, value in data.get("headers", ()))
        partition = TopicPartition(str(data["topic"]), int(data.get("partition", 0)))
        origin = int(data.get("offset", number - 1)), int(data.get("timestamp", 0))
        return SliceRecord(partition, *origin, _bytes(data.get("key")), _bytes(data.get("value")), headers)
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
