"""The report of a run: what was done to the application, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.testing.crash.app import Guarantee
from penstock.testing.crash.journal import Findings
from penstock.testing.crash.plan import Target


@dataclass(frozen=True)
class Kill:
    """A kill that was carried out.

    Attributes:
        target: What was killed.
        position: The number of input records that had been processed and committed.
        recovery_s: Seconds until there were more.
        victim: The process, with the end of its command line; empty if it was more than one.
        in_transaction: Whether a transaction was open.
        at_ms: When, ms since the epoch.
    """

    target: Target
    position: int
    recovery_s: float
    victim: str = ""
    in_transaction: bool = False
    at_ms: int = 0

    def __str__(self) -> str:
        what = f"{self.target} ({self.victim})" if self.victim else self.target
        when = f"after {self.position:,} records{', in a transaction' if self.in_transaction else ''}"
        return f"{what} {when}; progress again after {self.recovery_s:.1f} s"


@dataclass(frozen=True)
class Report:
    """The result of a run.

    Attributes:
        app: Name of the application.
        guarantee: Its processing guarantee.
        seed: The seed.
        master: The Spark master.
        records: Records of the input topic.
        kills: What was killed, in order.
        restarts: How often the application was started again.
        ends: Why it had ended by itself, as far as it had; a killed JVM is such an end, a killed program is not.
        batches: Micro-batches that were committed.
        outputs: Records of the output topic, as read with ``read_committed``.
        aborted: Further records in it, of transactions that did not come to their end.
        findings: What the journal checker found.
        wrong_states: Entries of stores that are missing, wrong or too many.
        wrong_changelogs: The same of the newest records in changelog topics of key-value stores.
        went_back: How often a committed offset of the group was seen to go back.
        examples: The first few wrong entries in words.
        seconds: How long it took.
    """

    app: str
    guarantee: Guarantee
    seed: int
    master: str
    records: int
    kills: tuple[Kill, ...]
    restarts: int
    ends: tuple[str, ...]
    batches: int
    outputs: int
    aborted: int
    findings: Findings
    wrong_states: int
    wrong_changelogs: int
    went_back: int
    examples: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the guarantee was kept."""
        wrong = self.wrong_states + self.wrong_changelogs + self.went_back
        return not (wrong or self.findings.breaks(self.guarantee))

    def __str__(self) -> str:
        """Write the report for people."""
        found = self.findings
        journal = f"{found.lost} lost, {found.duplicated} duplicated, {found.reordered} reordered"
        lines = [
            f"{self.app}, {self.guarantee}, seed {self.seed}, {self.master}",
            f"  records     {self.records:,} in, {self.outputs:,} out, {self.aborted:,} aborted",
            f"  batches     {self.batches:,}",
            *(f"  kill {number:<6} {kill}" for number, kill in enumerate(self.kills, start=1)),
            f"  restarts    {self.restarts}",
            *(f"  ended       {end}" for end in self.ends),
            f"  journal     {journal}, {found.wrong} wrong, {found.stale} stale",
            f"  stores      {self.wrong_states} wrong entries, {self.wrong_changelogs} in changelog topics",
            f"  offsets     went back {self.went_back} times",
            *(f"  example     {example}" for example in self._to_explain()),
            f"  {'RIGHT' if self.ok else 'WRONG'} after {self.seconds:.0f} s",
        ]
        return "\n".join(lines)

    def _to_explain(self) -> tuple[str, ...]:
        return () if self.ok else (*self.findings.examples, *self.examples)
