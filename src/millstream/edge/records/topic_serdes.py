"""The serdes of a topic, as the topology declares them at the nodes that write or read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.core.model.errors import TopicNotFoundError
from millstream.core.model.serdes import Serde
from millstream.core.topology import nodes as n
from millstream.core.topology.plan import Plan
from millstream.edge.records.topic_records import Serdes


def serdes_of(
    plan: Plan, topic: str, key: Serde[Any] | None, value: Serde[Any] | None, *, sent: bool
) -> Serdes:
    """Return the given serdes; take missing ones from the nodes of a topic.

    Args:
        sent: True to write records: uses the nodes that read the topic. False to read records: uses nodes that write the topic, then
            nodes that read it.

    Raises:
        TopicNotFoundError: If a serde is missing and the topic has no such node.
    """
    if key is not None and value is not None:
        return key, value
    for node in _nodes_at(plan, topic, sent=sent):
        return key or node.key, value or node.value
    known = sorted({*plan.broker_topics, *plan.sink_topics, *plan.global_part_of})
    raise TopicNotFoundError(
        f"the topology does not {'read' if sent else 'write or read'} the topic {topic!r}, so its serdes are not known; give key= and "
        f"value=, or one of {', '.join(known)}"
    )


def _nodes_at(plan: Plan, topic: str, *, sent: bool) -> Iterator[n.Source | n.Sink]:
    parts = (*plan.subtopologies, *plan.global_parts)
    nodes = [node for part in parts for node in part.nodes.values()]
    if not sent:
        yield from (node for node in nodes if isinstance(node, n.Sink) and node.topic == topic)
    yield from (node for node in nodes if isinstance(node, n.Source) and topic in node.topics)
