"""The simulation detects that a safety mechanism of the product is disabled."""

from __future__ import annotations

import pytest

from simulation import mutations
from simulation.mutations import Mutation
from simulation.runs import run

_MOST_SEEDS = 60


@pytest.mark.parametrize(
    ("mutation", "exactly_once"),
    [
        (mutations.ignore_marks, True),
        (mutations.take_nothing_over, True),
        (mutations.read_the_mark_first, True),
        (mutations.mark_outside, True),
        (mutations.offsets_of_any_range, True),
        (mutations.read_uncommitted, True),
        (mutations.keep_no_rows, True),
        (mutations.offsets_before_records, False),
        (mutations.write_through, None),
        (mutations.forget_to_rebuild, None),
        (mutations.skip_a_part, None),
        (mutations.newest_state, None),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_simulation_detects_a_disabled_safety_mechanism(
    mutation: Mutation, exactly_once: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    for seed in range(_MOST_SEEDS):
        if run(seed, exactly_once=exactly_once).failure is not None:
            return
    pytest.fail(f"{_MOST_SEEDS} seeds have noticed nothing: {mutation.__doc__}")
