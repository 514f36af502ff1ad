from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

import millstream as ms
from millstream.core.model.record import Records

RECORD = ms.Record("k", 1, 5, (("h", b"x"), ("h", None)))


def test_a_changed_copy_leaves_the_record_as_it_is() -> None:
    assert RECORD.with_key(2) == ms.Record(2, 1, 5, RECORD.headers)
    assert RECORD.with_value(None) == ms.Record("k", None, 5, RECORD.headers)
    assert RECORD.with_timestamp(6) == ms.Record("k", 1, 6, RECORD.headers)
    assert RECORD.with_headers([("a", b"")]) == ms.Record("k", 1, 5, (("a", b""),))  # type: ignore[arg-type]
    assert ms.Record("k", 1, 5, (("h", b"x"), ("h", None))) == RECORD


@pytest.mark.parametrize("name", ["key", "value", "timestamp", "headers"])
def test_a_record_cannot_be_changed_in_place(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"immutable; use with_{name}\(\.\.\.\)"):
        setattr(RECORD, name, None)


def test_a_record_is_hashable_comparable_and_picklable() -> None:
    assert hash(RECORD) == hash(copy.copy(RECORD))
    assert pickle.loads(pickle.dumps(RECORD)) == RECORD
    assert ("k", 1, 5, RECORD.headers) != RECORD
    assert repr(ms.Record("k", 1, 5)) == "Record(key='k', value=1, timestamp=5, headers=())"


@pytest.mark.parametrize("make", [lambda: ms.Record("k", 1, -1), lambda: RECORD.with_timestamp(-5)])
def test_a_negative_timestamp_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match="must not be negative: -"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("make", [lambda: ms.Record("k", 1, 1 << 63), lambda: RECORD.with_timestamp(1 << 64)])
def test_a_timestamp_that_a_topic_cannot_contain_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must be at most 9223372036854775807: "):
        make()
    assert ms.Record("k", 1, (1 << 63) - 1).timestamp == (1 << 63) - 1


@pytest.mark.parametrize("timestamp", [1.5, "now", None])
def test_a_timestamp_that_is_not_an_int_is_refused(timestamp: object) -> None:
    with pytest.raises(TypeError, match=f"timestamp of a record must be an int of ms, not {timestamp!r}"):
        ms.Record("k", 1, timestamp)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an int of ms"):
        RECORD.with_timestamp(timestamp)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "headers",
    [
        {"a": b"b"},
        {"a": "b"},
        ("a", b"b"),
        (("a", "b"),),
        ((b"a", b"b"),),
        (("a", b"b", b"c"),),
        ("ab",),
        "ab",
    ],
)
def test_headers_that_a_topic_cannot_contain_are_refused(headers: object) -> None:
    with pytest.raises(TypeError, match="headers of a record must be pairs of a name and bytes or None"):
        ms.Record("k", 1, 5, headers)  # type: ignore[arg-type]


class TestColumns:
    def test_columns_are_appended(self) -> None:
        records = Records([b"a"], [b"1"], [1], [0])
        records.extend(Records([b"b"], [None], [2], [1]))
        assert records == Records([b"a", b"b"], [b"1", None], [1, 2], [0, 1])

    @pytest.mark.parametrize(
        ("first", "second", "together"),
        [
            (None, None, None),
            (None, [(("h", b""),)], [(), (("h", b""),)]),
            ([(("h", b""),)], None, [(("h", b""),), ()]),
        ],
    )
    def test_records_without_headers_get_empty_headers_when_others_have_headers(
        self, first: list[ms.Record], second: list[ms.Record], together: list[ms.Record]
    ) -> None:
        records = Records([b"a"], [b"1"], [1], [0], first)
        records.extend(Records([b"b"], [b"2"], [2], [1], second))
        assert records.headers == together

    def test_chosen_partitions_are_appended(self) -> None:
        records = Records()
        records.extend(Records([b"a"], [b"1"], [1], partitions=[3]))
        records.extend(Records([b"b"], [b"2"], [2], partitions=[-1]))
        assert records.partitions == [3, -1]

    def test_the_byte_count_includes_keys_and_values(self) -> None:
        assert Records([b"abc", None, b""], [None, b"12", b"3"], [0, 0, 0]).byte_count() == 6
        assert Records().byte_count() == 0

    def test_chosen_and_unchosen_partitions_do_not_mix(self) -> None:
        records = Records([b"a"], [b"1"], [1], partitions=[3])
        with pytest.raises(ValueError, match="cannot be in one batch"):
            records.extend(Records([b"b"], [b"2"], [2]))
