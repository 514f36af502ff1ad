from __future__ import annotations

from datetime import timedelta

import pytest

from millstream.core.model.durations import millis


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (0, 0),
        (250, 250),
        (timedelta(seconds=2), 2000),
        (timedelta(microseconds=1999), 1),
        (timedelta(days=1), 86_400_000),
    ],
)
def test_a_duration_is_converted_to_milliseconds(duration: timedelta | int, expected: int) -> None:
    assert millis(duration) == expected


@pytest.mark.parametrize("duration", [1.5, "1s", None, True])
def test_an_object_that_is_not_a_duration_is_refused(duration: object) -> None:
    with pytest.raises(
        TypeError, match=r"a duration must be a datetime\.timedelta or an int of milliseconds, not"
    ):
        millis(duration)  # type: ignore[arg-type]
