"""An async worker keeps the functions that are used, and asks again for others."""

from __future__ import annotations

import pickle

from millstream.drivers.async_worker.server import FunctionCache


def pickles(*names: bytes) -> dict[bytes, bytes]:
    return {name: pickle.dumps(name.decode()) for name in names}


def test_what_is_known_need_not_be_sent_again() -> None:
    loaded = FunctionCache()
    assert loaded.missing({b"a", b"b"}) == {b"a", b"b"}
    loaded.load(pickles(b"a", b"b"))
    assert loaded.missing({b"a", b"b"}) == frozenset()
    assert loaded.by_digest == {b"a": "a", b"b": "b"}


def test_what_was_not_needed_for_longest_is_asked_for_again() -> None:
    loaded = FunctionCache(most=2)
    for name in (b"a", b"b"):
        loaded.load(pickles(name))
        assert not loaded.missing({name})
    assert not loaded.missing({b"a"})
    loaded.load(pickles(b"c"))
    assert not loaded.missing({b"c"})
    assert loaded.missing({b"b"}) == {b"b"}
    assert not loaded.missing({b"a"})


def test_what_is_needed_at_once_is_kept_however_much_it_is() -> None:
    loaded = FunctionCache(most=2)
    names = [b"%d" % n for n in range(5)]
    loaded.load(pickles(b"old", *names))
    assert not loaded.missing(names)
    assert sorted(loaded.by_digest) == names


def test_an_object_that_is_sent_twice_stays_the_one_it_is() -> None:
    loaded = FunctionCache()
    loaded.load(pickles(b"a"))
    first = loaded.by_digest[b"a"]
    loaded.load(pickles(b"a"))
    assert loaded.by_digest[b"a"] is first
