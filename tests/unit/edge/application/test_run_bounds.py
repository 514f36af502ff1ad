"""The values that ``until=`` accepts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from millstream.core.model.errors import SettingsError
from millstream.core.runtime.admission import RunEnd
from millstream.edge.application.run_bounds import Bound


@pytest.mark.parametrize(
    ("until", "bound"),
    [
        (None, Bound()),
        ("end", Bound(RunEnd())),
        (1, Bound(RunEnd(records=1))),
        (datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), Bound(RunEnd(before_ms=2_000))),
        (datetime(1970, 1, 1, 0, 0, 2), Bound(RunEnd(before_ms=2_000))),
        (datetime(1970, 1, 1, 1, 0, 2, tzinfo=timezone(timedelta(hours=1))), Bound(RunEnd(before_ms=2_000))),
        (timedelta(milliseconds=1_500), Bound(lasts_s=1.5)),
    ],
)
def test_until_can_be_the_end_a_number_of_records_a_time_or_a_duration(until: Any, bound: Bound) -> None:
    assert Bound.of(until) == bound


@pytest.mark.parametrize("until", ["start", 0, -1, True, 1.5, timedelta(0), timedelta(seconds=-1)])
def test_other_values_of_until_are_refused(until: Any) -> None:
    with pytest.raises(SettingsError, match="give 'end', a number of records"):
        Bound.of(until)
