"""The bytes of record keys in stores. They must not change, because older checkpoints contain them."""

from __future__ import annotations

import pickle

import pytest

from millstream.core.engine.asynchronous.record_keys import group_bytes, group_from, key_id
from millstream.core.model import serdes

STORED = (
    b"\x80\x05\x95G\x00\x00\x00\x00\x00\x00\x00\x8c\x1dmillstream.core.engine.ledger\x94\x8c\x08_Pickled\x94\x93\x94C\x12"
    b"\x80\x05\x95\x07\x00\x00\x00\x00\x00\x00\x00\x8c\x01aK\x01\x86.\x94\x85\x94\x81\x94."
)
"""The key ``("a", 1)`` as it was stored when its class was in another module."""


def test_the_stored_bytes_of_a_key_do_not_change() -> None:
    assert group_bytes(key_id(("a", 1), serdes.pickle)) == STORED


def test_a_stored_key_equals_the_original_key() -> None:
    assert group_from(STORED) == key_id(("a", 1), serdes.pickle)


def test_a_key_stored_under_the_former_project_name_equals_the_original_key() -> None:
    former = STORED.replace(b"\x1dmillstream", b"\x1bpenstock").replace(b"\x95G", b"\x95E", 1)
    assert group_from(former) == key_id(("a", 1), serdes.pickle)


@pytest.mark.parametrize("key", ["a", b"a", 1, None, 1.5, ("x" * 70_000,), ("b" * 200, (1, 2))])
def test_every_key_is_read_back(key: object) -> None:
    identity = key_id(key, serdes.pickle)
    assert group_from(group_bytes(identity)) == identity
    assert isinstance(key, (str, bytes, int, type(None))) or pickle.loads(identity) == key  # type: ignore[arg-type]
