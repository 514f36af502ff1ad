"""``bench.queries`` separates the cost of answering a query from the cost of calling it."""

from __future__ import annotations

import pytest
from bench.queries import ALONE, QUERIED, STUB, Rounds, calling, figures, ratios


def test_the_cost_of_a_query_excludes_the_cost_of_an_empty_call() -> None:
    alone = Rounds(batch_s=[1.0, 2.0, 3.0], used_s=[0.5, 0.5, 0.5], asked_s=6.0)
    stub = Rounds(batch_s=[1.1, 2.1, 3.1], used_s=[0.6, 0.6, 0.6], calls_ms=[0.0] * 100_000, asked_s=6.3)
    queried = Rounds(batch_s=[1.2, 2.1, 3.1], used_s=[0.8, 0.8, 0.8], calls_ms=[0.01] * 90_000, asked_s=6.4)
    result = figures({ALONE: alone, STUB: stub, QUERIED: queried})
    assert result["core_us"] == {"stub": 3.0, "get": 7.0}
    assert result["gets_per_s"] == 14_062
    assert result["batch_s"] == {"alone": 2.0, "stub": 2.1, "queried": 2.1}
    assert result["ratio"]["queried/stub"] == {"medians": 1.0, "pairs_median": 1.0, "pairs_worst": 1.091}
    assert result["ratio"]["queried/alone"]["medians"] == 1.05


def test_ratios_pair_the_rounds_of_the_same_turn() -> None:
    assert ratios([2.0, 1.0, 3.0], [1.0, 2.0, 3.0]) == {
        "medians": 1.0,
        "pairs_median": 1.0,
        "pairs_worst": 2.0,
    }


@pytest.mark.parametrize("asks", [True, False])
def test_each_call_is_timed_and_none_is_made_without_a_function(asks: bool) -> None:
    keys: list[bytes] = []
    with calling(keys.append if asks else None, 2_000) as taken:
        while asks and len(keys) < 100:
            pass
    assert len(taken) == len(keys)
    assert bool(keys) is asks
    assert len(set(keys)) == len(keys) or not asks
