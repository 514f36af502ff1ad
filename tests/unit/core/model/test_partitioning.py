"""Murmur2 against the values that Kafka's own test expects (UtilsTest.testMurmur2)."""

from __future__ import annotations

import pytest

from millstream.core.model.partitioning import murmur2, partition_of

JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), JAVA.items())
def test_keys_are_hashed_as_in_java(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@pytest.mark.parametrize(("key", "signed"), JAVA.items())
@pytest.mark.parametrize("partitions", [1, 2, 7, 100])
def test_a_partition_is_chosen_as_in_java(key: bytes, signed: int, partitions: int) -> None:
    assert partition_of(key, partitions) == (signed & 0x7FFFFFFF) % partitions


def test_the_empty_key_has_a_partition() -> None:
    assert murmur2(b"") == 275646681
    assert 0 <= partition_of(b"", 3) < 3
