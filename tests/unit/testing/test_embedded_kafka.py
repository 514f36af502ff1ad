"""Arguments of an embedded broker that are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.testing import EmbeddedKafka


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"brokers": 0}, "brokers must be a whole number of at least 1, not 0"),
        ({"brokers": -1}, "brokers must be a whole number of at least 1, not -1"),
        ({"brokers": "3"}, "brokers must be a whole number of at least 1, not '3'"),
        ({"partitions": 0}, "partitions must be a whole number of at least 1, not 0"),
        ({"brokers": 3, "relayed": [(1, 2)]}, "relayed must have one entry for each of the 3 brokers, not 1"),
    ],
)
def test_impossible_numbers_of_brokers_and_partitions_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        EmbeddedKafka(**options)
