"""Merging: orders the records of a repartition topic by time, over the tasks that wrote them.

Each task writes the records of its whole micro-batch to a repartition topic at once, in the order of its own time. In offset order, the
timestamps would jump back and forth by the span of a micro-batch. Each record therefore has a header with the task that wrote it, and the
records that a micro-batch reads from a partition are merged. The records of one task are a *lane* and stay in offset order. The next
record is always taken from the lane whose head has the smallest timestamp. Lanes of Spark's shuffle are merged by the same rule
(``millstream.core.engine.records.queue``).

This order is equal to a stable sort of all lanes, one after the other, by the running maximum of each lane's timestamps. Each lane is
already sorted, so one such sort is fast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from millstream.core.model.record import Records

WRITER_HEADER: Final = "penstock.task"
"""The last header of each record in a repartition topic: the task that wrote it. Readers of the topic remove it.

It keeps the project's former name, so that topics written under that name can be read."""


def merged_by_time(parts: Iterable[Records]) -> Iterator[Records]:
    """Merge the records that a micro-batch reads from one partition of a repartition topic over their writers.

    Args:
        parts: All records that are read, in offset order, with the writer's header. Records without the header form a separate lane.

    Returns:
        The records in processing order, without the header, in parts of the same sizes.

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
    """Return the rows in processing order, and remove the writer headers."""
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
