"""A view with parked changes shows what it would show if the changes had been applied."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.ports import ByteReader
from millstream.core.state.memory import MemoryStores
from millstream.drivers.directory import ParkedColumns
from millstream.drivers.parked_view import Parked, ParkedView
from millstream.drivers.segments import SortedChanges, columns_of, encode, segments_of

KEYS = st.binary(max_size=2)
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=12)
BATCHES = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("st"), CHANGES, max_size=2), st.sets(st.sampled_from("st"))),
    max_size=4,
)


@given(committed=CHANGES, batches=BATCHES, key=KEYS, low=st.none() | KEYS, high=st.none() | KEYS)
def test_a_view_with_parked_changes_equals_a_copy_that_has_applied_them(
    committed: dict[bytes, bytes | None],
    batches: list[tuple[dict[str, dict[bytes, bytes | None]], set[str]]],
    key: bytes,
    low: bytes | None,
    high: bytes | None,
) -> None:
    copy, applied = MemoryStores(), MemoryStores()
    for stores in (copy, applied):
        stores.apply({"s": list(committed.items())})
    for changes, dropped in batches:
        applied.apply({name: list(items.items()) for name, items in changes.items()}, dropped)
    view = ParkedView(copy, Parked([_parked(changes, dropped) for changes, dropped in batches]))
    for name in "st":
        assert _content(view.open(name), key, low, high) == _content(applied.open(name), key, low, high)


def test_changes_of_many_pieces_are_scanned_in_both_directions() -> None:
    changes = [(b"%05d" % number, None if number % 7 == 0 else b"%d" % number) for number in range(10_000)]
    table = SortedChanges(columns_of(encode(changes), "the changes"))
    assert list(table.scan(None, None)) == changes
    assert list(table.scan(b"00100", b"09000", reverse=True)) == changes[100:9000][::-1]
    assert (table.find(b"00007"), table.find(b"00008"), table.find(b"1")) == (
        (b"00007", None),
        (b"00008", b"8"),
        None,
    )


def test_changes_in_several_segments_are_scanned_in_key_order() -> None:
    changes = [(b"%05d" % number, bytes(1000)) for number in range(5_000)]
    segments = [segment for _, _, segment in segments_of(changes)]
    assert len(segments) > 1
    columns = {"s": [columns_of(segment, "the changes") for segment in segments]}
    reader = ParkedView(MemoryStores(), Parked([ParkedColumns(columns, ())])).open("s")
    assert list(reader.scan(None, None)) == changes
    assert reader.approximate_count() == 5_000


def _parked(changes: dict[str, dict[bytes, bytes | None]], dropped: set[str]) -> ParkedColumns:
    columns = {name: [columns_of(encode(list(items.items())), name)] for name, items in changes.items()}
    return ParkedColumns(columns, dropped)


def _content(
    reader: ByteReader, key: bytes, low: bytes | None, high: bytes | None
) -> tuple[bytes | None, list[tuple[bytes, bytes]], list[tuple[bytes, bytes]], int]:
    forwards, backwards = (list(reader.scan(low, high, reverse=reverse)) for reverse in (False, True))
    return reader.get(key), forwards, backwards, reader.approximate_count()
