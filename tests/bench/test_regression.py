"""No benchmark job uses much more processor time than recorded (``make bench-check``)."""

from __future__ import annotations

import subprocess

import pytest
from bench.regression import LIMIT, exceeded, main

from millstream.testing._java import find_java


def test_a_job_fails_only_if_each_of_its_runs_is_above_the_limit() -> None:
    known = {"count": 10.0, "map": 10.0}
    above, below = LIMIT * 10 + 0.1, LIMIT * 10
    assert exceeded({"count": [above, above, above], "map": [above, below]}, known) == ["count"]


@pytest.mark.alone  # it measures core-seconds, which other programs on the same cores increase
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_count_map_and_session_count_use_no_more_processor_time_than_recorded() -> None:
    modules = subprocess.run(
        [find_java(), "--list-modules"], capture_output=True, text=True, check=True
    ).stdout
    if "jdk.compiler@" not in modules:
        pytest.skip("this Java has no compiler, which the program for Kafka Streams needs")
    assert main([]) == 0
