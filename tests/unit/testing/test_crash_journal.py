"""The journal checker on journals written by hand, and on journals of repeated micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.model import serdes
from millstream.testing.crash.app import Expected
from millstream.testing.crash.journal import Findings, check_contents, check_journals, journals_of
from millstream.testing.kafka import ConsumedRecord

COUNTS = [1, 2, 3, 4, 5]


def numbers(found: Findings) -> tuple[int, int, int, int, int]:
    return found.lost, found.duplicated, found.reordered, found.wrong, found.stale


@pytest.mark.parametrize(
    ("seen", "lost", "duplicated", "reordered", "wrong", "stale"),
    [
        ([1, 2, 3, 4, 5], 0, 0, 0, 0, 0),
        ([], 5, 0, 0, 0, 0),
        ([1, 2, 4, 5], 1, 0, 0, 0, 0),
        ([1, 2, 3, 4], 1, 0, 0, 0, 1),
        ([1, 2, 2, 3, 4, 5], 0, 1, 0, 0, 0),
        ([1, 2, 3, 4, 5, 5], 0, 1, 0, 0, 0),
        ([1, 2, 3, 2, 3, 4, 5], 0, 2, 0, 0, 0),
        ([1, 2, 1, 3, 2, 3, 4, 5], 0, 3, 0, 0, 0),
        ([1, 2, 3, 4, 5, 3], 0, 1, 0, 0, 1),
        ([1, 3, 2, 4, 5], 0, 0, 1, 0, 0),
        ([1, 2, 3, 4, 5, 6], 0, 0, 0, 1, 1),
        ([1, 2, 9, 3, 4, 5], 0, 0, 0, 1, 0),
    ],
)
def test_each_deviation_from_the_expected_journal_is_classified(
    seen: list[int], lost: int, duplicated: int, reordered: int, wrong: int, stale: int
) -> None:
    assert numbers(check_journals({"k": COUNTS}, {"k": seen})) == (lost, duplicated, reordered, wrong, stale)


@pytest.mark.parametrize("seen", [[1, 2, 2, 3, 4, 5], [1, 2, 3, 2, 3, 4, 5], [1, 2, 3, 4, 5, 4, 5]])
def test_repetitions_are_allowed_only_with_at_least_once(seen: list[int]) -> None:
    found = check_journals({"k": COUNTS}, {"k": seen})
    assert not found.breaks("at_least_once")
    assert found.breaks("exactly_once")


@pytest.mark.parametrize("seen", [[], [1, 2, 4, 5], [1, 3, 2, 4, 5], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 4]])
def test_other_deviations_break_every_guarantee(seen: list[int]) -> None:
    found = check_journals({"k": COUNTS}, {"k": seen})
    assert found.breaks("at_least_once")
    assert found.breaks("exactly_once")


def test_an_unexpected_key_is_wrong() -> None:
    found = check_journals({"k": COUNTS}, {"k": COUNTS, "other": [1, 2]})
    assert numbers(found) == (0, 0, 0, 2, 0)
    assert found.examples == ("'other': unexpected key",)


def test_inconsistent_stores_show_as_a_wrong_and_a_lost_value() -> None:
    found = check_journals({"account": [[1, 10], [2, 30]]}, {"account": [[1, 10], [2, 20]]})
    assert numbers(found) == (1, 0, 0, 1, 1)
    assert "'account': ends with [2, 20] instead of [2, 30]" in found.examples


def test_equal_values_are_distinguished_by_their_order() -> None:
    assert numbers(check_journals({"k": [1, 0, 1, 0]}, {"k": [1, 0, 1, 0]})) == (0, 0, 0, 0, 0)
    assert numbers(check_journals({"k": [1, 0, 1, 0]}, {"k": [1, 0, 1, 0, 1, 0]})) == (0, 2, 0, 0, 0)


def test_the_number_of_examples_is_limited() -> None:
    assert len(check_journals({str(key): [1] for key in range(100)}, {}).examples) == 10


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 9), max_size=3)), max_size=20),
)
def test_interrupted_and_repeated_batches_satisfy_at_least_once(
    count: int, batches: list[tuple[int, list[int]]]
) -> None:
    expected = list(range(count))
    seen: list[int] = []
    begin = repeated = 0
    for size, cuts in [*batches, (count, [])]:
        batch = expected[begin : begin + size]
        for cut in cuts:
            seen += batch[:cut]
            repeated += len(batch[:cut])
        seen += batch
        begin += size
    found = check_journals({"k": expected}, {"k": seen})
    assert not found.breaks("at_least_once")
    assert found.breaks("exactly_once") == bool(repeated)
    assert found.duplicated == repeated


@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 7), max_size=12))
def test_only_the_expected_journal_satisfies_exactly_once(expected: list[int], seen: list[int]) -> None:
    assert check_journals({"k": expected}, {"k": seen}).breaks("exactly_once") == (seen != expected)


def record(offset: int, key: bytes | None, value: bytes | None) -> ConsumedRecord:
    return ConsumedRecord("counts", 0, offset, 0, key, value)


def test_journals_are_read_from_records_in_their_order() -> None:
    first, second = serdes.int64.serialize(1), serdes.int64.serialize(2)
    records = [record(0, b"a", first), record(1, None, first), record(2, b"a", second), record(3, b"a", None)]
    assert journals_of(records, serdes.string, serdes.int64) == {"a": [1, 2, None], None: [1]}


def test_stores_are_compared_entry_by_entry() -> None:
    expected = Expected({}, {"balances": {"a": 1, "b": 2}, "bookings": {"a": 7}})
    contents = {("balances", "a"): 1, ("balances", "b"): 3, ("bookings", "c"): 1}
    assert check_contents(expected, contents) == (
        3,
        (
            "store balances, key 'b': 3 instead of 2",
            "store bookings, key 'a': 'nothing' instead of 7",
            "store bookings, key 'c': 1 instead of 'nothing'",
        ),
    )


def test_a_merged_journal_may_omit_all_but_the_last_value() -> None:
    assert not check_journals({"a": [1, 2, 3]}, {"a": [3]}, merged=True).breaks("exactly_once")
    assert check_journals({"a": [1, 2, 3]}, {"a": [1, 2]}, merged=True).lost == 1
    assert check_journals({"a": [1, 2, 3]}, {}, merged=True).lost == 1
    assert check_journals({"a": [1, 2, 3]}, {"a": [2, 2, 3]}, merged=True).duplicated == 1
    assert check_journals({"a": [1, 2, 3]}, {"a": [2, 1, 3]}, merged=True).reordered == 1
    assert check_journals({"a": [1, 2, 3]}, {"a": [4, 3]}, merged=True).wrong == 1


def test_a_cut_journal_may_end_anywhere_but_must_not_have_gaps() -> None:
    expected = {"a": [1, 2, 3], "b": [1]}
    assert not check_journals(expected, {"a": [1, 2]}, cut=True).breaks("exactly_once")
    assert not check_journals(expected, {}, cut=True).breaks("exactly_once")
    assert check_journals(expected, {"a": [1, 3]}, cut=True).lost == 1
    assert check_journals(expected, {"a": [1, 1, 2]}, cut=True).duplicated == 1
    assert check_journals(expected, {"a": [1, 4]}, cut=True).wrong == 1
    assert not check_journals(expected, {"a": [2]}, cut=True, merged=True).breaks("exactly_once")
