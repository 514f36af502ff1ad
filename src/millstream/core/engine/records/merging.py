"""Merging: what is read of a repartition topic is ordered by time over the tasks that wrote it.

Tasks write a repartition topic one after the other, or side by side: each its whole micro-batch in a row, in the order of its own
time. Read as they lie there, the records would go back and forth in time by as much as a micro-batch spans. So each record carries the
task that wrote it in a header, and what one micro-batch reads of a partition is merged: the records of one task, a *lane*, keep
the order of their offsets, and of all lanes the one comes next whose next record is the oldest. Lanes of Spark's shuffle are
merged by the same rule (``millstream.core.engine.records.queue``).

Taking the lane with the oldest head is the same as sorting by the largest timestamp that the lane has come to, stable, lane
behind lane; that takes one sort of runs which are in order already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from millstream.core.model.record import Records

WRITER_HEADER: Final = "penstock.task"
"""The last header of each record of a repartition topic: the task that wrote it. It is taken off where the record is read.

It has the former name of the project: topics that were written then are read."""


def merged_by_time(parts: Iterable[Records]) -> Iterator[Records]:
    """Return the records that a micro-batch reads of one partition of a repartition topic, merged over their writers.

    Args:
        parts: All that is read, in offset order, with the writer's header; records without it are a lane of their own.

    Returns:
        The same records in processing order, without that header, in as many parts.

    Example:
        >>> def wrote(task):
        ...     return ((WRITER_HEADER, task),)
        >>> headers = [wrote(b"0_0"), wrote(b"0_0"), wrote(b"0_1"), wrote(b"0_1")]
        >>> read = Records([b"k"] * 4, [b"v"] * 4, [10, 30, 20, 40], [5, 6, 7, 8], headers)
        >>> for merged in merged_by_time([read]):
        ...     print(merged.timestamps, merged.offsets, merged.headers)
        [10, 20, 30, 40] [5, 7, 6, 8] None
    """
    read = Records()
    sizes = []
    for part in parts:
        read.extend(part)
        sizes.append(len(part))
    order = _order(read)
    first = 0
    for size in sizes:
        rows = order[first : first + size]
        first += size
        headers = read.headers and [read.headers[row] for row in rows]
        yield Records(
            [read.keys[row] for row in rows],
            [read.values[row] for row in rows],
            [read.timestamps[row] for row in rows],
            [read.offsets[row] for row in rows],
            headers if headers and any(headers) else None,
        )


def _order(read: Records) -> Sequence[int]:
    """Return the rows in processing order, and remove the headers of writers."""
    if read.headers is None:
        return range(len(read))
    lanes: dict[bytes, list[int]] = defaultdict(list)
    for row, headers in enumerate(read.headers):
        if headers and headers[-1][0] == WRITER_HEADER:
            lanes[headers[-1][1] or b""].append(row)
            read.headers[row] = headers[:-1]
        else:
            lanes[b""].append(row)
    if len(lanes) < 2:
        return range(len(read))
    rows: list[int] = []
    times: list[int] = []
    for _, lane in sorted(lanes.items(), key=lambda item: (len(item[0]), item[0])):  # 0_2 before 0_10
        rows.extend(lane)
        times.extend(accumulate((read.timestamps[row] for row in lane), max))
    return [rows[number] for number in sorted(range(len(rows)), key=times.__getitem__)]
