"""How old the oldest record is, told from few spans of time, against what really is there."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.engine.asynchronous.stored_counts import AgeHistogram

from .engines import Visits


def test_the_oldest_is_never_younger_than_told_and_exact_as_long_as_times_are_few() -> None:
    visits = Visits()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 500), st.sampled_from([40, 100_000]), st.integers(0, 2**32))
    def runs(count: int, times: int, seed: int) -> None:
        dice, ages, there, came = random.Random(seed), AgeHistogram(), list[int](), set[int]()
        for number in range(count):
            there.append(dice.randrange(times))
            came.add(there[-1])
            ages.count(there[-1], 1)
            if dice.random() < 0.4:
                ages.count(there.pop(dice.randrange(len(there))), -1)
            if number % 50 == 0:
                ages = AgeHistogram(json.loads(json.dumps(ages.spans())))
            assert len(ages.spans()) <= 64
            assert sum(records for _, records in ages.spans()) == len(there)
            assert (ages.oldest is None) == (not there)
            assert ages.oldest is None or ages.oldest <= min(there)
            visits["rounded"] += ages.oldest is not None and ages.oldest < min(there)
        if len(came) <= 64:
            assert ages.oldest == min(there, default=None)
        for at in there:
            ages.count(at, -1)
        assert ages.spans() == []

    runs()
    visits.demand(rounded=1)
