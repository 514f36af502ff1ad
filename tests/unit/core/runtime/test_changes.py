"""Changes of topics: added partitions, deleted and recreated topics."""

from __future__ import annotations

from millstream.core.ports import TopicFacts
from millstream.core.runtime.changes import changes, recreated, recreated_error

BEFORE = {"a": TopicFacts("1", 2), "b": TopicFacts("2", 2), "c": TopicFacts("3", 2)}


def test_grown_and_recreated_topics_are_found() -> None:
    changed = changes(BEFORE, {"a": TopicFacts("1", 3), "b": TopicFacts("9", 4), "c": TopicFacts("3", 2)})
    assert changed.grown == {"a": (2, 3)}
    assert changed.recreated == ("b",)


def test_a_missing_topic_does_not_count_as_changed() -> None:
    assert changes(BEFORE, {"a": BEFORE["a"]}) == changes(BEFORE, BEFORE)


def test_without_topic_ids_no_topic_counts_as_recreated() -> None:
    assert (
        recreated({"a": "1"}, {"a": ""})
        == recreated({"a": ""}, {"a": "1"})
        == recreated({}, {"a": "1"})
        == ()
    )


def test_the_error_for_recreated_topics_names_the_remedies() -> None:
    message = recreated_error(("a", "b")).message
    assert message.startswith("the topic 'a', 'b' was deleted and created again")
    assert "on_recreated_topic='restart_from_beginning'" in message
    assert "millstream reset" in message
