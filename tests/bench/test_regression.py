"""No job takes much more of the processor than when its figures were recorded (``make bench-check``)."""

from __future__ import annotations

import pytest
from bench.regression import LIMIT, exceeded, main


def test_a_job_fails_only_if_each_of_its_runs_is_above_the_limit() -> None:
    known = {"count": 10.0, "map": 10.0}
    above, below = LIMIT * 10 + 0.1, LIMIT * 10
    assert exceeded({"count": [above, above, above], "map": [above, below]}, known) == ["count"]


@pytest.mark.alone  # it measures core-seconds, which other programs on the same cores make larger
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_count_map_and_session_count_take_no_more_than_recorded() -> None:
    assert main([]) == 0
