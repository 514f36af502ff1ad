"""The topologies that are raced. Keys and values are bytes, as in the peer; names must agree with its ``switch``."""

from __future__ import annotations

import asyncio
import time

import millstream as ms
from bench.load import rows_topic
from millstream import serdes
from millstream.core.topology.topology import Topology

JOBS = (
    "count",
    "map",
    "windowed-count",
    "session-count",
    "stream-table-join",
    "processor",
    "exactly-once-count",
)
EXACTLY_ONCE = ("exactly-once-count",)
"""Jobs that run with the guarantee of that name."""
WINDOW_MS = 10_000
GAP_MS = 5_000
GRACE_MS = 1_000
"""Of the sessions, so that a store does not drop a session that ended a whole gap ago: both sides drop at retention, gap and grace."""
CALL_MS = 10
BUSY_NS = 50_000


def topology(job: str, source: str | list[str], sink: str) -> Topology:
    """Build the topology of a job.

    Args:
        job: ``count`` writes every update of a count per key, in decimal; ``map`` writes values in upper case;
            ``windowed-count`` writes every update of a count per key and window of ten seconds, as Kafka Streams writes
            keys in windows and whole numbers; ``session-count`` does so per key and session with a gap of five seconds and a grace of one;
            ``stream-table-join`` writes each value with the row of its key; ``processor`` is a ``count`` by a processor that reads
            and writes its store for each record; ``busy-processor`` does so after 50 us of Python; ``exactly-once-count`` is a ``count`` with that guarantee.
        source: Topic to read, or several; ``stream-table-join`` reads one.
        sink: Topic to write.
    """
    builder = ms.StreamsBuilder()
    stream = builder.stream(source, key=serdes.bytes, value=serdes.bytes)
    if job in ("count", "exactly-once-count"):
        counts = stream.group_by_key().count(store="counts").to_stream()
        counts.map_values(_decimal).to(sink, key=serdes.bytes, value=serdes.bytes)
    elif job == "windowed-count":
        grouped = stream.group_by_key().windowed_by(ms.TumblingWindows(WINDOW_MS, grace=0))
        grouped.count(store="counts").to_stream().to(sink, value=serdes.int64)
    elif job == "session-count":
        sessions = stream.group_by_key().windowed_by(ms.SessionWindows(GAP_MS, grace=GRACE_MS))
        sessions.count(store="counts").to_stream().to(sink, value=serdes.int64)
    elif job == "processor":
        builder.add_state_store(ms.stores.key_value("counts", serdes.bytes, serdes.int64))
        stream.process(_Counter, stores=["counts"]).to(sink, key=serdes.bytes, value=serdes.bytes)
    elif job == "busy-processor":
        builder.add_state_store(ms.stores.key_value("counts", serdes.bytes, serdes.int64))
        busy = stream.process(_BusyCounter, stores=["counts"], key_local=True)
        busy.to(sink, key=serdes.bytes, value=serdes.bytes)
    elif job == "map":
        stream.map_values(_upper).to(sink, key=serdes.bytes, value=serdes.bytes)
    elif job == "stream-table-join":
        assert isinstance(source, str)
        rows = builder.table(rows_topic(source), key=serdes.bytes, value=serdes.bytes, store="rows")
        stream.join(rows, _priced).to(sink, key=serdes.bytes, value=serdes.bytes)
    else:
        raise ValueError(f"there is no job {job!r}; the jobs are {', '.join(JOBS)}")
    return builder.build()


class _Counter(ms.Processor[bytes, bytes, bytes, bytes]):
    """Counts per key."""

    def init(self, context: ms.ProcessorContext[bytes, bytes]) -> None:
        self._context = context
        self._counts: ms.KeyValueStore[bytes, int] = context.state_store("counts")

    def process(self, record: ms.Record[bytes, bytes]) -> None:
        count = (self._counts.get(record.key) or 0) + 1
        self._counts.put(record.key, count)
        self._context.forward(record.with_value(_decimal(count)))


class _BusyCounter(_Counter):
    """Counts per key, after 50 microseconds of Python."""

    def process(self, record: ms.Record[bytes, bytes]) -> None:
        until = time.perf_counter_ns() + BUSY_NS
        while time.perf_counter_ns() < until:
            pass
        super().process(record)


def joined(orders: str, rates: str, sink: str) -> Topology:
    """Build a join of a stream with a table: each order with the rate of its key."""
    builder = ms.StreamsBuilder()
    table = builder.table(rates, key=serdes.bytes, value=serdes.bytes, store="rates")
    stream = builder.stream(orders, key=serdes.bytes, value=serdes.bytes)
    stream.left_join(table, _priced).to(sink, key=serdes.bytes, value=serdes.bytes)
    return builder.build()


def called(source: str, sink: str, max_in_flight: int) -> Topology:
    """Build a call for each record: it sleeps, and the value is written in upper case."""
    builder = ms.StreamsBuilder()
    stream = builder.stream(source, key=serdes.bytes, value=serdes.bytes)
    results = stream.map_values_async(_answered, max_in_flight=max_in_flight)
    results.to(sink, key=serdes.bytes, value=serdes.bytes)
    return builder.build()


async def _answered(value: bytes) -> bytes:
    await asyncio.sleep(CALL_MS / 1_000)
    return _upper(value)


def _priced(order: bytes, rate: bytes | None) -> bytes:
    return b"%b:%b" % (order, rate or b"")


def _decimal(count: int) -> bytes:
    return b"%d" % count


def _upper(value: bytes) -> bytes:
    return value.decode().upper().encode()
