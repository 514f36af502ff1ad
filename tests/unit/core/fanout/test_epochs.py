"""Epochs of a partition: routes, steps of a key range, and positions, by example and for any sequence of changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.fanout.epochs import History, Stretch
from millstream.core.model.ids import TopicPartition
from millstream.core.model.partitioning import KeyRange

PRIMARY = TopicPartition("orders", 0)
KEYS = [f"key-{n}".encode() for n in range(40)]


def fan_out(number: int) -> TopicPartition:
    return TopicPartition("orders-fanout-0", number)


def split_and_merged() -> History:
    history = History.new(PRIMARY).changed(2, {PRIMARY: 100, fan_out(0): 0, fan_out(1): 0})
    return history.changed(1, {PRIMARY: 100, fan_out(0): 30, fan_out(1): 50})


def offset_at(stretch: Stretch, position: int) -> int:
    """Return the offset at which a reader with a position continues: ``start`` before it has begun, ``end`` after it has finished."""
    offset = max(stretch.start, stretch.start + position - stretch.base)
    return offset if stretch.end is None else min(offset, stretch.end)


def reads(history: History, keys: KeyRange, position: int = 0) -> Iterator[tuple[Stretch, ...]]:
    """Yield the steps of a key range's reader. It reads the logs of one step concurrently, and the steps one after the other."""
    for epoch in history.epochs:
        if epoch is history.current or epoch.position_after > position:
            yield tuple(stretch for stretch in epoch.stretches if stretch.overlaps(keys))


def position_of(history: History, keys: KeyRange, offsets: Mapping[TopicPartition, int]) -> int:
    """Return the position before which a reader has read every record, from the next offsets of its logs."""
    reached = (epoch.read_position(keys, offsets) for epoch in history.epochs)
    return next((position for position in reached if position is not None), history.current.base)


def test_one_range_uses_the_primary_log_and_several_use_the_fan_out_topic() -> None:
    history = History.new(PRIMARY)
    assert history.current.log_of(b"spark") == PRIMARY
    split = history.changed(4, dict.fromkeys((PRIMARY, *history.logs(4)), 7))
    assert {split.current.log_of(key) for key in KEYS} == {fan_out(n) for n in range(4)}
    assert split.current.log_of(None) == split.current.log_of(b"")


def test_positions_of_an_epoch_are_larger_than_the_fence_of_the_previous_epoch() -> None:
    first, second, third = split_and_merged().epochs
    fence = first.stretches[0].end
    assert fence == 100
    assert [stretch.position(stretch.start) for stretch in second.stretches] == [101, 101]
    assert third.stretches == (Stretch(PRIMARY, KeyRange(0, 1), 100, None, 152),)


def test_a_range_reads_the_logs_of_its_epochs_one_after_another() -> None:
    history = split_and_merged()
    assert [[s.log for s in step] for step in reads(history, KeyRange(1, 4))] == [
        [PRIMARY],
        [fan_out(0)],
        [PRIMARY],
    ]
    assert [[s.log for s in step] for step in reads(history, KeyRange(0, 1), 101)] == [
        [fan_out(0), fan_out(1)],
        [PRIMARY],
    ]
    assert [[s.log for s in step] for step in reads(history, KeyRange(0, 1), 152)] == [[PRIMARY]]


def test_the_position_to_commit_is_the_lowest_of_the_logs_that_are_being_read() -> None:
    history = split_and_merged()
    everything = KeyRange(0, 1)
    assert position_of(history, everything, {}) == 0
    assert position_of(history, everything, {PRIMARY: 100}) == 101
    assert position_of(history, everything, {PRIMARY: 100, fan_out(0): 30, fan_out(1): 20}) == 121
    assert position_of(history, KeyRange(0, 2), {PRIMARY: 100, fan_out(0): 30}) == 152
    assert position_of(history, everything, {PRIMARY: 103, fan_out(0): 30, fan_out(1): 50}) == 155


@given(st.lists(st.tuples(st.integers(1, 9), st.lists(st.sampled_from(KEYS), max_size=12)), max_size=6))
def test_each_key_has_one_log_per_epoch_and_growing_positions_after_any_changes(
    changes: list[tuple[int, list[bytes]]],
) -> None:
    history, ends = History.new(PRIMARY), {PRIMARY: 0} | {fan_out(n): 0 for n in range(9)}
    written: list[tuple[bytes, TopicPartition, int, int]] = []
    for ranges, keys in [*changes, (1, [])]:
        for key in keys:
            log = history.current.log_of(key)
            written.append((key, log, ends[log], history.current.number))
            ends[log] += 1
        history = history.changed(ranges, ends)
    history = History.from_json(PRIMARY, history.to_json())
    positions: dict[bytes, list[int]] = {}
    for key, log, offset, number in written:
        [stretch] = [s for s in history.epochs[number].stretches if s.log == log]
        positions.setdefault(key, []).append(stretch.position(offset))
        assert offset_at(stretch, stretch.position(offset)) == offset
        assert stretch.start <= offset < (stretch.end or 0)
    for key, found in positions.items():
        assert all(before < after for before, after in pairwise(found)), key
    for before, after in pairwise(history.epochs):
        fence = max(s.position(s.end or 0) for s in before.stretches)
        assert all(s.position(s.start) > fence for s in after.stretches)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=5),
    st.integers(1, 16).flatmap(lambda of: st.builds(KeyRange, st.integers(0, of - 1), st.just(of))),
    st.integers(1, 3),
)
def test_a_reader_that_commits_and_restarts_reads_each_key_of_its_range_in_order(
    changes: list[tuple[int, int]], keys: KeyRange, chunk_size: int
) -> None:
    history, logs = History.new(PRIMARY), {PRIMARY: 0} | {fan_out(n): 0 for n in range(9)}
    content: dict[tuple[TopicPartition, int], tuple[bytes, int]] = {}
    for sequence, (ranges, count) in enumerate(changes):
        for key in KEYS[: count * 8]:
            log = history.current.log_of(key)
            content[log, logs[log]] = (key, sequence)
            logs[log] += 1
        history = history.changed(ranges, logs)
    read: dict[bytes, list[int]] = {}
    position, last = 0, -1
    while position != last:
        offsets: dict[TopicPartition, int] = {}
        step = next(reads(history, keys, position))
        for stretch in step:
            start = offset_at(stretch, position)
            end = logs[stretch.log] if stretch.end is None else stretch.end
            for offset in range(start, min(start + chunk_size, end)):
                key, sequence = content[stretch.log, offset]
                if keys.holds(key) and sequence not in read.setdefault(key, []):
                    read[key].append(sequence)
            offsets[stretch.log] = min(start + chunk_size, end)
        done = {
            s.log: s.end for before in reads(history, keys) for s in before if s.end and s.base < step[0].base
        }
        last, position = position, position_of(history, keys, {**done, **offsets})
    expected: dict[bytes, list[int]] = {}
    for key, sequence in sorted(content.values(), key=lambda entry: entry[1]):
        if keys.holds(key):
            expected.setdefault(key, []).append(sequence)
    assert {key: found for key, found in read.items() if found} == expected
