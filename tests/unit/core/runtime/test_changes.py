"""Changes of topics: added partitions, deleted and recreated topics."""

from __future__ import annotations

from millstream.core.ports import TopicFacts
from millstream.core.runtime.changes import changes, recreated, recreated_error

BEFORE = {"a": TopicFacts("1", 2), "b": TopicFacts("2", 2), "c": TopicFacts("3", 2)}


def test_finds_what_is_new() -> None:
    found = changes(BEFORE, {"a": TopicFacts("1", 3), "b": TopicFacts("9", 4), "c": TopicFacts("3", 2)})
    assert found.grown == {"a": (2, 3)}
    assert found.recreated == ("b",)


def test_a_topic_that_is_away_has_not_changed() -> None:
    assert changes(BEFORE, {"a": BEFORE["a"]}) == changes(BEFORE, BEFORE)


def test_without_ids_nobody_can_say() -> None:
    assert (
        recreated({"a": "1"}, {"a": ""})
        == recreated({"a": ""}, {"a": "1"})
        == recreated({}, {"a": "1"})
        == ()
    )


def test_the_error_says_what_can_be_done() -> None:
    message = recreated_error(("a", "b")).message
    assert message.startswith("the topic 'a', 'b' was deleted and created again")
    assert "on_recreated_topic='restart_from_beginning'" in message
    assert "millstream reset" in message
