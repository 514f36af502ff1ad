"""The time of the oldest record in a histogram of few spans, compared with the real records."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.engine.asynchronous.stored_counts import AgeHistogram

from .engines import Visits


def test_the_oldest_time_is_a_lower_bound_and_exact_if_there_are_few_times() -> None:
    visits = Visits()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 500), st.sampled_from([40, 100_000]), st.integers(0, 2**32))
    def runs(count: int, times: int, seed: int) -> None:
        dice, ages, present, counted = random.Random(seed), AgeHistogram(), list[int](), set[int]()
        for number in range(count):
            present.append(dice.randrange(times))
            counted.add(present[-1])
            ages.count(present[-1], 1)
            if dice.random() < 0.4:
                ages.count(present.pop(dice.randrange(len(present))), -1)
            if number % 50 == 0:
                ages = AgeHistogram(json.loads(json.dumps(ages.spans())))
            assert len(ages.spans()) <= 64
            assert sum(records for _, records in ages.spans()) == len(present)
            assert (ages.oldest is None) == (not present)
            assert ages.oldest is None or ages.oldest <= min(present)
            visits["rounded"] += ages.oldest is not None and ages.oldest < min(present)
        if len(counted) <= 64:
            assert ages.oldest == min(present, default=None)
        for time in present:
            ages.count(time, -1)
        assert ages.spans() == []

    runs()
    visits.demand(rounded=1)
