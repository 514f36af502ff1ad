"""The pure functions of the benchmark: they generate workloads, check outputs and compare runs."""

from __future__ import annotations

import json

import pytest
from bench.calls import CallPair, CallResult, CallSide
from bench.load import VALUE_BYTES, Workload, rows
from bench.memory import MemoryResult
from bench.race import Pair, RaceResult, Side
from bench.store_size import StoreRun, StoreSizeResult

import millstream as ms
from bench import calls, check, jobs

USAGE = {"processor_s": 4.0, "idle": 0.1, "others": 0.02, "gc_s": 0.3, "broker_s": 1.5}


def pair(ours: float, peer: float, wrong: str | None = None) -> Pair:
    return Pair(Side(peer, 1.0, 2.0, USAGE, None), Side(ours, 1.0, 2.0, USAGE, wrong), [])


def test_the_workload_is_deterministic_and_has_the_requested_size() -> None:
    blocks = [list(Workload(250_000, 10).blocks()) for _ in range(2)]
    assert blocks[0] == blocks[1]
    records = [record for block in blocks[0] for record in block]
    assert len(records) == 250_000
    assert len({key for key, _ in records}) == 10
    assert {len(value) for _, value in records} == {VALUE_BYTES}
    assert next(Workload(5, 10, seed=1).blocks()) != next(Workload(5, 10, seed=2).blocks())


def test_count_output_is_correct_if_its_last_values_and_number_of_records_are() -> None:
    wanted = check.expected("count", Workload(1_000, 3))
    seen = dict.fromkeys(wanted.last, 0)
    updates = []
    for block in Workload(1_000, 3).blocks():
        for key, _ in block:
            seen[key] += 1
            updates.append((key, b"%d" % seen[key]))
    assert check.difference(check.digest("count", updates), wanted) is None
    assert "999 records" in str(check.difference(check.digest("count", updates[:-1]), wanted))
    updates[-1] = (updates[-1][0], b"7")
    assert check.difference(check.digest("count", updates), wanted) == "wrong last value for 1 of 3 keys"


def test_windowed_count_output_is_correct_if_the_last_value_of_each_key_and_window_is() -> None:
    workload = Workload(600, 3, begin_ms=120_000)
    assert list(workload.timestamps())[::100] == [120_000, 130_000, 140_000, 150_000, 160_000, 170_000]
    wanted = check.expected("windowed-count", workload)
    assert len(wanted.last) == 3 * 6
    keys = [key for block in workload.blocks() for key, _ in block]
    first = sum(key == keys[0] for key in keys[:100])
    assert wanted.last[keys[0] + (120_000).to_bytes(8, "big")] == first.to_bytes(8, "big")
    updates = [(key, value) for key, value in wanted.last.items()] * 2
    assert "36 records" in str(check.difference(check.digest("windowed-count", updates), wanted))


def test_session_count_output_is_correct_if_each_extension_deletes_the_previous_session() -> None:
    workload = Workload(40, 2, begin_ms=0)  # a record every 1.5 s: some sessions grow, others end
    wanted = check.expected("session-count", workload)
    pairs = (pair for block in workload.blocks() for pair in block)
    with ms.testing.TopologyTestDriver(jobs.topology("session-count", "in", "out")) as driver:
        for (key, value), timestamp in zip(pairs, workload.timestamps()):
            driver.pipe("in", key, value, timestamp=timestamp)
        read = driver.read("out")
    out = []
    for session, count in ((record.key, record.value) for record in read):
        key = session.key + session.end.to_bytes(8, "big") + session.start.to_bytes(8, "big")
        out.append((key, b"" if count is None else count.to_bytes(8, "big")))
    assert check.difference(check.digest("session-count", out), wanted) is None
    assert {b"", b"\0" * 7 + b"\1", b"\0" * 7 + b"\2"} < set(wanted.last.values())


def test_map_output_may_have_any_order_but_no_wrong_value() -> None:
    workload = Workload(100, 5)
    out = [(key, value.upper()) for block in workload.blocks() for key, value in block]
    wanted = check.expected("map", workload)
    assert check.difference(check.digest("map", reversed(out)), wanted) is None
    out[0] = (out[0][0], out[0][1].lower())
    assert check.difference(check.digest("map", out), wanted) is not None


def test_join_output_is_correct_if_every_record_has_the_row_of_its_key() -> None:
    workload = Workload(100, 5)
    table = dict(row for block in rows(workload) for row in block)
    out = [(key, value + b":" + table[key]) for block in workload.blocks() for key, value in block]
    wanted = check.expected("stream-table-join", workload)
    assert len(table) == 5
    assert check.difference(check.digest("stream-table-join", reversed(out)), wanted) is None
    out[0] = (out[0][0], out[0][1] + b"!")
    assert check.difference(check.digest("stream-table-join", out), wanted) is not None
    assert "99 records" in str(check.difference(check.digest("stream-table-join", out[1:]), wanted))


def test_the_ratio_is_the_median_of_the_pairs_not_the_ratio_of_the_medians() -> None:
    race = RaceResult("count", 10, (pair(100, 100), pair(200, 50), pair(90, 60)))
    assert race.ratio == 1.5
    assert race.as_json()["ratio"] == {"median": 1.5, "min": 1.0, "max": 4.0}
    assert race.as_json()["records_per_s"] == 100
    assert race.as_json()["peer_records_per_s"] == 60
    json.dumps(race.as_json())


def test_a_wrong_output_is_reported() -> None:
    race = RaceResult("map", 10, (pair(1, 1), pair(1, 1, "9 records")))
    assert race.wrong == ["map, ours: 9 records"]


def test_store_sizes_are_compared_by_their_median_times() -> None:
    small, large = (
        StoreRun(keys, times_s, 1.0, 0, [])
        for keys, times_s in ((5, [1.0, 1.0, 9.0]), (500, [1.5, 1.5, 1.5]))
    )
    assert StoreSizeResult(1, small, large).ratio == 1.5


def test_memory_compares_the_last_round_with_the_second() -> None:
    assert MemoryResult(1, [50, 100, 400, 110], [1] * 4, [2] * 4).ratio == pytest.approx(1.1)


def test_the_call_rate_excludes_the_start_and_begins_between_bursts() -> None:
    every_ms = list(range(1_000, 3_000))
    assert calls.rate(every_ms) == pytest.approx(1_000)
    bursts = [start + spread for start in range(0, 10_000, 1_000) for spread in range(200)]
    assert calls.rate(bursts) == 200
    late = [
        0,
        *(time + 60_000 for time in every_ms[1:]),
    ]  # the clock does not begin with the first result
    assert calls.rate(late) == pytest.approx(1_000)


def test_call_results_are_correct_if_each_key_has_its_own_results_in_order() -> None:
    wanted = calls.by_key([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    assert calls.difference(calls.by_key([(b"a", b"1"), (b"a", b"3"), (b"b", b"2")]), wanted) is None
    assert calls.difference(calls.by_key([(b"a", b"1"), (b"b", b"2")]), wanted) == "2 results instead of 3"
    swapped = calls.by_key([(b"a", b"3"), (b"b", b"2"), (b"a", b"1")])
    assert "1 of 2 keys" in str(calls.difference(swapped, wanted))
    other_key = calls.by_key([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    assert "1 of 2 keys" in str(calls.difference(other_key, wanted))


def test_call_results_have_the_median_ratio_and_processor_time_per_million_records() -> None:
    def side(rate: float, wrong: str | None = None) -> CallSide:
        return CallSide(rate, rate / 2, 3.0, wrong)

    pairs = (CallPair(side(100), side(300), []), CallPair(side(100, "lost"), side(100), []))
    call_result = CallResult(100, 20_000, (*pairs, CallPair(side(50), side(100), [])))
    result = call_result.as_json()
    assert result["ratio"] == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert result["ours"] == {"rate": 100, "whole": 50, "processor_s_per_million": 150.0}
    assert call_result.wrong == ["calls, 100 in flight, peer: lost"]
    json.dumps(result)
