"""Changes of topics: what has become of the topics that an application reads since it last looked.

A topic's name is not the topic: deleted and made again, it has other records under the same offsets. Brokers give each
topic an *id* when it is made, so the id tells. Partitions are only ever added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.core.model.errors import TopicRecreatedError
from millstream.core.ports import TopicFacts


@dataclass(frozen=True)
class TopicChanges:
    """What has changed.

    Attributes:
        recreated: Topics that are not those of before.
        grown: Topics that are the same and have more partitions than before: the numbers before and now.
    """

    recreated: tuple[str, ...]
    grown: Mapping[str, tuple[int, int]]


def changes(before: Mapping[str, TopicFacts], now: Mapping[str, TopicFacts]) -> TopicChanges:
    """Compare topics with what they were.

    A topic that is not there now is none of this: it may be about to be made again, and who reads it notices anyway.

    Args:
        before: What was known.
        now: What the broker says.

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
    """Return the topics whose id has changed; a broker that gives no ids gives empty ones, which say nothing."""
    return tuple(topic for topic, known in before.items() if known and now.get(topic) and now[topic] != known)


def recreated_error(topics: tuple[str, ...]) -> TopicRecreatedError:
    """Make the error for topics that are not those of before."""
    named = ", ".join(map(repr, topics))
    return TopicRecreatedError(
        f"the topic {named} was deleted and created again since this application last read it: the offsets it has reached "
        "belong to the old topic. To read the new topic from its beginning and keep the stores, set "
        "on_recreated_topic='restart_from_beginning'; to start over with empty stores, use `millstream reset`"
    )
