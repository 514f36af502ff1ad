"""Records sent to topics by the test driver, serialised as on a broker."""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream.core.model.record import Headers, Record
from millstream.core.model.serdes import Serde, read

Serdes = tuple[Serde[Any], Serde[Any]]


class Sent(NamedTuple):
    """A serialised record that was sent to a topic; the timestamp is in ms since the epoch.

    Attributes:
        serdes: Key and value serdes of the sink.
    """

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    partition: int
    serdes: Serdes
    topic: str

    def record(self, serdes: tuple[Serde[Any] | None, Serde[Any] | None] = (None, None)) -> Record[Any, Any]:
        """Return the record deserialised, with the serdes of the sink unless others are given."""
        key, value = (given or of_sink for given, of_sink in zip(serdes, self.serdes))
        return Record(
            read(key, self.key, self.topic, "key", self.headers),
            read(value, self.value, self.topic, "value", self.headers),
            self.timestamp,
            self.headers,
        )
