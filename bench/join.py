"""What waiting for inputs costs: a backlog of two topics joined, in the order of time and in whatever order it comes.

One topic has a thousand times as many records as the other; both spread theirs over the same ten days. Waiting, the planner
reads both to the same time, and the result is that of a sorted merge; without (``max_task_idle_ms=-1``) every partition is
read by its fair share, and the result is a guess. Both take turns in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import Any

import numpy as np

from bench import check
from bench.load import key_bytes
from bench.processes import run_ours
from bench.stage import Stage

WAYS = {"waiting": 0, "guessing": -1}
"""The value of ``max_task_idle_ms`` by the name of the way."""
RATES_SHARE = 1_000
_TIMEOUT_S = 1_500.0
_KEYS = 97
_BEGIN_MS = 1_600_000_000_000
_TEN_DAYS_MS = 10 * 86_400_000

Piece = tuple[bytes, bytes, int]
"""Key, value and timestamp, ms."""


@dataclass(frozen=True)
class JoinResult:
    """Runs of the join.

    Attributes:
        records: Records of the large topic.
        seconds: Per way, the durations of its runs.
        different: Per way, results that are not those of a sorted merge, in its last run.
        enforced: Per way, records that were taken on a guess, in its last run.
        held: Per way, the most records that were held for one partition.
        worker_mib: Memory of a Python worker, while waiting: the largest in the first and in the second half of a run.
    """

    records: int
    seconds: dict[str, Sequence[float]]
    different: dict[str, int]
    enforced: dict[str, int]
    held: dict[str, int]
    worker_mib: tuple[float, float]

    @property
    def ratio(self) -> float:
        """How many times as long it takes in the order of time."""
        waiting, guessing = (median(self.seconds[way]) for way in WAYS)
        return waiting / guessing

    @property
    def wrong(self) -> list[str]:
        """What was wrong with the output."""
        different, guesses = self.different["waiting"], self.enforced["waiting"]
        if different or guesses:
            return [f"join: {different:,} results are not those of a sorted merge, {guesses:,} guesses"]
        return []

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file of results."""
        return {
            "records": self.records,
            "ratio": round(self.ratio, 3),
            "wrong": self.wrong,
            "seconds": {way: [round(s, 3) for s in took] for way, took in self.seconds.items()},
            "different": self.different,
            "enforced": self.enforced,
            "held": self.held,
            "worker_mib": self.worker_mib,
        }


def join(stage: Stage, rounds: int) -> JoinResult:
    """Time the join both ways, in turns.

    Args:
        stage: Broker and scratch directory.
        rounds: Turns per way.
    """
    orders, rates = stage.topic("orders"), stage.topic("rates")
    histories = {
        orders: _history("order", stage.records),
        rates: _history("rate", stage.records // RATES_SHARE),
    }
    for topic, history in histories.items():
        stage.kafka.produce(topic, history)
    sinks = [{way: stage.topic(f"joined-{way}-{number}") for way in WAYS} for number in range(rounds)]
    arguments = {
        "servers": stage.kafka.bootstrap_servers,
        "orders": orders,
        "rates": rates,
        "sinks": sinks,
        "records": sum(map(len, histories.values())),
    }
    found = run_ours("join", arguments, scratch=stage.scratch, timeout_s=_TIMEOUT_S)
    expected = _merged(histories, rates)
    different = {way: _different(expected, stage, sink) for way, sink in sinks[-1].items()}
    early, late = found.pop("worker_mib")
    return JoinResult(stage.records, different=different, worker_mib=(early, late), **found)


def _history(name: str, count: int) -> list[Piece]:
    """Return records spread over ten days."""
    keys = np.random.default_rng(count).integers(0, _KEYS, count).tolist()
    return [
        (key_bytes(key), f"{name}-{number}".encode(), _BEGIN_MS + number * _TEN_DAYS_MS // count)
        for number, key in enumerate(keys)
    ]


def _merged(histories: dict[str, list[Piece]], rates: str) -> dict[bytes, list[bytes]]:
    """Return the results per key of a plain merge, sorted by time, then by topic."""
    pieces = [
        (timestamp, topic, number, key, value)
        for topic, history in histories.items()
        for number, (key, value, timestamp) in enumerate(history)
    ]
    table: dict[bytes, bytes] = {}
    results: dict[bytes, list[bytes]] = {}
    for _, topic, _, key, value in sorted(pieces):
        if topic == rates:
            table[key] = value
        else:
            results.setdefault(key, []).append(b"%b:%b" % (value, table.get(key, b"")))
    return results


def _different(expected: dict[bytes, list[bytes]], stage: Stage, sink: str) -> int:
    """Count the results that are not the expected ones."""
    results: dict[bytes, list[bytes]] = {}
    for key, value in check.read(stage.kafka.bootstrap_servers, sink):
        results.setdefault(key, []).append(value)
    pairs = (zip_longest(expected.get(key, ()), results.get(key, ())) for key in {*expected, *results})
    return sum(wanted != found for each in pairs for wanted, found in each)
