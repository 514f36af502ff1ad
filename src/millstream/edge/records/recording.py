"""Records slices of topics to files, and replays them through a topology without a broker.

Recording reads only committed records, commits no offsets and joins no group.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from millstream.core.model.errors import SettingsError, TopicNotFoundError
from millstream.core.ports import OffsetRange
from millstream.core.topology.internal import is_internal
from millstream.core.topology.topology import Topology
from millstream.drivers.kafka.fetch import KafkaFetcher
from millstream.edge.records.chosen_records import check_partitions, check_times
from millstream.edge.records.topic_records import broker_of, fetcher_of
from millstream.edge.settings.settings import Settings
from millstream.testing.driver import TopologyTestDriver
from millstream.testing.kafka import ConsumedRecord
from millstream.testing.slice_file import merged, read_slice, slice_line
from millstream.testing.tables.markdown_tables import cell_of, written_table

GROUP: Final = "millstream-record"
_ID: Final = "replay"


@dataclass(frozen=True)
class RecordedRange:
    """Which records of topics to record.

    Attributes:
        partitions: Only these partitions; empty for all.
        since_ms: Start at the first record with this timestamp or a later one, ms since the epoch; None for the beginning.
        until_ms: Stop before the first record with this timestamp or a later one, ms since the epoch; None for the end.
        last: Only this number of last records of each partition; None for all.
    """

    topics: Sequence[str]
    partitions: frozenset[int] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    last: int | None = None


def record(
    wanted: RecordedRange, file: Path, settings: Settings, *, limit: int | None = None
) -> dict[str, int]:
    """Write a slice of topics to a new file that only this user may read; return the number of records by topic.

    Args:
        limit: The maximum number of records, earliest timestamps first; None for all.

    Raises:
        SettingsError: If the file exists or cannot be written, a partition does not exist, or the time range is empty.
    """
    counts = dict.fromkeys(wanted.topics, 0)
    if file.exists():
        raise SettingsError(f"{str(file)!r} already exists; choose another name, or delete it")
    check_times(wanted.since_ms, wanted.until_ms)
    found = list(_records(wanted, settings))
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as lines:
                for row in islice(merged(found), limit):
                    lines.write(slice_line(row) + "\n")
                    counts[row.topic] += 1
        except BaseException:
            file.unlink()  # a part would look like the whole slice
            raise
    except OSError as error:
        raise SettingsError(f"{str(file)!r} cannot be written: {error.strerror or error}") from None
    return counts


def replayed(file: Path, topology: Topology) -> Iterator[str]:
    """Process a slice in this process; yield the results of the topology as lines of tables, in the format of tests.

    Raises:
        SettingsError: If the slice cannot be read.
    """
    records = read_slice(file)
    partitions = max((record.partition + 1 for record in records), default=1)
    with TopologyTestDriver(topology, application_id=_ID, partitions=partitions) as driver:
        driver.replay(file)
        yield f"{len(records):,} records replayed"
        for topic in sorted(driver.produced_topics()):
            if is_internal(_ID, topic):
                continue
            yield ""
            yield f"{topic}:"
            rows = [
                {"time": cell_of(sent.timestamp), "key": cell_of(sent.key), "value": cell_of(sent.value)}
                for sent in driver.read(topic)
            ]
            yield from written_table(rows, ("time", "key", "value"))


def _records(wanted: RecordedRange, settings: Settings) -> Iterator[ConsumedRecord]:
    broker, fetcher = broker_of(settings, GROUP), fetcher_of(settings, GROUP)
    counts = broker.partition_counts(wanted.topics)
    if missing := [topic for topic in wanted.topics if topic not in counts]:
        raise TopicNotFoundError(
            f"{', '.join(map(repr, missing))} cannot be recorded: there is no such topic at {settings.bootstrap_servers}; "
            "correct its name, or create it"
        )
    check_partitions(wanted.partitions, counts)
    begins, ends = broker.begin_offsets(counts), broker.end_offsets(counts)
    since = {} if wanted.since_ms is None else broker.offsets_at(counts, wanted.since_ms)
    until = {} if wanted.until_ms is None else broker.offsets_at(counts, wanted.until_ms)
    for topic, count in counts.items():
        for number in range(count):
            if wanted.partitions and number not in wanted.partitions:
                continue
            first = begins[topic][number]
            if wanted.since_ms is not None:
                first = since.get(topic, {}).get(number, ends[topic][number])
            end = until.get(topic, {}).get(number, ends[topic][number])
            yield from _of_partition(fetcher, OffsetRange(topic, number, first, end), wanted.last)


def _of_partition(fetcher: KafkaFetcher, planned: OffsetRange, last: int | None) -> Iterator[ConsumedRecord]:
    if planned.start >= planned.end:
        return
    found: deque[ConsumedRecord] = deque(maxlen=last)
    for some in fetcher.fetch(planned):
        rows = zip(some.offsets, some.timestamps, some.keys, some.values, some.headers or [()] * len(some))
        found.extend(ConsumedRecord(planned.topic, planned.partition, *row) for row in rows)
    yield from found
