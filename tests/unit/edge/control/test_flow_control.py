"""FlowLimits: pauses and throttles, and which of them survive a restart."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import ControlError
from millstream.edge.control.flow_control import FlowControl, FlowLimits

TOPICS = ("a", "b", "c")


def started(home: Path, known: tuple[str, ...] = TOPICS, **rates: int) -> FlowControl:
    return FlowControl.at_start(home, known, rates)


def test_pause_adds_and_resume_takes_away() -> None:
    orders = FlowLimits().pausing({"a"}).pausing({"b", "c"}).resuming({"a", "nothing"})
    assert orders == FlowLimits(frozenset({"b", "c"}))


def test_throttle_sets_changes_and_lifts_the_rate_of_one_topic() -> None:
    orders = FlowLimits(rates={"a": 5}).throttling("b", 7).throttling("a", 6)
    assert orders.rates == {"a": 6, "b": 7}
    assert orders.throttling("a", None).throttling("c", None).rates == {"b": 7}


@pytest.mark.parametrize("rate", [0, -1, 2.5])
def test_a_rate_that_cannot_be_is_refused(rate: Any) -> None:
    with pytest.raises(ControlError, match=r"at least 1, not .*; to read nothing of a topic, pause it"):
        FlowLimits().throttling("a", rate)


def test_orders_end_with_the_application_unless_they_are_to_be_kept(tmp_path: Path) -> None:
    orders = started(tmp_path, a=5)
    orders.pause({"a"}, keep=True)
    orders.pause({"b"}, keep=False)
    orders.throttle("a", 3)
    assert orders.limits == FlowLimits(frozenset({"a", "b"}), frozenset({"a"}), {"a": 3})
    assert started(tmp_path, a=5).limits == FlowLimits(frozenset({"a"}), frozenset({"a"}), {"a": 5})


def test_a_kept_topic_stays_kept_when_it_is_paused_again(tmp_path: Path) -> None:
    orders = started(tmp_path)
    orders.pause({"a"}, keep=True)
    orders.pause({"a", "b"}, keep=False)
    assert started(tmp_path).limits.paused == {"a"}


def test_resume_is_also_for_the_next_start(tmp_path: Path) -> None:
    orders = started(tmp_path)
    orders.pause({"a", "b"}, keep=True)
    orders.resume({"a"})
    assert started(tmp_path).limits.paused == {"b"}
    orders.resume(TOPICS)
    assert started(tmp_path).limits == FlowLimits()
    assert list(tmp_path.iterdir()) == []


def test_a_start_says_what_is_still_paused_and_lets_go_what_is_no_longer_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started(tmp_path).pause({"a", "b"}, keep=True)
    with caplog.at_level(logging.WARNING, "millstream.application"):
        again = started(tmp_path, known=("b", "c"))
    assert again.limits.paused == {"b"}
    again.forget_unread()
    assert caplog.messages == [
        "topics that are still paused from an earlier run: b",
        "topics that were paused in an earlier run and are no longer read: a",
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "millstream.application"):
        assert started(tmp_path, known=("a", "b")).limits.paused == {"b"}
    assert caplog.messages == ["topics that are still paused from an earlier run: b"]


def test_a_start_that_reads_none_of_the_paused_topics_forgets_them_all(tmp_path: Path) -> None:
    started(tmp_path).pause({"a"}, keep=True)
    started(tmp_path, known=("b",)).forget_unread()
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_is_refused_forgets_nothing(tmp_path: Path) -> None:
    """A program without one of its sources was refused, and the corrected program then read a topic that was to stay paused."""
    started(tmp_path).pause({"a", "b"}, keep=True)
    refused = started(tmp_path, known=("b", "c"))
    assert started(tmp_path).limits.paused == {"a", "b"}
    refused.pause({"c"}, keep=True)
    assert started(tmp_path).limits.paused == {"a", "b", "c"}
    refused.forget_unread()
    assert started(tmp_path).limits.paused == {"b", "c"}


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "paused.json").write_text("{}")
    with pytest.raises(ControlError, match=r"paused.json' cannot be read .*delete the file"):
        started(tmp_path)


def test_what_cannot_be_kept_is_not_paused(tmp_path: Path) -> None:
    orders = started(tmp_path)
    (tmp_path / "paused.json").mkdir()  # it cannot be replaced
    with pytest.raises(ControlError, match="Nothing was changed"):
        orders.pause({"a"}, keep=True)
    assert orders.limits == FlowLimits()
