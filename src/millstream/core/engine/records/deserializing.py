"""Reading: the records of a source become objects, all at once or, where one may be bad, one at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from millstream.core.engine import batch
from millstream.core.engine.failures import Attempt, Failure
from millstream.core.engine.records.queue import Chunk, RecordQueue
from millstream.core.engine.runtime import Runtime
from millstream.core.model.errors import DeserializationError, MillstreamError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import ConsumerRecord, Records
from millstream.core.model.serdes import read
from millstream.core.model.timestamps import wall_clock
from millstream.core.topology.nodes import Source


class Reading:
    """Deserialises the records of a task. Owned by it.

    Args:
        columnar: Names of the sources whose records are taken in columns.
    """

    def __init__(self, sources: Iterable[Source], columnar: Collection[str], runtime: Runtime) -> None:
        self._columnar, self._runtime = columnar, runtime
        self._readers = {
            source.name: batch.readers(source, columnar=source.name in columnar) for source in sources
        }

    def chunk(self, source: Source, queue: RecordQueue, records: Records) -> Chunk:
        """Deserialise records of a source for a queue; records that fail are treated by the policies."""
        to_keys, to_values = self._readers[source.name]
        one_by_one = source.timestamp is not None or source.key.contextual or source.value.contextual
        if not one_by_one and min(records.timestamps, default=0) >= 0:
            with suppress(Exception):  # then record by record, which finds the bad ones
                keys, values = to_keys(records.keys), to_values(records.values)
                return Chunk(records, None, keys, values, records.timestamps, records.headers)
        return self._one_by_one(source, queue, records)

    def _one_by_one(self, source: Source, queue: RecordQueue, records: Records) -> Chunk:
        """Deserialise records one at a time, because some may be bad or an extractor needs the partition time."""
        raw_key, raw_value = batch.kept_serialised(source, columnar=source.name in self._columnar)
        good = Chunk(records, [], [], [], [], None if records.headers is None else [])
        partition_time = queue.newest_timestamp()
        for row in range(len(records)):
            record = self._deserialized_one(source, queue.partition, records, row, partition_time)
            if record is None:
                continue
            partition_time = max(partition_time, record.timestamp)
            good.rows.append(row)  # type: ignore[union-attr]
            good.keys.append(records.keys[row] if raw_key else record.key)
            good.values.append(records.values[row] if raw_value else record.value)
            good.timestamps.append(record.timestamp)
            if good.headers is not None:
                good.headers.append(record.headers)
        return good

    def _deserialized_one(
        self, source: Source, partition: TopicPartition, records: Records, row: int, partition_time: int
    ) -> ConsumerRecord | None:
        key, value, timestamp = records.keys[row], records.values[row], records.timestamps[row]
        headers = records.headers[row] if records.headers is not None else ()
        raw = (partition, records.offsets[row], key, value, timestamp, headers)
        try:
            record = ConsumerRecord(
                *partition,
                records.offsets[row],
                timestamp,
                read(source.key, key, partition.topic, "key", headers),
                read(source.value, value, partition.topic, "value", headers),
                headers,
            )
            if source.timestamp is None:
                if timestamp < 0:
                    raise DeserializationError(
                        "the record has no timestamp; set timestamp=... of the source to extract one"
                    )
                return record
            by_clock = source.timestamp is wall_clock
            extracted = self._runtime.now_ms if by_clock else source.timestamp(record, partition_time)
            if not isinstance(extracted, int):
                raise DeserializationError(
                    f"the timestamp extractor returned {extracted!r} instead of an int of ms"
                )
            record = record._replace(timestamp=extracted)
        except Exception as error:
            cause = MillstreamError(error.message) if isinstance(error, DeserializationError) else error
            again = Attempt(self._deserialized_one, (source, partition, records, row, partition_time))
            failure = Failure("deserialize", source.name, cause, raw)
            retried: ConsumerRecord | None = self._runtime.failed(failure, again)
            return retried
        if record.timestamp < 0:
            self._runtime.drop("negative timestamp")
            return None
        return record
