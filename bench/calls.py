"""Calls to an external system: Confluent's Parallel Consumer, then Millstream, from the same topic to topics on the same broker.

One partition, 10,000 keys, a call of 10 ms per record, results in the order of their key. A thread per call that sleeps there, a
coroutine that sleeps here: each as its documentation recommends.

Both are timed from outside, by the broker: topics of results have the time at which a record was appended
(``message.timestamp.type=LogAppendTime``). Two figures are made of it:

- the *rate* leaves out the start. Micro-batches write in lumps, and a clock that began within one would be given the rest of it. So
  it begins before the longest pause between the first twentieth and the first quarter of the results, and counts those behind it.
- the *whole* counts from the moment at which the work could begin: when the partition was assigned there, when the first
  micro-batch with records was planned here.

Processor time is that of all processes but the broker's, from the moment at which the partition was assigned there; here from a
moment before: when the application was started.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.jobs import CALL_MS
from bench.load import Workload, produce
from bench.processes import ROOT, ChildError, run_for_json, run_ours
from bench.stage import Stage
from millstream.testing._java import find_java
from millstream.testing.kafka import resolve_jars

PARTS = {"calls-100": 100, "calls-1000": 1_000}
"""Calls in flight by the name of the part."""
PEER_VERSION = "0.5.3.3"
"""The newest Parallel Consumer on Maven Central."""
_SHARES = {100: 0.15, 1_000: 0.4}
"""Records for each record of the race, by calls in flight: a full run takes about 20 s on each side."""
_KEYS = 10_000
_WARM_SHARES = 0.05, 0.25
_TIMEOUT_S = 900.0
_SOURCE = ROOT / "bench" / "peer" / "ParallelConsumerPeer.java"
_APPENDED = {"message.timestamp.type": "LogAppendTime"}


@dataclass(frozen=True)
class CallSide:
    """One run.

    Attributes:
        rate: Results per second, without the start.
        whole: Results per second, from the moment at which the work could begin.
        processor_s: Processor time of all processes, seconds.
        wrong: What is wrong with the results, None if nothing.
    """

    rate: float
    whole: float
    processor_s: float
    wrong: str | None


@dataclass(frozen=True)
class CallPair:
    """Two runs, one after the other.

    Attributes:
        peer: Parallel Consumer.
        ours: Millstream.
        batches: Durations of our micro-batches by phase, according to Spark, in milliseconds.
    """

    peer: CallSide
    ours: CallSide
    batches: Sequence[dict[str, int]]

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer we are, without the start."""
        return self.ours.rate / self.peer.rate


@dataclass(frozen=True)
class CallResult:
    """All pairs with a number of calls in flight.

    Attributes:
        in_flight: Calls in flight.
        records: Records of the input.
        pairs: In the order they were run.
    """

    in_flight: int
    records: int
    pairs: tuple[CallPair, ...]

    @property
    def ratio(self) -> float:
        """Median of the pairs' ratios."""
        return median(pair.ratio for pair in self.pairs)

    @property
    def sides(self) -> dict[str, list[CallSide]]:
        """The runs of each side, by its name."""
        return {"ours": [pair.ours for pair in self.pairs], "peer": [pair.peer for pair in self.pairs]}

    @property
    def wrong(self) -> list[str]:
        """What was wrong with results."""
        return [
            f"calls, {self.in_flight:,} in flight, {name}: {side.wrong}"
            for name, sides in self.sides.items()
            for side in sides
            if side.wrong
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file of results."""
        ratios = [pair.ratio for pair in self.pairs]
        return {
            "in_flight": self.in_flight,
            "records": self.records,
            "ratio": {
                "median": round(self.ratio, 3),
                "min": round(min(ratios), 3),
                "max": round(max(ratios), 3),
            },
            **{name: self._medians(sides) for name, sides in self.sides.items()},
            "wrong": self.wrong,
            "pairs": [
                {
                    "rate": round(pair.ours.rate),
                    "peer_rate": round(pair.peer.rate),
                    "ratio": round(pair.ratio, 3),
                    "batches_ms": list(pair.batches),
                }
                for pair in self.pairs
            ],
        }

    def _medians(self, sides: Sequence[CallSide]) -> dict[str, float]:
        used = median(side.processor_s for side in sides)
        return {
            "rate": round(median(side.rate for side in sides)),
            "whole": round(median(side.whole for side in sides)),
            "processor_s_per_million": round(used * 1_000_000 / self.records, 1),
        }


def calls(stage: Stage, in_flight: int, pairs: int) -> CallResult:
    """Run pairs with a number of calls in flight.

    Args:
        stage: Where.
        in_flight: Calls in flight, on each side.
        pairs: How many pairs.
    """
    workload = Workload(max(int(stage.records * _SHARES[in_flight]), 100), _KEYS)
    source = stage.topic("called", 1)
    produce(stage.kafka.bootstrap_servers, source, workload.blocks())
    wanted = by_key((key, value.upper()) for block in workload.blocks() for key, value in block)
    found = [_pair(stage, in_flight, source, workload.records, wanted) for _ in range(pairs)]
    return CallResult(in_flight, workload.records, tuple(found))


def rate(appended_ms: Sequence[int]) -> float:
    """Return the results per second without the start, from the sorted times at which they were appended."""
    first, last = (math.ceil(len(appended_ms) * share) for share in _WARM_SHARES)
    begin = max(range(first - 1, last), key=lambda index: appended_ms[index + 1] - appended_ms[index])
    return (len(appended_ms) - 1 - begin) * 1_000 / max(appended_ms[-1] - appended_ms[begin], 1)


def by_key(pairs: Iterable[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, list[bytes | None]]:
    """Return the values of each key in their order."""
    found: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found


def difference(
    found: Mapping[bytes | None, Sequence[bytes | None]],
    wanted: Mapping[bytes | None, Sequence[bytes | None]],
) -> str | None:
    """Return what is wrong with the values of the keys, None if nothing."""
    results, records = sum(map(len, found.values())), sum(map(len, wanted.values()))
    if results != records:
        return f"{results:,} results instead of {records:,}"
    wrong = sum(found.get(key) != values for key, values in wanted.items())
    return f"{wrong:,} of {len(wanted):,} keys have wrong results, or in a wrong order" if wrong else None


def _pair(
    stage: Stage,
    in_flight: int,
    source: str,
    records: int,
    wanted: Mapping[bytes | None, Sequence[bytes | None]],
) -> CallPair:
    sink = stage.topic(f"peer-{in_flight}", 1, _APPENDED)
    peer = _side(stage, sink, wanted, _run_peer(stage, in_flight, source, sink, records))
    sink = stage.topic(f"ours-{in_flight}", 1, _APPENDED)
    arguments = {"source": source, "sink": sink, "records": records, "max_in_flight": in_flight}
    arguments["servers"] = stage.kafka.bootstrap_servers
    figures = run_ours("calls", arguments, scratch=stage.directory("ours"), timeout_s=_TIMEOUT_S)
    return CallPair(peer, _side(stage, sink, wanted, figures), figures["batches"])


def _run_peer(stage: Stage, in_flight: int, source: str, sink: str, records: int) -> dict[str, Any]:
    name = "parallel-consumer-core"
    jars = resolve_jars(
        f"io.confluent.parallelconsumer:{name}:{PEER_VERSION}", folder=f"{name}-{PEER_VERSION}"
    )
    scratch = stage.directory("peer")
    command = [find_java(), f"-Djava.io.tmpdir={scratch}", "-cp", f"{jars}/*", str(_SOURCE), source, sink]
    command += [str(records), str(in_flight), str(CALL_MS), stage.kafka.bootstrap_servers]
    return run_for_json(command, scratch=scratch, timeout_s=_TIMEOUT_S)


def _side(
    stage: Stage, sink: str, wanted: Mapping[bytes | None, Sequence[bytes | None]], figures: dict[str, Any]
) -> CallSide:
    results = stage.kafka.consume(sink)
    if len(results) < 2:
        raise ChildError(f"{len(results)} results of a run that should have all of them: {sink}")
    appended_ms = [result.timestamp for result in results]
    wrong = difference(by_key((result.key, result.value) for result in results), wanted)
    whole = len(results) * 1_000 / max(appended_ms[-1] - figures["begin_ms"], 1)
    return CallSide(rate(appended_ms), whole, figures["processor_s"], wrong)
