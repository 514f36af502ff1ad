"""The checks of the proofs detect errors in wrong input."""

from __future__ import annotations

import numpy as np

from millstream.testing.crash.broker_topics import OFFSETS, Commit, commits_in
from millstream.testing.kafka import ConsumedRecord

from .checks import (
    NEVER,
    called_again,
    committed_since,
    completed_in_order,
    finish_times,
    first_begin_and_last_end,
    too_early,
    with_their_batches,
)
from .enrichment import answer, chains, fails, lasts_ms, serial_run, spread_keys, zipf_keys
from .journal import BEGIN, END, FAILED, LINE, Lines, overlaps


def lines_of_calls(*rows: tuple[int, int, int, int]) -> Lines:
    """Return lines with a kind, a number, a time and a note."""
    lines = np.zeros(len(rows), LINE)
    for index, row in enumerate(rows):
        lines["kind"][index], lines["number"][index], lines["at_us"][index], lines["note"][index] = row
    return lines


def test_a_commit_beyond_an_unfinished_record_is_detected() -> None:
    offsets, finished = np.array([0, 1, 5]), np.array([1_000, 9_000, 2_000])
    assert too_early([Commit(0, 0, 0), Commit(0, 1, 1_999), Commit(0, 6, 9_999)], offsets, finished) == []
    assert too_early([Commit(0, 1, 999)], offsets, finished) == [Commit(0, 1, 999)]
    assert too_early([Commit(0, 5, 8_999)], offsets, finished) == [Commit(0, 5, 8_999)]
    assert too_early([Commit(0, 6, 8_999)], offsets, np.array([1, 2, NEVER])) == [Commit(0, 6, 8_999)]


def test_commits_are_parsed_from_the_formats_of_the_broker() -> None:
    key = b"\x00\x01\x00\x03app\x00\x02in\x00\x00\x00\x05"
    begin = b"\x00\x00\x00\x00\x00\x00\x00\x02\xff\xff\xff\xff"
    timestamp = b"\x00\x00\x01\xa2\x00u\xd9\xb9"
    values = [
        b"\x00\x03" + begin + b"\x00\x02xy" + timestamp,
        b"\x00\x04" + begin + b"\x01" + timestamp + b"\x00",
        b"\x00\x04" + begin + b"\x03xy" + timestamp + b"\x00",
        b"\x00\x04" + begin + b"\x81\x01" + b"x" * 128 + timestamp + b"\x00",
    ]
    for value in values:
        record = ConsumedRecord(OFFSETS, 0, 0, 1, key, value)
        assert [*commits_in(record, "app", "in")] == [Commit(5, 2, 0x1A20075D9B9 * 1000 + 999)]
        assert [*commits_in(record, "app", "out")] == []
    assert [*commits_in(ConsumedRecord(OFFSETS, 0, 0, 1, key, None), "app", "in")] == []
    assert [
        *commits_in(ConsumedRecord(OFFSETS, 0, 0, 1, b"\x00\x02\x00\x03app", values[0]), "app", "in")
    ] == []


def test_a_record_is_finished_when_a_call_for_it_first_ends_with_a_result() -> None:
    records = [
        ConsumedRecord("in", 0, offset, 1, b"k", value) for offset, value in ((4, b"2"), (7, b"0"), (9, b"1"))
    ]
    lines = lines_of_calls(
        (BEGIN, 0, 1, 0), (FAILED, 0, 2, 0), (END, 2, 5, 0), (END, 0, 8, 0), (END, 0, 9, 0)
    )
    assert finish_times(records, int, lines).tolist() == [5, 8, NEVER]


def test_a_call_for_a_record_whose_completion_was_committed_is_detected() -> None:
    lines = lines_of_calls((BEGIN, 0, 10, 0), (BEGIN, 1, 20, 0), (BEGIN, 0, 30, 0))
    assert called_again(lines, np.array([30, NEVER])) == 0
    assert called_again(lines, np.array([29, NEVER])) == 1


def test_a_completion_is_committed_with_its_first_result() -> None:
    numbers, taken = np.array([2, 0, 2]), np.array([10, 20, 30])
    assert committed_since(numbers, taken, 4).tolist() == [20, NEVER, 10, NEVER]


def test_a_result_is_committed_with_its_micro_batch() -> None:
    numbers, taken, no_kills = np.array([2, 0, 2]), np.array([10, 20, 30]), np.array([], np.int64)
    assert with_their_batches(numbers, taken, np.array([5, 15, 19]), no_kills).tolist() == [15, NEVER, NEVER]
    assert with_their_batches(numbers, taken, np.array([25, 40]), no_kills).tolist() == [25, 25, 40]


def test_a_result_of_a_killed_attempt_proves_nothing_if_another_exists() -> None:
    numbers, taken = np.array([2, 0, 2]), np.array([10, 20, 90]) * 1_000_000
    batches, before, after = np.array([50, 100]) * 1_000_000, np.array([5_000_000]), np.array([60_000_000])
    between, late = np.array([30_000_000]), np.array([95_000_000])
    sound = [50_000_000, 50_000_000, 100_000_000]
    assert with_their_batches(numbers, taken, batches, before).tolist() == sound
    assert with_their_batches(numbers, taken, batches, after).tolist() == sound
    assert with_their_batches(numbers, taken, batches, between).tolist() == [NEVER, *sound[1:]]
    assert with_their_batches(numbers, taken, batches, np.array([9_500_000])).tolist() == [NEVER, *sound[1:]]
    assert with_their_batches(numbers, taken, batches, late).tolist() == sound
    assert with_their_batches(numbers[::-1], taken[::-1], batches, between).tolist() == [*sound[:0:-1], NEVER]


def test_records_of_a_key_that_complete_in_another_order_are_detected() -> None:
    keys = np.array([5, 6, 5, 6])
    right = lines_of_calls(*((END, number, 0, 0) for number in (1, 0, 3, 2)))
    wrong = lines_of_calls(*((END, number, 0, 0) for number in (1, 2, 3, 0)))
    assert completed_in_order(keys, right)
    assert not completed_in_order(keys, wrong)


def test_calls_for_many_records_overlap_if_they_share_a_key() -> None:
    keys = np.array([5, 5, 6, 6])
    apart = [
        (BEGIN, 0, 0, 1),
        (BEGIN, 1, 0, 1),
        (BEGIN, 2, 0, 2),
        (END, 0, 0, 1),
        (FAILED, 1, 0, 1),
        (END, 2, 0, 2),
    ]
    calls = first_begin_and_last_end(keys, lines_of_calls(*apart))
    assert calls["kind"].tolist() == [BEGIN, BEGIN, FAILED, END]
    assert overlaps(calls, keys[calls["number"]]) == 0
    together = lines_of_calls((BEGIN, 0, 0, 1), (BEGIN, 1, 0, 2), (END, 0, 0, 1), (END, 1, 0, 2))
    calls = first_begin_and_last_end(keys, together)
    assert overlaps(calls, keys[calls["number"]]) == 1


def test_a_chain_depends_on_each_answer_and_its_position() -> None:
    keys = np.array([1, 2, 1])
    right = [("k1", answer(0)), ("k2", answer(1)), ("k1", answer(2))]
    assert chains(right) == serial_run(keys)
    assert chains(right[::-1]) != serial_run(keys)
    assert chains([*right, right[1]]) != serial_run(keys)


def test_the_workload_has_the_specified_failures_durations_and_skew() -> None:
    numbers = range(100_000)
    assert 0.045 < sum(map(fails, numbers)) / len(numbers) < 0.055
    assert min(map(lasts_ms, numbers)) == 0
    assert max(map(lasts_ms, numbers)) == 5
    hottest = np.bincount(zipf_keys(100_000, 1_000, 1.1)).max()
    assert 0.17 < hottest / 100_000 < 0.19
    assert len(np.unique(spread_keys(100_000, 10_000))) > 9_990
