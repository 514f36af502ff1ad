"""Tables for people and a file for programs, from the same results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.calls import CallResult
from bench.join import JoinResult
from bench.latency import LatencyResult
from bench.machine import Machine
from bench.memory import MemoryResult
from bench.race import RaceResult
from bench.states import StateResult
from bench.store_size import StoreSizeResult
from bench.transactions import TransactionResult

RATIO_BARS = {
    "count": 2.0,
    "map": 1.5,
    "windowed-count": 2.0,
    "session-count": 1.2,
    "stream-table-join": 2.0,
    "processor": 0.8,
    "exactly-once-count": 1.5,
}
"""The least ratio to Kafka Streams, by job."""
BATCH_BAR_S = 0.7
STORE_BAR = 1.2
MEMORY_BAR = 1.2
TRANSACTION_BAR = 1.3
CALL_RATE_BARS = {100: 5_000, 1_000: 20_000}
"""The least results per second, by calls in flight."""
CALL_RATIO_BAR = 1.0


@dataclass
class Results:
    """What a run has measured so far; parts that were not asked for stay None.

    Attributes:
        machine: What it ran on.
        other_load_percent: How busy the machine was with other things when the run began.
        pairs: Pairs per race.
        races: Results of the races.
        latency: Latency of few records.
        store_size: Batches on a small and a large store.
        memory: Memory of the workers.
        transactions: Batches with and without transactions.
        join: A join of two topics, waiting and guessing.
        calls: Calls beside Parallel Consumer, by calls in flight.
        states: The state of a task by itself, by part and engine.
    """

    machine: Machine
    other_load_percent: float
    pairs: int
    races: list[RaceResult] = field(default_factory=list)
    latency: LatencyResult | None = None
    store_size: StoreSizeResult | None = None
    memory: MemoryResult | None = None
    transactions: TransactionResult | None = None
    join: JoinResult | None = None
    calls: list[CallResult] = field(default_factory=list)
    states: list[StateResult] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """What was wrong with outputs: such figures do not count."""
        checked = (
            *self.races,
            self.store_size,
            self.memory,
            self.transactions,
            self.join,
            *self.calls,
        )
        return [line for result in checked if result is not None for line in result.wrong]

    def as_json(self) -> dict[str, Any]:
        """Return the content of the file of results."""
        others = {
            "latency": self.latency,
            "store-size": self.store_size,
            "memory": self.memory,
            "transactions": self.transactions,
            "join": self.join,
        }
        return {
            "machine": asdict(self.machine),
            "other_load_percent": self.other_load_percent,
            "pairs": self.pairs,
            "jobs": {race.job: race.as_json() for race in self.races},
            **{name: result.as_json() for name, result in others.items() if result is not None},
            "calls": [found.as_json() for found in self.calls],
            "states": [
                {"part": state.part, "figure": state.figure, **state.figures} for state in self.states
            ],
        }

    def write(self, path: Path) -> None:
        """Write the file of results."""
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")

    def show(self, console: Console) -> None:
        """Print the tables."""
        if self.races:
            console.print(_race_table(self.races))
        if self.latency or self.store_size or self.memory or self.transactions or self.join:
            console.print(_other_table(self))
        if self.calls:
            console.print(_call_table(self.calls))
        if self.states:
            console.print(_state_table(self.states))
        for line in self.wrong:
            console.print(f"[bold red]WRONG OUTPUT, the figure does not count:[/] {line}")
        phases = _phases(self)
        if phases:
            console.print(_phase_table(phases))
        console.print(
            f"[dim]{self.machine}; other programs kept it {self.other_load_percent:.0f} % busy at the beginning[/]"
        )


def _table(title: str, row_subject: str, *figures: str) -> Table:
    """Make a table without rows: what a row is about, and its figures."""
    table = Table(title=title)
    table.add_column(row_subject)
    for name in figures:
        table.add_column(name, justify="right")
    return table


def _race_table(races: Sequence[RaceResult]) -> Table:
    table = _table(
        "Millstream and Kafka Streams, one after the other (medians; the start is excluded on both sides)",
        "job",
        "ours, rec/s",
        "peer, rec/s",
        "ratio",
        "min-max",
        "bar",
        "core-s: ours",
        "peer",
        "others",
        "ours with start",
        "peer with start",
    )
    for race in races:
        figures, ratios, bar = race.as_json(), [pair.ratio for pair in race.pairs], RATIO_BARS.get(race.job)
        table.add_row(
            race.job,
            f"{figures['records_per_s']:,}",
            f"{figures['peer_records_per_s']:,}",
            f"{race.ratio:.2f} x" if bar is None else _judged(f"{race.ratio:.2f} x", race.ratio >= bar),
            f"{min(ratios):.2f}-{max(ratios):.2f}",
            "" if bar is None else f">= {bar} x",
            f"{figures['processor_s']:.1f}",
            f"{figures['peer_processor_s']:.1f}",
            f"{figures['others']:.0%}",
            f"{figures['seconds_with_start']:.1f} s",
            f"{figures['peer_seconds_with_start']:.1f} s",
        )
    return table


def _other_table(results: Results) -> Table:
    latency, store, memory = results.latency, results.store_size, results.memory
    table = _table("What must not depend on size, time or guarantee", "what", "figure", "bar", "detail")
    if latency is not None:
        batch, visible = median(latency.batch_s), median(latency.visible_s)
        detail = f"output visible after {visible:.2f} s, at most {max(latency.visible_s):.2f} s"
        table.add_row(
            "batch of 10 records",
            _judged(f"{batch:.2f} s", batch <= BATCH_BAR_S),
            f"<= {BATCH_BAR_S} s",
            detail,
        )
    if store is not None:
        small, large = store.small, store.large
        table.add_row(
            f"{store.updates:,} updates, {large.keys:,} : {small.keys:,} keys",
            _judged(f"{store.ratio:.2f} x", store.ratio <= STORE_BAR),
            f"<= {STORE_BAR} x",
            f"{median(large.batch_s):.2f} s : {median(small.batch_s):.2f} s",
        )
    if memory is not None:
        total = memory.records * len(memory.peak_mib)
        table.add_row(
            f"worker's memory, {total:,} : {2 * memory.records:,} records",
            _judged(f"{memory.ratio:.2f} x", memory.ratio <= MEMORY_BAR),
            f"<= {MEMORY_BAR} x",
            f"{memory.late_mib:.0f} MiB : {memory.early_mib:.0f} MiB",
        )
    if results.transactions is not None:
        _add_transactions(table, results.transactions)
    if results.join is not None:
        _add_join(table, results.join)
    return table


def _call_table(found: Sequence[CallResult]) -> Table:
    table = _table(
        "Millstream and Confluent Parallel Consumer: calls of 10 ms, one partition, order of keys (medians)",
        "in flight",
        "ours, results/s",
        "bar",
        "peer, results/s",
        "ratio",
        "bar",
        "from the start: ours",
        "peer",
        "processor s per million: ours",
        "peer",
    )
    for result in found:
        figures, bar = result.as_json(), CALL_RATE_BARS[result.in_flight]
        ours, peer = figures["ours"], figures["peer"]
        table.add_row(
            f"{result.in_flight:,}",
            _judged(f"{ours['rate']:,}", ours["rate"] >= bar),
            f">= {bar:,}",
            f"{peer['rate']:,}",
            _judged(f"{result.ratio:.2f} x", result.ratio >= CALL_RATIO_BAR),
            f">= {CALL_RATIO_BAR} x",
            f"{ours['whole']:,}/s",
            f"{peer['whole']:,}/s",
            f"{ours['processor_s_per_million']:.0f}",
            f"{peer['processor_s_per_million']:.0f}",
        )
    return table


def _state_table(states: Sequence[StateResult]) -> Table:
    table = _table("The state of a task by itself, on one core", "what", "figure", "bar", "detail")
    for state in states:
        subject, figure, met, bar, detail = state.row
        table.add_row(subject, _judged(figure, met), bar, detail)
    return table


def _add_transactions(table: Table, found: TransactionResult) -> None:
    without, with_transactions = found.medians
    table.add_row(
        f"batch of {found.records:,} records, exactly : at least once",
        _judged(f"{found.ratio:.2f} x", found.ratio <= TRANSACTION_BAR),
        f"<= {TRANSACTION_BAR} x",
        f"{with_transactions:.2f} s : {without:.2f} s",
    )


def _add_join(table: Table, found: JoinResult) -> None:
    details = [
        f"{median(took):.1f} s, {found.different[way]:,} wrong, {found.enforced[way]:,} guesses, {found.held[way]:,} held"
        for way, took in found.seconds.items()
    ]
    table.add_row(
        f"join of {found.records:,} records, waiting : guessing",
        f"{found.ratio:.2f} x",
        "",
        " : ".join(details),
    )


def _phases(results: Results) -> dict[str, list[dict[str, int]]]:
    """Return the phases of our batches, by the benchmark that they belong to."""
    found = {race.job: [batch for pair in race.pairs for batch in pair.batches] for race in results.races}
    if results.latency is not None:
        found["10 records"] = list(results.latency.batches)
    if results.store_size is not None:
        for run in (results.store_size.small, results.store_size.large):
            found[f"{results.store_size.updates:,} updates of {run.keys:,} keys"] = list(run.batches)
    for result in results.calls:
        found[f"calls, {result.in_flight:,} in flight"] = [
            batch for pair in result.pairs for batch in pair.batches
        ]
    return {name: batches for name, batches in found.items() if batches}


def _phase_table(found: dict[str, list[dict[str, int]]]) -> Table:
    names = ["triggerExecution", "latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets"]
    table = _table(
        "Where a batch of ours spends its time (medians, ms, according to Spark)",
        "batches of",
        "batches",
        *names,
    )
    for subject, batches in found.items():
        middles = [f"{median(batch.get(name, 0) for batch in batches):.0f}" for name in names]
        table.add_row(subject, str(len(batches)), *middles)
    return table


def _judged(text: str, met: bool) -> str:
    return f"[{'green' if met else 'bold red'}]{text}[/]"
