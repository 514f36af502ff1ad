"""What is measured of Millstream: ``python -m bench.ours PART JSON`` prints one line of JSON.

Every measurement has a process of its own, so that it begins from a cold Spark session as the peer begins from a cold JVM.
The clock of a race is the application's own: from the planning of the first batch with records (``first_record_ms``) to the
moment the Spark driver heard of the last batch, all of whose outputs the brokers had acknowledged (``last_batch_ms``).
Durations of batches are Spark's (``triggerExecution``: planning, the work, and every commit).
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import psutil
from confluent_kafka import Consumer, TopicPartition
from pyspark import SparkContext
from pyspark.sql.streaming import StreamingQuery

import millstream as ms
from bench import check, jobs
from bench.join import WAYS
from bench.load import Workload, key_bytes, produce
from bench.processes import processor_s
from bench.sampling import sampling
from bench.usage import Meter
from millstream.core.topology.topology import Topology
from millstream.testing.crash.processes import TASKS, works_as

_POLL_S = 0.01
_GENTLE_POLL_S = 0.2
_SAMPLE_S = 0.2
_TIMEOUT_S = 1_200.0
_MASTER = "local[2]"
_WARM_BATCHES = 2


@contextmanager
def running(
    job: str, servers: str, source: str | list[str], sink: str, **settings: Any
) -> Iterator[ms.RunningApplication]:
    """Run a job from topics to another; see :func:`run_topology`."""
    with run_topology(jobs.topology(job, source, sink), servers, sink, **settings) as app:
        yield app


@contextmanager
def run_topology(
    topology: Topology,
    servers: str,
    sink: str,
    *,
    until: Literal["end"] | None = None,
    master: str = _MASTER,
    **settings: Any,
) -> Iterator[ms.RunningApplication]:
    """Run a topology with a state of its own, and the default settings but for those given and caches: as the peer, it has none."""
    with tempfile.TemporaryDirectory(prefix="bench-state-", ignore_cleanup_errors=True) as state:
        application = ms.Application(
            f"bench-{sink}",
            topology,
            bootstrap_servers=servers,
            state_dir=state,
            master=master,
            **{"statestore_cache_max_bytes": 0, **settings},
        )
        with application.start(until) as app:
            yield app


def race(
    job: str,
    servers: str,
    source: str | list[str],
    sink: str,
    records: int,
    known: list[int] | None = None,
    parallelism: int = 1,
    master: str = _MASTER,
    cache_bytes: int = 0,
) -> dict[str, Any]:
    """Process topics that are already full."""
    begin, meter = _now_ms(), Meter(known or [])
    settings: dict[str, Any] = {
        "parallelism": parallelism,
        "master": master,
        "statestore_cache_max_bytes": cache_bytes,
    }
    if job in jobs.EXACTLY_ONCE:
        settings["processing_guarantee"] = "exactly_once"
    with running(job, servers, source, sink, **settings) as app:
        started, started_s = _now_ms(), processor_s()
        await_processed(app, records)
        used_s = processor_s()
        usage = meter.used(used_s, _gc_s())
        counted = app.metrics()
        seconds = (counted["last_batch_ms"] - counted["first_record_ms"]) / 1000
        await_progress(app, counted["batches"] - 1)
        return {
            "job": job,
            "records": counted["processed_records"],
            "seconds": seconds,
            "records_per_s": records / seconds,
            "seconds_with_start": (counted["last_batch_ms"] - begin) / 1000,
            "seconds_to_start": (started - begin) / 1000,
            "usage": usage,
            "processor_s_without_start": used_s - started_s,
            "batches": _phases(app),
        }


def latency(servers: str, source: str, sink: str, rounds: int, warmups: int, records: int) -> dict[str, Any]:
    """Send a few records at a time through ``count`` and wait for what comes out."""
    pause = random.Random(28)
    visible: list[float] = []
    batches: list[float] = []
    consumer = _tail(servers, sink)
    with running("count", servers, source, sink) as app:
        for number in range(warmups + rounds):
            before = app.metrics()["batches"]
            produce(servers, source, Workload(records, records, seed=number).blocks())
            acknowledged = time.monotonic()
            _await_messages(consumer, records)
            seen = time.monotonic()
            await_processed(app, (number + 1) * records)
            after = app.metrics()["batches"]
            await_progress(app, after - 1)
            if number >= warmups:
                visible.append(seen - acknowledged)
                batches += batches_s(app, before, after)
            time.sleep(0.1 + pause.random() * 0.1)  # not in step with the planner's polling
        parts = _phases(app)[-len(batches) :]
    consumer.close()
    return {"visible_s": visible, "batch_s": batches, "batches": parts}


def store_size(
    servers: str, source: str, sink: str, keys: int, updates: int, rounds: int, warmups: int
) -> dict[str, Any]:
    """Fill a store through ``count``, then time batches of updates of different keys that it holds."""
    rng = np.random.default_rng(keys)
    order = rng.permutation(keys)
    produce(servers, source, (_updates(part) for part in np.array_split(order, max(keys // 100_000, 1))))
    batches: list[float] = []
    with running("count", servers, source, sink) as app:
        await_processed(app, keys)
        filled = app.metrics()
        await_progress(app, filled["batches"] - 1)
        begins = check.ends(servers, sink)
        counts = np.ones(keys, dtype=np.int64)
        for number in range(warmups + rounds):
            app.pause()
            before = app.metrics()["batches"]
            updated = rng.choice(keys, updates, replace=False, shuffle=False)
            counts[updated] += 1
            produce(servers, source, [_updates(updated)])
            app.resume()
            await_processed(app, keys + (number + 1) * updates)
            after = app.metrics()["batches"]
            await_progress(app, after - 1)
            if number >= warmups:
                batches.append(sum(batches_s(app, before, after)))
        parts = _phases(app)[-rounds:]
        counted = app.metrics()
    wanted = {key_bytes(key): b"%d" % counts[key] for key in np.flatnonzero(counts > 1).tolist()}
    digest = check.Digest((warmups + rounds) * updates, wanted, 0)
    seconds = (filled["last_batch_ms"] - filled["first_record_ms"]) / 1000
    return {
        "keys": keys,
        "batch_s": batches,
        "fill_records_per_s": keys / seconds,
        "state_bytes": counted["state_bytes"],
        "batches": parts,
        "wrong": check.wrong_output("count", digest, servers, sink, begins),
    }


def memory(servers: str, source: str, sink: str, records: int, keys: int, rounds: int) -> dict[str, Any]:
    """Count the same number of records again and again, and watch the Python workers."""
    workload = Workload(records, keys)
    peaks: list[float] = []
    after: list[float] = []
    workers: list[int] = []
    with running("count", servers, source, sink) as app:
        for number in range(rounds):
            app.pause()  # every round is the same: all records are there when the first batch is planned
            produce(servers, source, workload.blocks())
            app.resume()
            with _sampling(_worker_rss_mib) as samples:
                await_processed(app, (number + 1) * records)
            now = _worker_rss_mib()
            peaks.append(max(max(sample) for sample in [*samples, now] if sample))
            after.append(sum(now) / len(now))
            workers.append(len(now))
    written, wanted = sum(check.ends(servers, sink).values()), rounds * records
    wrong = None if written == wanted else f"{written:,} records in the output instead of {wanted:,}"
    return {"records": records, "peak_mib": peaks, "mean_mib": after, "workers": workers, "wrong": wrong}


def transactions(
    servers: str, source: str, sinks: list[dict[str, str]], records: int, batch: int
) -> dict[str, Any]:
    """Count a full topic in batches of a fixed size under each guarantee in turn; no batch may be smaller."""
    batches: dict[str, list[float]] = {}
    wrong = None
    for turn in sinks:
        for guarantee, sink in turn.items():
            settings = {"processing_guarantee": guarantee, "max_batch_records": batch}
            with running("count", servers, source, sink, **settings) as app:
                await_processed(app, records)
                counted = app.metrics()["batches"]
                await_progress(app, counted - 1)
                took = batches_s(app, 1, counted)
            batches.setdefault(guarantee, []).extend(took[_WARM_BATCHES:])
            written = sum(1 for _ in check.read(servers, sink))
            if written != records:
                wrong = f"{guarantee}: {written:,} records in the output instead of {records:,}"
    return {"batch_s": batches, "wrong": wrong}


def join(servers: str, orders: str, rates: str, sinks: list[dict[str, str]], records: int) -> dict[str, Any]:
    """Join two full topics, in the order of time and in whatever order they come."""
    figures: dict[str, Any] = {"seconds": {}, "enforced": {}, "held": {}}
    halves = (0.0, 0.0)
    for turn in sinks:
        for way, sink in turn.items():
            topology = jobs.joined(orders, rates, sink)
            with (
                run_topology(topology, servers, sink, until="end", max_task_idle_ms=WAYS[way]) as app,
                _sampling(_worker_rss_mib) as samples,
            ):
                await_processed(app, records)
                counted = app.metrics()
            seconds = (counted["last_batch_ms"] - counted["first_record_ms"]) / 1000
            figures["seconds"].setdefault(way, []).append(seconds)
            figures["enforced"][way] = counted["enforced_records"]
            figures["held"][way] = counted["buffered_records_max"]
            if way == "waiting":
                largest = [max(sample) for sample in samples if sample]
                middle = len(largest) // 2
                halves = max(largest[: middle or 1]), max(largest[middle:])
    return {**figures, "worker_mib": halves}


def calls(servers: str, source: str, sink: str, records: int, max_in_flight: int) -> dict[str, Any]:
    """Make a call for each record of a topic that is already full, until all results are in a topic."""
    with run_topology(jobs.called(source, sink, max_in_flight), servers, sink) as app:
        before = processor_s()
        _await_written(app, servers, sink, records)
        used = processor_s() - before
        return {
            "begin_ms": app.metrics()["first_record_ms"],
            "processor_s": used,
            "batches": _phases(app),
        }


def _gc_s() -> float:
    """Return how long Spark's JVM has collected garbage, seconds."""
    context = SparkContext._active_spark_context
    assert context is not None
    jvm: Any = context._jvm
    beans = jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
    return float(sum(bean.getCollectionTime() for bean in beans) / 1000)


def _updates(numbers: Any) -> list[tuple[bytes, bytes]]:
    return [(key_bytes(number), b"x") for number in numbers.tolist()]


def _worker_rss_mib() -> list[float]:
    """Return the resident memory of each Python worker of Spark's tasks."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if works_as(process, TASKS):
                found.append(process.memory_info().rss / 2**20)
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def _sampling(take: Callable[[], list[float]]) -> Iterator[list[list[float]]]:
    """Take samples in a thread as long as the block runs."""
    samples: list[list[float]] = []
    with sampling(lambda: samples.append(take()), _SAMPLE_S):
        yield samples


def _tail(servers: str, topic: str) -> Consumer:
    """Return a consumer of a topic without records, which adds no delays."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench-tail",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    return consumer


def _await_messages(consumer: Consumer, count: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while count > 0:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            count -= 1
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} records did not come out")


def await_processed(app: ms.RunningApplication, records: int) -> None:
    """Wait until an application has processed a number of records."""
    wait_until(
        app, lambda: app.metrics()["processed_records"] >= records, f"{records} records to be processed"
    )


def _await_written(app: ms.RunningApplication, servers: str, topic: str, records: int) -> None:
    """Wait until a topic of one partition holds a number of records."""
    consumer, partition = _tail(servers, topic), TopicPartition(topic, 0)
    try:
        wait_until(
            app,
            lambda: consumer.get_watermark_offsets(partition, timeout=10)[1] >= records,
            f"{records} results",
            poll_s=_GENTLE_POLL_S,
        )
    finally:
        consumer.close()


def await_progress(app: ms.RunningApplication, batch: int) -> None:
    """Wait until Spark has reported how long a batch took, which is after its commit."""
    query = _query(app)
    wait_until(
        app,
        lambda: (last := query.lastProgress) is not None and last["batchId"] >= batch,
        f"batch {batch} to be committed",
    )


def wait_until(
    app: ms.RunningApplication, condition: Callable[[], bool], description: str, poll_s: float = _POLL_S
) -> None:
    """Wait until a condition holds, or raise the error of the application."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        status = app.status()
        if status.error is not None:
            raise RuntimeError(status.error)
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited for {description}, in vain; {status}")
        time.sleep(poll_s)  # an application has no event for its progress


def _query(app: ms.RunningApplication) -> StreamingQuery:
    # The only use of a private name: an application does not report (yet) how long Spark took for its batches.
    assert app._run.query.current is not None
    return app._run.query.current


def took_by_batch(app: ms.RunningApplication) -> dict[int, dict[str, int]]:
    """Return the phases of each batch that had input, in milliseconds.

    Not the first one, which only initialises the tasks, and not Spark's notes that there was nothing to do.
    """
    return {
        progress["batchId"]: {name: int(ms) for name, ms in progress["durationMs"].items()}
        for progress in _query(app).recentProgress
        if progress["numInputRows"] > 0 and progress["batchId"] > 0
    }


def _phases(app: ms.RunningApplication) -> list[dict[str, int]]:
    return list(took_by_batch(app).values())


def batches_s(app: ms.RunningApplication, first: int, end: int) -> list[float]:
    """Return how long each batch from ``first`` until before ``end`` took."""
    took = took_by_batch(app)
    return [took[batch]["triggerExecution"] / 1000 for batch in range(first, end)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "race": race,
    "latency": latency,
    "store-size": store_size,
    "memory": memory,
    "transactions": transactions,
    "join": join,
    "calls": calls,
}

if __name__ == "__main__":
    part, arguments = sys.argv[1:]
    print(json.dumps(PARTS[part](**json.loads(arguments))), flush=True)
