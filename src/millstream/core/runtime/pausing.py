"""Pausing: which topics an order to pause or resume means, and which parts of a topology rest then.

What is paused is always a set of *topics that are read from the broker*: from outside, or internal ones. A sub-topology is
paused by pausing all of its topics. One that is fed by Spark's shuffle alone reads nothing itself; it is paused with what
feeds it.

A sub-topology *rests* when nothing can reach it any more: all its topics are paused, or come from sub-topologies that rest.
Its punctuation rests too, as in Kafka Streams (KIP-834); that of a sub-topology with one topic left goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from millstream.core.model.errors import ControlError
from millstream.core.topology.plan import Plan


def chosen_topics(
    plan: Plan, topics: Collection[str] | None = None, subtopologies: Collection[int] | None = None
) -> frozenset[str]:
    """Return the topics that an order is about.

    Args:
        plan: The topology.
        topics: Names of topics.
        subtopologies: Numbers of sub-topologies, whose topics are added. Neither means everything.

    Raises:
        ControlError: If the topology has no such topic or sub-topology, or it is fed by Spark's shuffle alone.
        TypeError: If the topics are one text.
    """
    if isinstance(topics, str):
        raise TypeError(f"topics are a list of names, such as [{topics!r}], not a text")
    if topics is None and subtopologies is None:
        return frozenset(plan.broker_topics)
    chosen = frozenset(topics or ())
    unknown = chosen - set(plan.broker_topics)
    if unknown:
        raise ControlError(
            f"application {plan.application_id!r} does not read {_listed(unknown)} from the broker; "
            f"it reads {_listed(plan.broker_topics)}"
        )
    return chosen.union(*(_topics_of(plan, number) for number in subtopologies or ()))


def resting(plan: Plan, paused: Collection[str]) -> frozenset[int]:
    """Return the numbers of the sub-topologies that nothing can reach while topics are paused.

    Args:
        plan: The topology.
        paused: The topics that are paused.

    Source: KIP-834, which pauses whole topologies.
    """
    silent, rest = set(paused), set[int]()
    before = -1
    while silent and len(silent) > before:  # a part that rests silences what it sends through the shuffle
        before = len(silent)
        rest = {sub.id for sub in plan.subtopologies if silent.issuperset(sub.source_topics)}
        silent.update(
            t.name for t in plan.internal_topics.values() if t.through_shuffle and t.upstream in rest
        )
    return frozenset(rest)


def _topics_of(plan: Plan, number: int) -> frozenset[str]:
    """Return what a sub-topology reads from the broker."""
    subs = {sub.id: sub for sub in plan.subtopologies if sub.nodes}
    if number not in subs:
        raise ControlError(
            f"application {plan.application_id!r} has no sub-topology {number}; it has {', '.join(map(str, subs))}"
        )
    found = frozenset(topic for topic in subs[number].source_topics if topic in plan.broker_topics)
    if not found:
        feeders = sorted({t.upstream for t in plan.internal_topics.values() if t.downstream == number})
        raise ControlError(
            f"sub-topology {number} of application {plan.application_id!r} reads only what Spark's shuffle brings; "
            f"name what feeds it: sub-topology {', '.join(map(str, feeders))}"
        )
    return found


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(repr, sorted(names, key=str))) or "nothing"
