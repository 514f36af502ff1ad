"""A global store that no task can keep is refused with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
from millstream.core.model.errors import StoreError
from millstream.core.queries.question import Question

from .answering import answers_of


def test_a_global_store_of_a_topology_without_state_cannot_be_queried(tmp_path: Path) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out")
    builder.global_table("countries", store="codes")
    answers = answers_of(builder.build(), tmp_path, {})
    assert answers.stores() == {"codes": "key-value"}
    with pytest.raises(
        StoreError, match=r"'codes', because nothing reads it .* or read its topic 'countries'"
    ):
        answers.answer(Question("codes", "all"))
