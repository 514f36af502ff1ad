"""FlowLimits: pauses and throttles, and which of them survive a restart."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import ControlError
from millstream.edge.control.flow_control import FlowControl, FlowLimits

TOPICS = ("a", "b", "c")


def start_flow_control(home: Path, known: tuple[str, ...] = TOPICS, **rates: int) -> FlowControl:
    return FlowControl.at_start(home, known, rates)


def test_pause_adds_topics_and_resume_removes_them() -> None:
    flow = FlowLimits().pausing({"a"}).pausing({"b", "c"}).resuming({"a", "nothing"})
    assert flow == FlowLimits(frozenset({"b", "c"}))


def test_throttle_sets_changes_and_lifts_the_rate_of_one_topic() -> None:
    flow = FlowLimits(rates={"a": 5}).throttling("b", 7).throttling("a", 6)
    assert flow.rates == {"a": 6, "b": 7}
    assert flow.throttling("a", None).throttling("c", None).rates == {"b": 7}


@pytest.mark.parametrize("rate", [0, -1, 2.5])
def test_an_impossible_rate_is_refused(rate: Any) -> None:
    with pytest.raises(ControlError, match=r"at least 1, not .*; to read nothing of a topic, pause it"):
        FlowLimits().throttling("a", rate)


def test_limits_end_with_the_application_except_kept_pauses(tmp_path: Path) -> None:
    flow = start_flow_control(tmp_path, a=5)
    flow.pause({"a"}, keep=True)
    flow.pause({"b"}, keep=False)
    flow.throttle("a", 3)
    assert flow.limits == FlowLimits(frozenset({"a", "b"}), frozenset({"a"}), {"a": 3})
    assert start_flow_control(tmp_path, a=5).limits == FlowLimits(
        frozenset({"a"}), frozenset({"a"}), {"a": 5}
    )


def test_a_kept_pause_stays_kept_when_the_topic_is_paused_again(tmp_path: Path) -> None:
    flow = start_flow_control(tmp_path)
    flow.pause({"a"}, keep=True)
    flow.pause({"a", "b"}, keep=False)
    assert start_flow_control(tmp_path).limits.paused == {"a"}


def test_resume_also_applies_to_the_next_start(tmp_path: Path) -> None:
    flow = start_flow_control(tmp_path)
    flow.pause({"a", "b"}, keep=True)
    flow.resume({"a"})
    assert start_flow_control(tmp_path).limits.paused == {"b"}
    flow.resume(TOPICS)
    assert start_flow_control(tmp_path).limits == FlowLimits()
    assert list(tmp_path.iterdir()) == []


def test_a_start_warns_of_paused_topics_and_forgets_those_that_are_no_longer_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start_flow_control(tmp_path).pause({"a", "b"}, keep=True)
    with caplog.at_level(logging.WARNING, "millstream.application"):
        restarted = start_flow_control(tmp_path, known=("b", "c"))
    assert restarted.limits.paused == {"b"}
    restarted.forget_unread()
    assert caplog.messages == [
        "topics that are still paused from an earlier run: b",
        "topics that were paused in an earlier run and are no longer read: a",
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "millstream.application"):
        assert start_flow_control(tmp_path, known=("a", "b")).limits.paused == {"b"}
    assert caplog.messages == ["topics that are still paused from an earlier run: b"]


def test_a_start_that_reads_none_of_the_paused_topics_forgets_them_all(tmp_path: Path) -> None:
    start_flow_control(tmp_path).pause({"a"}, keep=True)
    start_flow_control(tmp_path, known=("b",)).forget_unread()
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_is_refused_forgets_nothing(tmp_path: Path) -> None:
    """The corrected program must not read a topic that was to stay paused."""
    start_flow_control(tmp_path).pause({"a", "b"}, keep=True)
    refused = start_flow_control(tmp_path, known=("b", "c"))
    assert start_flow_control(tmp_path).limits.paused == {"a", "b"}
    refused.pause({"c"}, keep=True)
    assert start_flow_control(tmp_path).limits.paused == {"a", "b", "c"}
    refused.forget_unread()
    assert start_flow_control(tmp_path).limits.paused == {"b", "c"}


def test_an_unreadable_file_of_paused_topics_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "paused.json").write_text("{}")
    with pytest.raises(ControlError, match=r"paused.json' cannot be read .*delete the file"):
        start_flow_control(tmp_path)


def test_a_topic_is_not_paused_if_the_pause_cannot_be_kept(tmp_path: Path) -> None:
    flow = start_flow_control(tmp_path)
    (tmp_path / "paused.json").mkdir()  # a directory cannot be replaced by a file
    with pytest.raises(ControlError, match="Nothing was changed"):
        flow.pause({"a"}, keep=True)
    assert flow.limits == FlowLimits()
