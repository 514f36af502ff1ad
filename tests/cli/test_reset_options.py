"""How ``millstream reset`` parses and checks its options."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import SettingsError
from millstream.core.runtime.reset import Move, Target
from millstream.edge.checkpoint.application_reset import ResetPlan, ResetRequest
from millstream.edge.cli.reset_command import check_listed, target_of

NO_OPTIONS: dict[str, Any] = {
    "to_earliest": False,
    "to_latest": False,
    "to_offset": None,
    "to_datetime": None,
    "by_duration": None,
    "shift_by": None,
    "from_file": None,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT30M", 1_800_000), ("P1W", 604_800_000), ("P2DT1H1M1.5S", 176_461_500), ("P1Y", 31_536_000_000)],
)
def test_a_duration_is_subtracted_from_the_current_time(text: str, expected: int) -> None:
    target = target_of(**{**NO_OPTIONS, "by_duration": text})
    assert target.kind == "time"
    assert 0 <= time.time() * 1000 - expected - target.value < 60_000  # noqa: TID251 - the command's own clock


@pytest.mark.parametrize("text", ["", "P", "PT", "30m", "30", "-PT1S"])
def test_text_that_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a duration"):
        target_of(**{**NO_OPTIONS, "by_duration": text})


@pytest.mark.parametrize("content", ["topic,0,5\n".encode("utf-16"), b"caf\xe9,0,5\n"])
def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "offsets.csv"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"offsets\.csv' cannot be read: .*utf-8"):
        target_of(**{**NO_OPTIONS, "from_file": file})


@pytest.mark.parametrize("option", [{"to_datetime": "0001-01-01"}, {"by_duration": "P999999D"}])
def test_a_time_before_1970_means_the_beginning(option: dict[str, str]) -> None:
    assert target_of(**{**NO_OPTIONS, **option}) == Target("time", 0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", r"offsets\.csv' lists no offsets"),
        ("\n\n", r"offsets\.csv' lists no offsets"),
        ("in,0,5\nin,0,6\n", r"offsets\.csv' lists a partition twice"),
        ("in,0,-5\n", r"offsets\.csv' lists the offset -5; offsets begin at 0"),
        ("in;0;5\n", r"offsets\.csv': line 1 is 'in;0;5'; it should be topic,partition,offset"),
    ],
)
def test_a_file_without_valid_offsets_is_refused(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(content)
    with pytest.raises(SettingsError, match=why):
        target_of(**{**NO_OPTIONS, "from_file": file})


def test_a_file_that_does_not_exist_is_named_once() -> None:
    with pytest.raises(SettingsError, match=r"^'/none\.csv' cannot be read: No such file or directory$"):
        target_of(**{**NO_OPTIONS, "from_file": Path("/none.csv")})


def plan_of(*partitions: tuple[str, int]) -> ResetPlan:
    moves = tuple(Move(topic, number, None, 0) for topic, number in partitions)
    return ResetPlan("shop", moves, {}, {}, {}, None, (), None)


@pytest.mark.parametrize(
    ("listed", "inputs", "others"),
    [
        ({"in": {99: 1}}, (), "in/99"),
        ({"in": {0: 1}, "nowhere": {0: 1, 1: 1}}, (), "nowhere/0, nowhere/1"),
        ({"in": {0: 1}, "other": {0: 1}}, ("in",), "other/0"),
    ],
)
def test_a_listed_partition_that_is_not_moved_is_refused(
    listed: dict[str, dict[int, int]], inputs: tuple[str, ...], others: str
) -> None:
    request = ResetRequest("shop", Target("listed", listed=listed), inputs)
    with pytest.raises(SettingsError, match=f"^--from-file lists {others}, which this reset does not move"):
        check_listed(request, plan_of(("in", 0), ("in", 1), ("other", 0)))


def test_listed_partitions_that_are_moved_are_accepted() -> None:
    request = ResetRequest("shop", Target("listed", listed={"in": {1: 5}}))
    check_listed(request, plan_of(("in", 0), ("in", 1)))
    request = ResetRequest("shop", Target("listed", listed={"in": {1: 5}, "shop-a-repartition": {0: 7}}))
    check_listed(request, replace(plan_of(("in", 1)), internal={"shop-a-repartition": 1}))
    check_listed(ResetRequest("shop", Target()), plan_of())
