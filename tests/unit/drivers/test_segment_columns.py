from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.model.errors import StoreError
from millstream.core.ports import StoreChange
from millstream.core.state.segments.compaction import LARGEST_BYTES
from millstream.core.state.segments.key_groups import KEY_GROUPS, WHOLE_STORE, key_group, lower_group
from millstream.drivers.segments import (
    bounds_of,
    by_lower_group,
    columns_of,
    divided_at,
    encode,
    merged,
    newest,
    segment_of,
    segments_of,
)
from millstream.drivers.spark.wire import by_number

OLD: list[StoreChange] = [(b"", b""), (b"a", b"1"), (b"b", None), (b"c" * 600, b"x" * 70_000), (b"d", b"2")]
NEW: list[StoreChange] = [(b"a", None), (b"b", b"3"), (b"bb", b""), (b"c" * 600, b"4")]


def run_of(changes: list[StoreChange]) -> object:
    return columns_of(encode(changes), "here")


def listed(*runs: object) -> list[StoreChange]:
    return [change for part in newest(list(runs)) for change in part]


@pytest.mark.parametrize("changes", [OLD, NEW, []])
def test_columns_contain_the_changes_of_their_segment(changes: list[StoreChange]) -> None:
    assert listed(run_of(changes)) == changes


CHANGES = st.dictionaries(st.binary(max_size=9), st.none() | st.binary(max_size=9), max_size=20)


@given(changes=CHANGES, data=st.data())
def test_columns_divided_by_number_equal_segments_that_are_encoded_separately(
    changes: dict[bytes, bytes | None], data: st.DataObject
) -> None:
    ordered: list[StoreChange] = sorted(changes.items())
    numbers = data.draw(st.lists(st.integers(0, 5), min_size=len(ordered), max_size=len(ordered)))
    expected = {
        number: encode([change for change, own in zip(ordered, numbers) if own == number])
        for number in sorted(set(numbers))
    }
    parts = by_number(columns_of(encode(ordered), "here"), np.array(numbers, np.int64), 6)
    assert {number: segment_of(part) for number, part in enumerate(parts) if len(part)} == expected


@given(changes=CHANGES)
def test_few_changes_become_one_segment(changes: dict[bytes, bytes | None]) -> None:
    items: list[StoreChange] = list(changes.items())
    expected = [(WHOLE_STORE, len(items), encode(items))] if items else []
    assert list(segments_of(items)) == expected


@given(changes=CHANGES)
def test_many_changes_become_one_segment_for_each_key_group(
    changes: dict[bytes, bytes | None],
) -> None:
    items: list[StoreChange] = [*changes.items(), (b"a key of ten", bytes(LARGEST_BYTES))]
    expected = {
        number: [item for item in items if key_group(item[0]) == number] for number in range(KEY_GROUPS)
    }
    assert [(number, count, data) for number, count, data in segments_of(items)] == [
        (number, len(part), encode(part)) for number, part in expected.items() if part
    ]


@given(changes=CHANGES)
def test_the_whole_store_is_divided_among_the_key_groups_below(changes: dict[bytes, bytes | None]) -> None:
    ordered: list[StoreChange] = sorted(changes.items())
    divided = [(number, listed(part)) for number, part in by_lower_group(WHOLE_STORE, run_of(ordered))]
    expected = {
        number: [item for item in ordered if key_group(item[0]) == number] for number in range(KEY_GROUPS)
    }
    assert divided == [(number, part) for number, part in expected.items() if part]


@given(changes=CHANGES)
def test_a_key_group_is_divided_among_the_lower_key_groups(changes: dict[bytes, bytes | None]) -> None:
    ordered: list[StoreChange] = sorted((key, value) for key, value in changes.items() if key_group(key) % 2)
    divided = [(number, listed(part)) for number, part in by_lower_group(1, run_of(ordered))]
    expected = {
        number: [item for item in ordered if lower_group(1, item[0]) == number] for number in range(512)
    }
    assert divided == [(number, part) for number, part in expected.items() if part]


@given(st.lists(CHANGES, max_size=6))
def test_merging_has_the_same_result_as_updating_a_dict(batches: list[dict[bytes, bytes | None]]) -> None:
    model: dict[bytes, bytes | None] = {}
    for batch in batches:
        model.update(batch)
    runs = [run_of(list(batch.items())) for batch in batches]
    assert segment_of(merged(list(runs))) == encode(list(model.items()))
    assert listed(*runs) == sorted(model.items())


@given(st.lists(CHANGES, min_size=2, max_size=5), st.integers(1, 4))
def test_merging_in_steps_has_the_same_result_as_merging_at_once(
    batches: list[dict[bytes, bytes | None]], cut: int
) -> None:
    runs = [run_of(list(batch.items())) for batch in batches]
    in_steps = merged([merged(runs[:cut]), merged(runs[cut:])])
    assert segment_of(in_steps) == segment_of(merged(runs))


def test_merged_runs_are_not_kept_in_memory() -> None:
    runs = [run_of(OLD), run_of(NEW)]
    merged(runs)
    assert runs == []


def test_the_newest_change_of_a_repeated_key_remains() -> None:
    assert listed(run_of(OLD), run_of(NEW)) == sorted({**dict(OLD), **dict(NEW)}.items())
    assert listed(run_of(NEW), run_of(OLD)) == sorted({**dict(NEW), **dict(OLD)}.items())
    assert listed(*[run_of([(b"a", b"%d" % number)]) for number in range(100)]) == [(b"a", b"99")]


def test_empty_runs_have_no_parts() -> None:
    assert list(newest([])) == []
    assert list(newest([run_of([])])) == []


def test_parts_are_small_and_in_key_order() -> None:
    changes: list[StoreChange] = [(b"%06d" % number, b"%d" % number) for number in range(20_000)]
    parts = list(newest([run_of(changes[1::2]), run_of(changes[::2])]))
    assert [change for part in parts for change in part] == changes
    assert max(map(len, parts)) < len(changes) / 4


def test_a_run_is_divided_at_the_bounds() -> None:
    run = run_of(OLD)
    assert [listed(part) for part in divided_at(run, [b"b", b"bb", b"z"])] == [OLD[:2], OLD[2:3], OLD[3:], []]
    assert divided_at(run, []) == [run]
    assert bounds_of(run, 5) == [key for key, _ in OLD[1:]]
    assert bounds_of(run, 1) == []


def test_a_damaged_segment_is_detected() -> None:
    data = bytearray(encode(OLD))
    data[-1] ^= 1
    with pytest.raises(StoreError, match=r"segment 7 of .* bytes does not match its checksum"):
        columns_of(bytes(data), "segment 7")
