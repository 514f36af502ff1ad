"""The function cache of an async worker keeps the most recently used functions, and requests the others again."""

from __future__ import annotations

import pickle

from millstream.drivers.async_worker.server import FunctionCache


def pickles(*names: bytes) -> dict[bytes, bytes]:
    return {name: pickle.dumps(name.decode()) for name in names}


def test_a_cached_function_need_not_be_sent_again() -> None:
    cache = FunctionCache()
    assert cache.missing({b"a", b"b"}) == {b"a", b"b"}
    cache.load(pickles(b"a", b"b"))
    assert cache.missing({b"a", b"b"}) == frozenset()
    assert cache.by_digest == {b"a": "a", b"b": "b"}


def test_the_least_recently_used_function_is_evicted() -> None:
    cache = FunctionCache(most=2)
    for name in (b"a", b"b"):
        cache.load(pickles(name))
        assert not cache.missing({name})
    assert not cache.missing({b"a"})
    cache.load(pickles(b"c"))
    assert not cache.missing({b"c"})
    assert cache.missing({b"b"}) == {b"b"}
    assert not cache.missing({b"a"})


def test_functions_of_one_request_are_all_kept_even_beyond_the_limit() -> None:
    cache = FunctionCache(most=2)
    names = [b"%d" % n for n in range(5)]
    cache.load(pickles(b"old", *names))
    assert not cache.missing(names)
    assert sorted(cache.by_digest) == names


def test_a_function_that_is_sent_twice_stays_the_same_object() -> None:
    cache = FunctionCache()
    cache.load(pickles(b"a"))
    first = cache.by_digest[b"a"]
    cache.load(pickles(b"a"))
    assert cache.by_digest[b"a"] is first
