"""Uncommitted writes over committed content read like a dict, also by prefix."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream import serdes
from millstream.core.state.keyvalue import Overlay
from millstream.core.state.memory import MemoryStores
from millstream.core.state.values import Values

PREFIXES = (b"a", b"b")
KEYS = [prefix + bytes([number]) for prefix in PREFIXES for number in range(6)]


def overlay(committed: dict[bytes, str]) -> tuple[Overlay, Values]:
    """Make an overlay over committed content."""
    stores = MemoryStores()
    stores.apply({"s": [(key, value.encode()) for key, value in committed.items()]})
    values = Values("s", serdes.string)
    return Overlay(values, stores.open("s")), values


@given(
    st.dictionaries(st.sampled_from(KEYS), st.text(max_size=3)),
    st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.text(max_size=3), st.booleans()), max_size=40),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_a_scan_under_a_prefix_reads_like_a_dict(
    committed: dict[bytes, str], writes: list[tuple[bytes, Any, bool]], low: int, high: int
) -> None:
    rows, values = overlay(committed)
    model = dict(committed)
    for key, value, reverse in writes:
        rows.keep_under(key[:1], key, values.overlay_form(value))
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value
        begin, end = key[:1] + bytes([low]), key[:1] + bytes([high])
        expected = sorted(((k, v) for k, v in model.items() if begin <= k < end), reverse=reverse)
        assert list(rows.scan_under(key[:1], begin, end, reverse=reverse)) == expected
        assert list(rows.scan(begin, end, reverse=reverse)) == expected
    changed = {change[0]: change[1] for change in rows.drain()}
    assert {k: v.encode() for k, v in model.items()} == {
        k: v for k, v in ({k: v.encode() for k, v in committed.items()} | changed).items() if v is not None
    }
    assert list(rows.scan_under(b"a", b"a", b"b", reverse=False)) == sorted(
        (k, v) for k, v in committed.items() if k < b"b"
    )
