"""Where an application starts after a reset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.model.errors import SettingsError
from millstream.core.runtime.reset import (
    LogOffsets,
    Move,
    Target,
    internal_topics,
    listed_offsets,
    moves,
    timestamp_ms,
)

LOG_OFFSETS = LogOffsets({"t": {0: 10}}, {"t": {0: 90}}, {"t": {0: 33}})


def after(target: Target, before: int | None = 50) -> int:
    (move,) = moves(target, ["t"], {} if before is None else {"t": {0: before}}, LOG_OFFSETS)
    return move.after


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target(), 10),
        (Target("latest"), 90),
        (Target("offset", 42), 42),
        (Target("offset", 4), 10),
        (Target("offset", 400), 90),
        (Target("shift", -5), 45),
        (Target("shift", 500), 90),
        (Target("time", 1), 33),
        (Target("listed", listed={"t": {0: 77}}), 77),
        (Target("listed", listed={"u": {0: 77}}), 50),
    ],
)
def test_each_kind_of_target_sets_the_offset(target: Target, expected: int) -> None:
    assert after(target) == expected


def test_a_time_after_the_last_record_is_the_end() -> None:
    (move,) = moves(Target("time", 1), ["t"], {}, LogOffsets(LOG_OFFSETS.begin, LOG_OFFSETS.end))
    assert move == Move("t", 0, None, 90)


def test_a_topic_that_is_not_moved_stays_or_starts_at_the_beginning() -> None:
    assert moves(Target("latest"), ["other"], {"t": {0: 50}}, LOG_OFFSETS) == [Move("t", 0, 50, 50, "stays")]
    assert moves(Target("latest"), ["other"], {}, LOG_OFFSETS) == [Move("t", 0, None, 10, "stays")]


def test_a_shift_without_a_committed_offset_is_refused() -> None:
    with pytest.raises(SettingsError, match="cannot be shifted by 3"):
        after(Target("shift", 3), before=None)


@given(
    st.sampled_from(["earliest", "latest", "offset", "shift"]), st.integers(-200, 200), st.integers(0, 200)
)
def test_the_new_offset_is_always_within_the_log(kind: str, value: int, before: int) -> None:
    assert 10 <= after(Target(kind, value), before) <= 90  # type: ignore[arg-type]


def test_times_without_a_time_zone_are_in_utc() -> None:
    assert timestamp_ms("1970-01-02") == timestamp_ms("1970-01-02T00:00:00Z") == 86_400_000
    assert timestamp_ms("1970-01-02T02:00:00+02:00") == 86_400_000
    with pytest.raises(SettingsError, match="is not a date and time"):
        timestamp_ms("yesterday")


def test_offsets_are_read_from_the_lines_of_a_file() -> None:
    assert listed_offsets(["t,0,5", "", '"u",1,7']) == {"t": {0: 5}, "u": {1: 7}}
    with pytest.raises(SettingsError, match="line 2 is 't;0;5'"):
        listed_offsets(["t,0,5", "t;0;5"])


def test_internal_topics_are_found_by_the_name_of_the_application() -> None:
    existing = [
        "app-x-repartition",
        "app-x-changelog",
        "app-x",
        "application-y-changelog",
        "app-2-z-changelog",
    ]
    assert internal_topics("app", existing, ["app"]) == (
        ["app-2-z-changelog", "app-x-changelog", "app-x-repartition"],
        {},
    )
    assert internal_topics("app", existing, ["app", "app-2"])[1] == {"app-2-z-changelog": "app-2"}


def test_a_user_topic_whose_name_ends_in_commits_is_not_internal() -> None:
    existing = ["shop-commits", "shop-eu-commits", "shop-git-commits"]
    assert internal_topics("shop", existing, ["shop"]) == (["shop-commits"], {})
    assert internal_topics("shop", existing, ["shop", "shop-eu"])[1] == {"shop-eu-commits": "shop-eu"}
