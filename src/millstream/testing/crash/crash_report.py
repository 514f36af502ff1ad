"""The report of a run: the faults, and the findings of the checks.

In a *spoiled* run, the broker lost data, so the run proves nothing about the application: a coordinator may not know a transaction for
which partitions still wait, or after a kill the broker may not load the offsets of a group. The cause is unknown. A spoiled run is compared
up to the point that it reached, reported with the log of the transactions as evidence, and repeated with another seed. If every attempt is
spoiled, that is no coincidence, and the last one is the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from millstream.testing.crash.app import Guarantee
from millstream.testing.crash.journal import Findings
from millstream.testing.crash.kill_plan import Target

_HOW: dict[Target, str] = {"network": "cut", "clock": "wrong"}


@dataclass(frozen=True)
class Kill:
    """A fault that was carried out: a kill, a stop or a slowdown.

    Attributes:
        position: The number of input records processed and committed at that time.
        recovery_s: Seconds until the next progress; None if there was none, or another kill came first.
        victim: The process, with the end of its command line; empty if there were several.
        at_ms: The time of the fault, ms since the epoch.
        stopped_s: How long the victim was stopped, in seconds; 0 if it was killed.
        slowed: Whether it was slowed instead of stopped.
        again: The moment for which the second kill of a double fault waited; empty for other kills.
    """

    target: Target
    position: int
    recovery_s: float | None
    victim: str = ""
    in_transaction: bool = False
    at_ms: int = 0
    stopped_s: float = 0.0
    slowed: bool = False
    again: str = ""

    def __str__(self) -> str:
        what = f"{self.target} ({self.victim})" if self.victim else self.target
        details = (
            f" {self._how} for {self.stopped_s:g} s" if self.stopped_s else "",
            f" after {self.position:,} records",
            ", in a transaction" if self.in_transaction else "",
            f", before it had recovered: {self.again}" if self.again else "",
        )
        then = "" if self.recovery_s is None else f"; progress again after {self.recovery_s:.1f} s"
        return what + "".join(details) + then

    @property
    def _how(self) -> str:
        return "slowed" if self.slowed else _HOW.get(self.target, "stopped")


@dataclass(frozen=True)
class Report:
    """The result of a run.

    Attributes:
        app: Name of the application.
        guarantee: Its processing guarantee.
        seed: The seed.
        master: The Spark master.
        kills: The faults, in order.
        restarts: Number of restarts of the application.
        ends: The reasons why the application ended without being killed. Includes the end after a killed JVM, but not a killed program.
        batches: The number of committed micro-batches.
        seconds: The duration of the run, in seconds.
        unfinished: Why the run did not finish. The results so far were then compared, without the stores.
        spoiled: Whether the broker was the reason, because it lost a transaction or offsets.
        changes: The number of splits and merges of the input topic, or of changes of the number of workers.
        records: The number of records in the input topic.
        outputs: The number of records in the output topic, read with ``read_committed``.
        aborted: The number of its other records, from transactions that were not committed.
        findings: The findings of the journal checker.
        wrong_states: The number of missing, wrong or surplus entries of stores.
        wrong_changelogs: The same number for the changelog topics of key-value stores.
        went_back: The number of commits of the group with an offset below that of an earlier commit.
        misplaced: The number of results in a partition other than their key's.
        examples: Descriptions of the first few wrong entries.
        evidence: For an unfinished run: the last states of its transactions from the coordinator's log.
        data: For an unfinished or wrong run: the directory with its logs and the broker's data.
    """

    app: str
    guarantee: Guarantee
    seed: int
    master: str
    kills: tuple[Kill, ...]
    restarts: int
    ends: tuple[str, ...]
    batches: int
    seconds: float
    unfinished: str = ""
    spoiled: bool = False
    changes: int = 0
    records: int = 0
    outputs: int = 0
    aborted: int = 0
    findings: Findings = field(default_factory=Findings)
    wrong_states: int = 0
    wrong_changelogs: int = 0
    went_back: int = 0
    misplaced: int = 0
    examples: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    data: str = ""

    @property
    def ok(self) -> bool:
        """Whether the run finished and the guarantee was kept."""
        return not (self.unfinished or self.wrong)

    @property
    def wrong(self) -> bool:
        """Whether the guarantee was broken in the part of the run that took place."""
        entries = self.wrong_states + self.wrong_changelogs
        return bool(entries + self.went_back + self.misplaced) or self.findings.breaks(self.guarantee)

    @property
    def verdict(self) -> str:
        """The verdict: ``RIGHT`` or ``WRONG``, or the reason if neither is known: ``SPOILED`` or ``UNFINISHED``."""
        if self.wrong:
            return "WRONG"
        return "RIGHT" if self.ok else "SPOILED" if self.spoiled else "UNFINISHED"

    def __str__(self) -> str:
        """Return the report as readable text."""
        findings = self.findings
        journal = f"{findings.lost} lost, {findings.duplicated} duplicated, {findings.reordered} reordered"
        lines = [
            f"{self.app}, {self.guarantee}, seed {self.seed}, {self.master}",
            f"  records     {self.records:,} in, {self.outputs:,} out, {self.aborted:,} aborted",
            f"  batches     {self.batches:,}",
            *(f"  kill {number:<6} {kill}" for number, kill in enumerate(self.kills, start=1)),
            *([f"  changes     {self.changes:,} while it ran"] if self.changes else []),
            f"  restarts    {self.restarts}",
            *(f"  ended       {end}" for end in self.ends),
            f"  journal     {journal}, {findings.wrong} wrong, {findings.stale} stale",
            f"  stores      {self.wrong_states} wrong entries, {self.wrong_changelogs} in changelog topics",
            f"  offsets     went back {self.went_back} times",
            f"  partitions  {self.misplaced} results misplaced",
            *(f"  example     {example}" for example in self._to_explain()),
            *(f"  transaction {line}" for line in self.evidence),
            *([f"  unfinished  {self.unfinished}"] if self.unfinished else []),
            *([f"  data        {self.data}"] if self.data else []),
            f"  {self.verdict} after {self.seconds:.0f} s",
        ]
        return "\n".join(lines)

    def _to_explain(self) -> tuple[str, ...]:
        return (*self.findings.examples, *self.examples) if self.wrong else ()


ATTEMPTS: Final = 3
SEEDS_APART: Final = 100


def unspoiled(
    run: Callable[[int, int], Report], seed: int, *, log_report: Callable[[Report], None]
) -> Report:
    """Execute a run, and repeat it with another seed if the broker has spoiled it.

    Args:
        run: Executes a run, given a seed and the number of the attempt, from 0.
        seed: The seed of the first attempt; each further attempt adds 100.
        log_report: Called with the report of each spoiled run that is repeated.

    Returns:
        The report of the first attempt that is not spoiled, otherwise the report of the third attempt.
    """
    for attempt in range(ATTEMPTS - 1):
        report = run(seed + SEEDS_APART * attempt, attempt)
        if report.verdict != "SPOILED":
            return report
        log_report(report)
    return run(seed + SEEDS_APART * (ATTEMPTS - 1), ATTEMPTS - 1)
