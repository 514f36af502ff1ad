"""Changes of topics: how the input topics of an application have changed since the last check.

The name of a topic does not identify it: after the topic is deleted and created again, the same offsets are other records. Brokers assign
an *id* to each topic when it is created, which reveals the difference. Partitions are only ever added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.core.model.errors import TopicRecreatedError
from millstream.core.ports import TopicFacts


@dataclass(frozen=True)
class TopicChanges:
    """The changes of topics.

    Attributes:
        grown: Topics with the same id but more partitions than before: the previous and the current number.
    """

    recreated: tuple[str, ...]
    grown: Mapping[str, tuple[int, int]]


def changes(before: Mapping[str, TopicFacts], now: Mapping[str, TopicFacts]) -> TopicChanges:
    """Compare topics with their previous state.

    Ignores a topic that does not exist now: it may be about to be created again, and its readers detect the problem in any case.

    Example:
        >>> changes({"t": TopicFacts("x", 2)}, {"t": TopicFacts("x", 4)}).grown
        {'t': (2, 4)}
    """
    ids = {topic: facts.id for topic, facts in before.items()}
    again = recreated(ids, {topic: facts.id for topic, facts in now.items()})
    grown = {
        topic: (before[topic].partitions, facts.partitions)
        for topic, facts in now.items()
        if topic in before and topic not in again and facts.partitions > before[topic].partitions
    }
    return TopicChanges(again, grown)


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the topics whose id has changed. Ignores empty ids, from brokers without topic ids."""
    return tuple(topic for topic, known in before.items() if known and now.get(topic) and now[topic] != known)


def recreated_error(topics: tuple[str, ...]) -> TopicRecreatedError:
    named = ", ".join(map(repr, topics))
    return TopicRecreatedError(
        f"the topic {named} was deleted and created again since this application last read it: the offsets it has reached "
        "belong to the old topic. To read the new topic from its beginning and keep the stores, set "
        "on_recreated_topic='restart_from_beginning'; to start over with empty stores, use `millstream reset`"
    )
