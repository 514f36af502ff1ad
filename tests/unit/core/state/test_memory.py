from __future__ import annotations

from millstream.core.state.memory import MemoryStore


def test_a_scan_is_of_the_content_when_it_began() -> None:
    store = MemoryStore()
    store.apply([(b"b", b"2"), (b"a", b"1")])
    scan = store.scan(None, None)
    store.apply([(b"a", None), (b"c", b"3")])
    assert list(scan) == [(b"a", b"1"), (b"b", b"2")]
    assert list(store.scan(None, None, reverse=True)) == [(b"c", b"3"), (b"b", b"2")]
