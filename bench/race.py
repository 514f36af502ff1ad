"""The race: a job on Kafka Streams, then the same job on Millstream, from the same topics on the same broker.

Both clocks leave the start out: they begin with the first record. Ours ends when every output is acknowledged; the peer's
when it has *processed* its last record (its last outputs may still be on the way), which is in its favour. "With start"
counts from ``KafkaStreams.start()`` in a running JVM there, and from a bare Python process here: Spark's JVM, its session
and the first, empty batch included.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from statistics import median
from typing import Any

from bench import check
from bench.jobs import EXACTLY_ONCE, WINDOW_MS
from bench.load import SPAN_MS, Workload, produce, rows, rows_topic
from bench.processes import ROOT, run_for_json, run_ours
from bench.stage import PARTITIONS, Stage
from bench.usage import Meter, children_s
from millstream.testing._java import find_java
from millstream.testing.kafka import KAFKA_VERSION, resolve_jars

_TIMEOUT_S = 900.0
_THREADS = "2"
_SOURCE = ROOT / "bench" / "peer" / "KafkaStreamsPeer.java"
_LONG_AGO_MS = 1_600_000_000_000
WITH_ROWS = ("stream-table-join",)
"""Jobs that read a table beside the input; its records count to those that are processed."""


@dataclass(frozen=True)
class Side:
    """One run of a job.

    Attributes:
        records_per_s: From the first record to the last.
        seconds: The same time.
        seconds_with_start: With the start, as the head of this module defines it.
        usage: What it took of the machine; see :class:`bench.usage.Usage`.
        wrong: What is wrong with the output, None if nothing.
    """

    records_per_s: float
    seconds: float
    seconds_with_start: float
    usage: dict[str, float]
    wrong: str | None


@dataclass(frozen=True)
class Pair:
    """Two runs, one after the other.

    Attributes:
        peer: Kafka Streams.
        ours: Millstream.
        batches: Durations of our batches by phase, according to Spark, in milliseconds.
    """

    peer: Side
    ours: Side
    batches: Sequence[dict[str, int]]

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer we are."""
        return self.ours.records_per_s / self.peer.records_per_s

    @property
    def others(self) -> float:
        """The larger share of the machine that others took during one of the runs."""
        return max(self.ours.usage["others"], self.peer.usage["others"])


@dataclass(frozen=True)
class RaceResult:
    """All pairs of a job.

    Attributes:
        job: Name of the job.
        records: Records of the input.
        pairs: In the order they were run.
    """

    job: str
    records: int
    pairs: tuple[Pair, ...]

    @property
    def ratio(self) -> float:
        """Median of the pairs' ratios."""
        return median(pair.ratio for pair in self.pairs)

    @property
    def wrong(self) -> list[str]:
        """What was wrong with outputs."""
        sides = [
            (name, side) for pair in self.pairs for name, side in (("peer", pair.peer), ("ours", pair.ours))
        ]
        return [f"{self.job}, {name}: {side.wrong}" for name, side in sides if side.wrong]

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file of results."""
        ratios = [pair.ratio for pair in self.pairs]
        return {
            "records": self.records,
            "records_per_s": round(median(pair.ours.records_per_s for pair in self.pairs)),
            "peer_records_per_s": round(median(pair.peer.records_per_s for pair in self.pairs)),
            "ratio": {
                "median": round(self.ratio, 3),
                "min": round(min(ratios), 3),
                "max": round(max(ratios), 3),
            },
            "seconds_with_start": round(median(pair.ours.seconds_with_start for pair in self.pairs), 2),
            "peer_seconds_with_start": round(median(pair.peer.seconds_with_start for pair in self.pairs), 2),
            "processor_s": median(pair.ours.usage["processor_s"] for pair in self.pairs),
            "peer_processor_s": median(pair.peer.usage["processor_s"] for pair in self.pairs),
            "others": max(pair.others for pair in self.pairs),
            "wrong": self.wrong,
            "pairs": [
                {
                    "records_per_s": round(pair.ours.records_per_s),
                    "peer_records_per_s": round(pair.peer.records_per_s),
                    "ratio": round(pair.ratio, 3),
                    "usage": pair.ours.usage,
                    "peer_usage": pair.peer.usage,
                    "batches_ms": list(pair.batches),
                }
                for pair in self.pairs
            ],
        }


def fill(stage: Stage) -> tuple[str, Workload]:
    """Make the input topic that all races of a run read."""
    begin_ms = (time.time_ns() // 1_000_000 - SPAN_MS) // WINDOW_MS * WINDOW_MS
    workload, topic = Workload(stage.records, stage.keys, begin_ms=begin_ms), stage.topic("input")
    produce(stage.kafka.bootstrap_servers, topic, workload.blocks(), workload.timestamps())
    return topic, workload


def fill_rows(stage: Stage, source: str, workload: Workload) -> None:
    """Make the topic of the table that the input is joined with; all of it is older than the input."""
    topic = rows_topic(source)
    stage.kafka.create_topic(topic, PARTITIONS)
    produce(stage.kafka.bootstrap_servers, topic, rows(workload), repeat(_LONG_AGO_MS))


def race(stage: Stage, job: str, source: str, workload: Workload, wanted: check.Digest) -> Pair:
    """Run a pair.

    Args:
        stage: Where.
        job: Name of the job.
        source: The input topic.
        workload: What is in it.
        wanted: What must come out.
    """
    records = workload.records + (workload.keys if job in WITH_ROWS else 0)
    sink = stage.topic(f"{job}-peer")
    peer = _side(stage, job, sink, wanted, run_peer(stage, job, source, sink, records))
    sink = stage.topic(f"{job}-ours")
    arguments = {"job": job, "source": source, "sink": sink, "records": records}
    arguments["servers"] = stage.kafka.bootstrap_servers
    arguments["known"] = [stage.kafka.pid, os.getpid()]
    figures = run_ours("race", arguments, scratch=stage.directory("ours"), timeout_s=_TIMEOUT_S)
    return Pair(peer, _side(stage, job, sink, wanted, figures), figures["batches"])


def run_peer(
    stage: Stage, job: str, source: str, sink: str, records: int, cache_bytes: int = 0
) -> dict[str, Any]:
    """Run the job in Kafka Streams; return its figures."""
    jars = resolve_jars(
        f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}", folder=f"kafka-streams-{KAFKA_VERSION}"
    )
    scratch = stage.directory("peer")
    command = [
        find_java(),
        f"-Djava.io.tmpdir={scratch}",
        "-cp",
        f"{jars}/*",
        str(_SOURCE),
        job,
        source,
        sink,
    ]
    guarantee = "exactly_once_v2" if job in EXACTLY_ONCE else "at_least_once"
    command += [str(records), _THREADS, guarantee, str(cache_bytes), stage.kafka.bootstrap_servers]
    meter, before = Meter([stage.kafka.pid, os.getpid()]), children_s()
    figures = run_for_json(command, scratch=scratch, timeout_s=_TIMEOUT_S)
    return {**figures, "usage": meter.used(children_s() - before, figures["gc_s"])}


def _side(stage: Stage, job: str, sink: str, wanted: check.Digest, figures: dict[str, Any]) -> Side:
    return Side(
        figures["records_per_s"],
        figures["seconds"],
        figures["seconds_with_start"],
        figures["usage"],
        check.wrong_output(job, wanted, stage.kafka.bootstrap_servers, sink),
    )
