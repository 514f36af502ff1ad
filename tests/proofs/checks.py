"""The checks of the proofs, on the lines of a journal, the commits of a group, and the records of topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from millstream.testing.crash.broker_topics import Commit
from millstream.testing.kafka import ConsumedRecord

from .enrichment import Keys
from .journal import BEGIN, END, Lines, lines_of

Times = npt.NDArray[np.int64]
"""Microseconds since the epoch."""

NEVER = np.iinfo(np.int64).max
_IN_TRANSIT_US = 1_000_000
"""How long after a kill the broker may still accept records that were sent before it."""


def completed_in_order(keys: Keys, lines: Lines) -> bool:
    """Return whether the calls for each key completed in the order of its records."""
    numbers = lines_of(lines, END)["number"]
    by_key = np.argsort(keys[numbers], kind="stable")
    same_key = np.diff(keys[numbers][by_key]) == 0
    return bool((np.diff(numbers[by_key])[same_key] > 0).all())


def first_begin_and_last_end(keys: Keys, lines: Lines) -> Lines:
    """Keep one begin and one end for each key of a call for many records: its first begin and its last end."""
    rows = pd.DataFrame(
        {"key": keys[lines["number"]], "call": lines["note"], "begin": lines["kind"] == BEGIN}
    )
    first = rows.begin & ~rows.duplicated(keep="first")
    last = ~rows.begin & ~rows.duplicated(keep="last")
    return lines[(first | last).to_numpy()]


def finish_times(records: Sequence[ConsumedRecord], number: Callable[[bytes], int], lines: Lines) -> Times:
    """Return when each record was finished: when a call for it first ended with a result.

    Args:
        records: The records, by offset.
        number: Returns the number of a record, from its value.
        lines: All lines of the journal.
    """
    ends = lines_of(lines, END)
    numbers = [number(record.value or b"") for record in records]
    times = np.full(max(max(numbers, default=0), int(ends["number"].max(initial=0))) + 1, NEVER)
    np.minimum.at(times, ends["number"], ends["at_us"])
    return times[numbers]


def too_early(commits: Sequence[Commit], offsets: npt.NDArray[np.int64], finished: Times) -> list[Commit]:
    """Return the commits before which some record had not been finished.

    Args:
        commits: Of one partition.
        offsets: The records' offsets, in order.
        finished: When each was finished.
    """
    last = np.r_[0, np.maximum.accumulate(finished)]
    return [commit for commit in commits if last[np.searchsorted(offsets, commit.offset)] > commit.at_us]


def committed_since(numbers: npt.NDArray[np.int64], taken: Times, size: int) -> Times:
    """Return when the completion of each record was committed, by its number; ``NEVER`` without a result.

    Args:
        numbers: The records that the results in the output topic are for.
        taken: When the completion of each result was committed.
        size: How many records there are.
    """
    since = np.full(size, NEVER)
    np.minimum.at(since, numbers, taken)
    return since


def with_their_batches(
    numbers: npt.NDArray[np.int64], taken: Times, batches: Times, kills: Times
) -> npt.NDArray[np.int64]:
    """Return when the completions of results were committed under at least once, which is with their micro-batch.

    An attempt that is killed may have sent results. The next attempt is the one that is committed, and it may lack these
    results, because their calls were lost and are repeated. So such a result proves nothing if its record has another one.

    Args:
        numbers: The records that the results in the output topic are for.
        taken: When the broker accepted each of these results.
        batches: When micro-batches were committed, in order: a result is committed with the first one after it.
        kills: When something was killed, in order.

    Returns:
        The time for each result; ``NEVER`` if it proves nothing.
    """
    committed = np.r_[batches, NEVER][np.searchsorted(batches, taken)]
    next_kill = np.r_[kills, NEVER][np.searchsorted(kills, taken - _IN_TRANSIT_US)]
    last = ~pd.Series(numbers).iloc[np.argsort(taken, kind="stable")].duplicated(keep="last").sort_index()
    return np.where((next_kill < committed) & ~last.to_numpy(), NEVER, committed)


def called_again(lines: Lines, committed: Times) -> int:
    """Count the calls that began for a record whose completion had been committed.

    Args:
        lines: All lines of the journal.
        committed: Since when the completion of each record is committed, by its number.
    """
    begins = lines_of(lines, BEGIN)
    return int((begins["at_us"] > committed[begins["number"]]).sum())
