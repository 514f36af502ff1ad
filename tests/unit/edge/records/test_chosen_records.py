"""Options that select records of topics are refused if they cannot select any."""

from __future__ import annotations

import re

import pytest

from millstream.core.model.errors import SettingsError
from millstream.edge.records.chosen_records import check_partitions, check_times


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (
            [99],
            "there is no partition 99: topic 'orders' has the partitions 0 to 3, topic 'rates' has only partition 0",
        ),
        ([0, 4, 9], "there is no partition 4, 9: "),
        ([-1], "there is no partition -1: "),
    ],
)
def test_a_partition_that_no_topic_has_is_refused(chosen: list[int], why: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)):
        check_partitions(chosen, {"orders": 4, "rates": 1})


def test_a_partition_is_accepted_if_one_of_the_topics_has_it() -> None:
    check_partitions([0, 3], {"orders": 4, "rates": 1})
    check_partitions([], {"orders": 4})


def test_an_empty_range_of_times_is_refused() -> None:
    check_times(None, 5)
    check_times(5, None)
    check_times(5, 6)
    for until in (5, 4):
        with pytest.raises(SettingsError, match="--until must be later than --since"):
            check_times(5, until)
