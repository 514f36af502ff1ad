"""The bytes of keys in stores: older checkpoints have them, so they stay."""

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


def test_a_key_is_stored_as_it_always_was() -> None:
    assert group_bytes(key_id(("a", 1), serdes.pickle)) == STORED


def test_a_stored_key_is_the_same_key() -> None:
    assert group_from(STORED) == key_id(("a", 1), serdes.pickle)


def test_so_is_one_of_the_project_s_former_name() -> None:
    former = STORED.replace(b"\x1dmillstream", b"\x1bpenstock").replace(b"\x95G", b"\x95E", 1)
    assert group_from(former) == key_id(("a", 1), serdes.pickle)


@pytest.mark.parametrize("key", ["a", b"a", 1, None, 1.5, ("x" * 70_000,), ("b" * 200, (1, 2))])
def test_every_key_is_read_back(key: object) -> None:
    identity = key_id(key, serdes.pickle)
    assert group_from(group_bytes(identity)) == identity
    assert isinstance(key, (str, bytes, int, type(None))) or pickle.loads(identity) == key  # type: ignore[arg-type]
