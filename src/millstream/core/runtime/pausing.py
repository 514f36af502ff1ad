"""Pausing: which topics a command to pause or resume affects, and which parts of a topology rest as a result.

The unit of pausing is a *topic that is read from the broker*, external or internal. A topic includes the fan-out topics of its split
partitions, which cannot be paused separately. Pausing a sub-topology pauses all of its topics. A sub-topology whose only input is Spark's
shuffle reads no topic itself; it is paused with the sub-topologies that feed it.

A sub-topology *rests* when no record can reach it any more: all its topics are paused, or come from resting sub-topologies. Its
punctuation then also rests, as in Kafka Streams (KIP-834). With at least one active topic, punctuation continues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from millstream.core.model.errors import ControlError
from millstream.core.topology.plan import Plan


def chosen_topics(
    plan: Plan, topics: Collection[str] | None = None, subtopologies: Collection[int] | None = None
) -> frozenset[str]:
    """Return the topics that a command affects, without fan-out topics, which follow the topic that was split.

    Args:
        subtopologies: Numbers of sub-topologies whose topics are added. If both arguments are None, all topics are affected.

    Raises:
        ControlError: If the topology has no such topic or sub-topology, or the only input of the sub-topology is Spark's shuffle.
        TypeError: If ``topics`` is a str.
    """
    if isinstance(topics, str):
        raise TypeError(f"topics must be a list of names, such as [{topics!r}], not a str")
    read = frozenset(plan.broker_topics).difference(plan.fan_outs)
    if topics is None and subtopologies is None:
        return read
    chosen = frozenset(topics or ())
    unknown = chosen - read
    if unknown:
        raise ControlError(
            f"application {plan.application_id!r} does not read {_quoted_names(unknown)} from the broker; it reads {_quoted_names(read)}"
        )
    return chosen.union(*(_topics_of(plan, number) for number in subtopologies or ()))


def resting(plan: Plan, paused: Collection[str]) -> frozenset[int]:
    """Return the numbers of the sub-topologies that no record can reach while the given topics are paused.

    Source: KIP-834, which pauses whole topologies.
    """
    silent, rest = set(paused), set[int]()
    before = -1
    while silent and len(silent) > before:  # a resting part silences its outputs through the shuffle
        before = len(silent)
        rest = {sub.id for sub in plan.subtopologies if silent.issuperset(sub.grouped_topics)}
        silent.update(
            t.name for t in plan.internal_topics.values() if t.through_shuffle and t.upstream in rest
        )
    return frozenset(rest)


def _topics_of(plan: Plan, number: int) -> frozenset[str]:
    subs = {sub.id: sub for sub in plan.subtopologies if sub.nodes}
    if number not in subs:
        raise ControlError(
            f"application {plan.application_id!r} has no sub-topology {number}; it has {', '.join(map(str, subs))}"
        )
    read = frozenset(topic for topic in subs[number].grouped_topics if topic in plan.broker_topics)
    if not read:
        feeders = sorted({t.upstream for t in plan.internal_topics.values() if t.downstream == number})
        raise ControlError(
            f"sub-topology {number} of application {plan.application_id!r} reads only from Spark's shuffle; name "
            f"the sub-topologies that feed it: sub-topology {', '.join(map(str, feeders))}"
        )
    return read


def _quoted_names(names: Iterable[object]) -> str:
    return ", ".join(map(repr, sorted(names, key=str))) or "nothing"
