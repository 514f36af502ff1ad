"""The report of a run: what was done to the application, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.testing.crash.app import Guarantee
from millstream.testing.crash.journal import Findings
from millstream.testing.crash.plan import Target

_HOW: dict[Target, str] = {"network": "cut", "clock": "wrong"}


@dataclass(frozen=True)
class Kill:
    """A kill, or a stop, that was carried out.

    Attributes:
        target: What was killed.
        position: The number of input records that had been processed and committed.
        recovery_s: Seconds until there were more; None if that did not come, or another kill came first.
        victim: The process, with the end of its command line; empty if it was more than one.
        in_transaction: Whether a transaction was open.
        at_ms: When, ms since the epoch.
        stopped_s: For how many seconds it was stopped; 0 if it was killed.
        slowed: Whether it was not stopped but slowed.
        again: What this second kill of a double fault waited for; empty for others.
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
            f", before it had come to itself: {self.again}" if self.again else "",
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
        went_back: How many commits of the group were before an earlier one.
        misplaced: Results that are in another partition than the one of their key.
        examples: The first few wrong entries in words.
        seconds: How long it took.
        unfinished: Why the run did not come to its end; then what there is was compared as far as it goes, without stores.
        spoiled: Whether the broker was the reason: it has lost a transaction, or offsets.
        evidence: Of an unfinished run: the last states of its transactions, as the coordinator has logged them.
        data: Of an unfinished or wrong run: the directory with its logs and the broker's data.
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
    misplaced: int = 0
    unfinished: str = ""
    spoiled: bool = False
    evidence: tuple[str, ...] = ()
    data: str = ""

    @property
    def ok(self) -> bool:
        """Whether the run came to its end and the guarantee was kept."""
        return not (self.unfinished or self.wrong)

    @property
    def wrong(self) -> bool:
        """Whether the guarantee was broken, as far as the run came."""
        entries = self.wrong_states + self.wrong_changelogs
        return bool(entries + self.went_back + self.misplaced) or self.findings.breaks(self.guarantee)

    @property
    def verdict(self) -> str:
        """``RIGHT``, ``WRONG``, or why neither can be said: ``SPOILED`` or ``UNFINISHED``."""
        if self.wrong:
            return "WRONG"
        return "RIGHT" if self.ok else "SPOILED" if self.spoiled else "UNFINISHED"

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
