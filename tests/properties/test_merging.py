"""Merging of repartition topics: the order equals a merge by heads, a backlog is sorted, and a rebuilt task processes each record once."""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.engine.records.merging import WRITER_HEADER, merged_by_time
from millstream.core.engine.records.queue import MERGED
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Headers, Records
from unit.helpers import Host

from .engines import Visits

WRITERS = [b"0_0", b"0_1", b"0_2", b"0_10"]
ROWS = st.lists(st.tuples(st.sampled_from([*WRITERS, None]), st.integers(0, 20), st.booleans()), max_size=40)


def records_of(rows: list[tuple[bytes | None, int, bool]], gap: int = 3) -> Records:
    """Build the records of a partition from the writer and the timestamp of each, and whether it has a header of the user.

    Args:
        gap: The distance of two offsets.
    """
    headers: list[Headers] = [
        ((("user", b"x"),) if with_user_header else ())
        + (() if writer is None else ((WRITER_HEADER, writer),))
        for writer, _, with_user_header in rows
    ]
    count = len(rows)
    names = [str(row).encode() for row in range(count)]
    return Records(
        names, list(names), [time for _, time, _ in rows], [gap * row for row in range(count)], headers
    )


def merged_of(rows: list[tuple[bytes | None, int, bool]], cut: int = 0) -> Records:
    """Merge records that are read in two parts."""
    read = records_of(rows)
    parts = [part(read, 0, cut), part(read, cut, len(rows))]
    merged = Records()
    for each, read in zip(merged_by_time(parts), parts, strict=True):
        assert len(each) == len(read)
        merged.extend(each)
    return merged


def part(records: Records, first: int, last: int) -> Records:
    headers = records.headers and records.headers[first:last]
    columns = (records.keys, records.values, records.timestamps, records.offsets)
    keys, values, timestamps, offsets = (column[first:last] for column in columns)
    return Records(keys, values, timestamps, offsets, headers)  # type: ignore[arg-type]


def by_heads(rows: list[tuple[bytes | None, int, bool]]) -> list[int]:
    """Merge like a task with a queue per lane: the oldest head first, ties in the order of the lanes."""
    queues = [
        deque(row for row, (by, _, _) in enumerate(rows) if by == writer) for writer in (None, *WRITERS)
    ]
    taken = []
    while any(queues):
        _, number = min((rows[queue[0]][1], number) for number, queue in enumerate(queues) if queue)
        taken.append(queues[number].popleft())
    return taken


def test_the_oldest_head_is_taken_next_and_a_lane_keeps_its_order() -> None:
    visits = Visits()

    @settings(max_examples=300)
    @given(ROWS, st.integers(0, 40))
    def merging(rows: list[tuple[bytes | None, int, bool]], cut: int) -> None:
        merged, order = merged_of(rows, min(cut, len(rows))), by_heads(rows)
        assert merged.offsets == [3 * row for row in order]
        assert merged.keys == merged.values == [str(row).encode() for row in order]
        assert merged.timestamps == [rows[row][1] for row in order]
        user_headers = [(("user", b"x"),) if rows[row][2] else () for row in order]
        assert merged.headers == (user_headers if any(user_headers) else None)
        visits["out of order in a lane"] += merged.timestamps != sorted(merged.timestamps)
        visits["several lanes"] += order != sorted(order)

    merging()
    visits.demand(**{"out of order in a lane": 10, "several lanes": 10})


def test_a_backlog_that_is_read_in_slices_of_time_is_sorted() -> None:
    """Writers may read up to any time, and a writer that is killed may write its records twice."""
    visits = Visits()
    logs = st.lists(st.lists(st.integers(0, 50), max_size=30).map(sorted), min_size=1, max_size=4)

    @settings(max_examples=300)
    @given(logs, st.sets(st.integers(1, 50)), st.randoms(use_true_random=False), st.booleans())
    def backlog(inputs: list[list[int]], cuts: set[int], random: object, killed: bool) -> None:
        taken: list[int] = []
        low = 0
        for high in [*sorted(cuts), 51]:
            lanes = [[time for time in log if low <= time < high] for log in inputs]
            written = interleaved(lanes, random)
            repeated = written[: len(written) // 2] if killed else []
            merged = merged_of([*repeated, *written])
            seen: set[tuple[bytes | None, int]] = set()
            names = [*writer_and_number(repeated), *writer_and_number(written)]
            for offset, time in zip(merged.offsets, merged.timestamps):
                name = names[offset // 3]
                if name not in seen:
                    seen.add(name)
                    taken.append(time)
            visits["killed"] += bool(repeated)
            low = high
        assert taken == sorted(time for log in inputs for time in log)

    backlog()
    visits.demand(killed=10)


def test_a_rebuilt_task_processes_each_record_once_however_its_reads_are_cut() -> None:
    visits = Visits()
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out")
    topology, partition = builder.build(), TopicPartition("in", 0)
    micro_batches = st.lists(st.tuples(st.integers(1, 15), st.integers(0, 15), st.booleans()))

    @settings(max_examples=300)
    @given(ROWS, micro_batches, st.integers(1, 9))
    def rebuilding(
        rows: list[tuple[bytes | None, int, bool]], batches: list[tuple[int, int, bool]], size: int
    ) -> None:
        host, log, taken, position = Host(topology), records_of(rows, gap=1), list[bytes | None](), 0
        for count, budget, is_lost in [*batches, (len(rows), len(rows), False)]:
            end = min(position + count, len(rows))
            cuts = [*range(position, end, size), end]
            for records in merged_by_time([part(log, first, last) for first, last in pairwise(cuts)]):
                position += len(records)
                host.task.feed(partition, records, position, lane=MERGED)
            host.task.feed(partition, Records(), end, lane=MERGED)
            outcome = host.step(budget=budget)
            taken += [key for _, sent in outcome.sends for key in sent.keys]
            if is_lost:
                host.restart(lambda snapshot: snapshot.without_committed())
                position = outcome.committable[partition]
                visits["read again"] += position < end and len(cuts) > 2
        assert sorted(map(str, taken)) == sorted(map(str, log.keys))

    rebuilding()
    visits.demand(**{"read again": 20})


def interleaved(lanes: list[list[int]], random: object) -> list[tuple[bytes | None, int, bool]]:
    """Interleave the output of the writers in a random order."""
    left = [deque(lane) for lane in lanes]
    written: list[tuple[bytes | None, int, bool]] = []
    while any(left):
        number = random.choice([number for number, lane in enumerate(left) if lane])  # type: ignore[attr-defined]
        written.append((WRITERS[number], left[number].popleft(), False))
    return written


def writer_and_number(rows: list[tuple[bytes | None, int, bool]]) -> list[tuple[bytes | None, int]]:
    """Name each record by its writer and its number there, to recognize a second copy."""
    counts: Counter[bytes | None] = Counter()
    names = []
    for writer, _, _ in rows:
        counts[writer] += 1
        names.append((writer, counts[writer]))
    return names
