"""Windowed aggregations, with records in any order and micro-batches of any size, equal brute-force models.

The models have no stores and no micro-batches: they keep all records, and look at all of them for every window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

import millstream as ms
from golden.micro_batches import MicroBatches

Row = tuple[str, str, int]
"""Key, value and timestamp; each value is another letter."""

Window = tuple[str, int, int]
"""Key, start and end."""

rows = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=25).map(
    lambda drawn: [(key, chr(ord("A") + i), timestamp) for i, (key, timestamp) in enumerate(drawn)]
)
cuts = st.lists(st.integers(1, 6), min_size=25, max_size=25)
graces = st.integers(0, 15)
emits = st.sampled_from([ms.on_window_update, ms.on_window_close])
FLUSH: Row = ("z", "z", 10_000)
"""A record after which all windows are closed."""


class Result(NamedTuple):
    """The output of a windowed aggregation.

    Attributes:
        updates: Each window with its values, or None if it was deleted, in the order of the output.
        dropped: The number of dropped records.
    """

    updates: list[tuple[Window, str | None]]
    dropped: int

    def last(self) -> dict[Window, str]:
        """Return the windows that remain."""
        left = dict(self.updates)
        return {window: letters for window, letters in left.items() if letters is not None}


def concatenated(
    windows: Any, emit: ms.EmitStrategy, until: ms.Suppressed | None = None, store: Any = "w"
) -> ms.Topology:
    builder = ms.StreamsBuilder()
    grouped = builder.stream("in").group_by_key().windowed_by(windows, emit=emit)
    add = lambda _, value, so_far: so_far + value  # noqa: E731
    merge = {"merger": lambda _, left, right: left + right} if isinstance(windows, ms.SessionWindows) else {}
    table = grouped.aggregate(str, add, value=ms.serdes.string, store=store, **merge)
    if until is not None:
        table = table.suppress(until, store="held")
    table.to_stream(lambda window, _: f"{window.key} {window.start} {window.end}").to("out")
    return builder.build()


def result_of(topology: ms.Topology, given: list[Row], sizes: list[int]) -> Result:
    """Feed rows to a topology in micro-batches of these sizes."""
    runner = MicroBatches(topology, "app", chunk=2, budget=None)
    left = list(given)
    for size in sizes:
        batch, left = left[:size], left[size:]
        if batch:
            runner.process(
                "in", [(key.encode(), value.encode(), timestamp, ()) for key, value, timestamp in batch]
            )
    updates = []
    for record in runner.sent["out"]:
        key, start, end = record.key.split()
        updates.append(((key, int(start), int(end)), record.value))
    return Result(updates, runner.dropped)


def with_stream_time(given: list[Row]) -> Iterator[tuple[Row, int]]:
    """Yield each row with the stream time after it."""
    now = -1
    for row in given:
        now = max(now, row[2])
        yield row, now


def sorted_letters(windows: dict[Window, str]) -> dict[Window, str]:
    return {window: "".join(sorted(letters)) for window, letters in windows.items()}


def time_windows(given: list[Row], size: int, advance: int, grace: int) -> Result:
    updates: list[tuple[Window, str | None]] = []
    content: dict[Window, str] = {}
    dropped = 0
    for (key, value, timestamp), now in with_stream_time(given):
        for start in range(0, timestamp + 1, advance):
            if timestamp < start + size and start + size + grace > now:
                window = (key, start, start + size)
                content[window] = content.get(window, "") + value
                updates.append((window, content[window]))
            elif timestamp < start + size:
                dropped += 1
    return Result(updates, dropped)


def in_order_of_closing(result: Result) -> list[tuple[Window, str]]:
    """Return the last content of each window but the flush, ordered by time, then by key."""
    closed = [(window, letters) for window, letters in result.last().items() if window[0] != FLUSH[0]]
    return sorted(closed, key=lambda row: (row[0][1], row[0][0]))


hops = st.tuples(st.integers(1, 20), st.integers(1, 20)).map(lambda pair: (max(pair), min(pair)))
"""Size and advance."""


@given(rows=rows, sizes=cuts, hop=hops, grace=graces)
def test_a_record_is_in_every_open_window_that_contains_its_timestamp(
    rows: list[Row], sizes: list[int], hop: tuple[int, int], grace: int
) -> None:
    windows = ms.HoppingWindows(*hop, grace=grace)
    assert result_of(concatenated(windows, ms.on_window_update), rows, sizes) == time_windows(
        rows, *hop, grace
    )


@given(rows=rows, sizes=cuts, size=st.integers(1, 20), grace=graces)
def test_tumbling_windows_hop_by_their_size(rows: list[Row], sizes: list[int], size: int, grace: int) -> None:
    windows = ms.TumblingWindows(size, grace=grace)
    found = result_of(concatenated(windows, ms.on_window_update), rows, sizes)
    assert found == time_windows(rows, size, size, grace)


@given(rows=rows, sizes=cuts, hop=hops, grace=graces, suppressed=st.booleans())
def test_a_window_is_emitted_once_when_it_closes(
    rows: list[Row], sizes: list[int], hop: tuple[int, int], grace: int, suppressed: bool
) -> None:
    windows, flushed = ms.HoppingWindows(*hop, grace=grace), [*rows, FLUSH]
    if suppressed:
        topology = concatenated(windows, ms.on_window_update, ms.Suppressed.until_window_closes())
    else:
        topology = concatenated(windows, ms.on_window_close)
    found, expected = result_of(topology, flushed, [*sizes, 1]), time_windows(flushed, *hop, grace)
    assert found == Result(in_order_of_closing(expected), expected.dropped)  # type: ignore[arg-type]


def sessions(given: list[Row], gap: int, grace: int) -> tuple[dict[Window, str], int]:
    """Return the final sessions, and the number of records that were too late for theirs.

    A session can be merged as long as its store returns it, which ends a moment before a record for it is late.
    """
    current: dict[Window, str] = {}
    dropped, greatest = 0, -1
    for (key, value, timestamp), now in with_stream_time(given):
        kept = [w for w in current if w[0] == key and w[2] > greatest - gap - grace]
        near = [w for w in kept if w[1] - gap <= timestamp <= w[2] + gap]
        start, end = min([timestamp, *(w[1] for w in near)]), max([timestamp, *(w[2] for w in near)])
        if end < now - gap - grace:
            dropped += 1
            continue
        letters = "".join(current.pop(window) for window in near) + value
        current[key, start, end] = letters
        greatest = max(greatest, end)
    return current, dropped


@given(rows=rows, sizes=cuts, gap=st.integers(1, 15), grace=graces, emit=emits)
def test_sessions_are_merged_until_they_close(
    rows: list[Row], sizes: list[int], gap: int, grace: int, emit: ms.EmitStrategy
) -> None:
    flushed = [*rows, FLUSH] if emit is ms.on_window_close else rows
    found = result_of(concatenated(ms.SessionWindows(gap, grace=grace), emit), flushed, [*sizes, 1])
    expected, dropped = sessions(rows, gap, grace)
    assert sorted_letters(found.last()) == sorted_letters(expected)
    assert found.dropped == dropped


class Content(NamedTuple):
    """The content of a sliding window.

    Attributes:
        sure: The records that arrived while their own window, the one that ends at them, was open.
        all: Also the records that arrived later; the window may or may not contain them.
    """

    sure: set[str]
    all: set[str]


def sliding(given: list[Row], difference: int, grace: int) -> tuple[dict[Window, Content], set[Window]]:
    """Return the content of each window that may exist, and the windows that must exist: the records' own."""
    content: dict[Window, Content] = {}
    required: set[Window] = set()
    arrived: list[tuple[Row, bool]] = []
    for (key, value, timestamp), now in with_stream_time(given):
        if timestamp + difference < now - grace:
            continue
        sure = max(timestamp, difference) >= now - grace
        arrived.append(((key, value, timestamp), sure))
        if sure:
            start = max(0, timestamp - difference)
            required.add((key, start, start + difference))
        times = {t for (k, _, t), _ in arrived if k == key}
        for start in {max(0, t - difference) for t in times} | {t + 1 for t in times}:
            end = start + difference
            inside = [(v, s) for (k, v, t), s in arrived if k == key and start <= t <= end]
            if inside and end >= now - grace:
                content[key, start, end] = Content({v for v, s in inside if s}, {v for v, _ in inside})
    return content, required


def after_its_own_window_closed(key: str, difference: int) -> example:
    """Return an example in which C arrives after the window that ends at it has closed, and then the records around it."""
    drawn = [(key, "A", 0), ("b", "B", 17), (key, "C", 1), (key, "D", 2), (key, "E", 1)]
    return example(
        rows=drawn, sizes=[1] * 25, difference=difference, grace=16 - difference, emit=ms.on_window_update
    )


@given(rows=rows, sizes=cuts, difference=st.integers(1, 20), grace=graces, emit=emits)
@after_its_own_window_closed("a", difference=1)
@after_its_own_window_closed("b", difference=2)
def test_a_sliding_window_contains_all_records_that_arrived_before_it_closed(
    rows: list[Row], sizes: list[int], difference: int, grace: int, emit: ms.EmitStrategy
) -> None:
    flushed = [*rows, FLUSH] if emit is ms.on_window_close else rows
    # With the default retention, as in Kafka Streams, the oldest window that contributes to an open one may have expired.
    store = ms.stores.options("w", retention=2 * difference + grace + 1)
    topology = concatenated(ms.SlidingWindows(difference, grace=grace), emit, store=store)
    found = result_of(topology, flushed, [*sizes, 1]).last()
    content, required = sliding(rows, difference, grace)
    assert required <= found.keys() <= content.keys()
    for window, letters in found.items():
        assert len(set(letters)) == len(letters)
        assert content[window].sure <= set(letters) <= content[window].all
