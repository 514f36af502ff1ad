"""Patterns: sources that read every topic whose whole name matches a regular expression.

With a pattern, the cluster determines which topics are read. A pattern is therefore *resolved* against the names of the existing topics
before the topology is split, so that all later steps see plain sources with plain topics. When topics are created or deleted, it is
resolved again (see docs/decisions/0042-topics-by-pattern.md).

A pattern never matches an internal topic, neither of the broker (``__consumer_offsets``) nor of the application, because records of
the application's internal topics would flow back into it.

The *mark* of a pattern represents it among the topics of a sub-topology. A checkpoint contains the mark, so that a restart finds the
state of the sub-topology even if all matching topics have changed. No topic can have the same name as a mark.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping

from millstream.core.fanout.epochs import primary_of
from millstream.core.model.errors import TopologyError
from millstream.core.topology.internal import is_internal
from millstream.core.topology.nodes import Node, Source


def mark_of(pattern: re.Pattern[str]) -> str:
    """Return the mark of a pattern.

    Example:
        >>> mark_of(re.compile("orders-.*"))
        '/orders-.*/'
    """
    return f"/{pattern.pattern}/"


def matches(pattern: re.Pattern[str], topic: str) -> bool:
    """Return whether a pattern matches the whole name of a topic that is not an internal topic of the broker."""
    return not topic.startswith("__") and pattern.fullmatch(topic) is not None


def source_of(sources: Iterable[Source], topic: str) -> Source | None:
    return next((s for s in sources if s.pattern is not None and matches(s.pattern, topic)), None)


def merged_with(sources: Iterable[Source], node: Source) -> Source | None:
    """Return an existing source with the same topics or an equal pattern, or None.

    Raises:
        TopologyError: If the two read the same topics with different options.

    Source: ``InternalStreamsBuilder.mergeDuplicateSourceNodes``, in which the first extractor and the first serdes win.
    """
    source = next((other for other in sources if _reads(other) == _reads(node)), None)
    if source is None:
        return None
    for what in ("key", "value", "timestamp", "offset_reset", "fan_out"):
        first, second = getattr(source, what), getattr(node, what)
        if first != second:
            raise TopologyError(
                f"{_description(node)} is read twice, by {source.name!r} with {what}={first!r} and by {node.name!r} with {what}={second!r}. "
                f"Both streams share one source; give both the same {what}"
            )
    return source


def _reads(source: Source) -> object:
    pattern = source.pattern
    return frozenset(source.topics) if pattern is None else (pattern.pattern, pattern.flags)


def _description(source: Source) -> str:
    if source.pattern is not None:
        return f"the pattern {source.pattern.pattern!r}"
    return f"topic {', '.join(map(repr, source.topics))}"


def check_one_source(sources: Iterable[Source], topic: str) -> None:
    """Check that only one source reads a topic whose name has become known.

    Raises:
        TopologyError: If a pattern matches a topic that another source reads.
    """
    readers = [
        s for s in sources if topic in s.topics or (s.pattern is not None and matches(s.pattern, topic))
    ]
    if len(readers) > 1:
        raise _two_sources(topic, readers[0].name, readers[1])


def _two_sources(topic: str, first: str, second: Source) -> TopologyError:
    by = "" if second.pattern is None else f" by its pattern {second.pattern.pattern!r}"
    return TopologyError(
        f"topic {topic!r} would have two sources: {first!r}, and {second.name!r}{by}. Change the pattern so that it does not match, "
        "or use the stream of one source in both places"
    )


def resolved(nodes: Mapping[str, Node], existing: Collection[str], application_id: str) -> dict[str, Node]:
    """Return the nodes, with the matching topics in each source that has a pattern, and the fan-out topics of split partitions.

    Raises:
        TopologyError: If two sources match one topic.

    Source: ``InternalTopologyBuilder.addSubscribedTopicsFromMetadata``.
    """
    taken = {topic: node.name for node in nodes.values() if isinstance(node, Source) for topic in node.topics}
    plain: dict[str, Node] = {}
    for name, node in nodes.items():
        plain[name] = node
        if not isinstance(node, Source) or not (node.fan_out or node.pattern):
            continue
        topics = tuple(
            topic
            for topic in sorted(existing)
            if _takes_in(node, topic) and not is_internal(application_id, topic)
        )
        for topic in topics:
            if taken.setdefault(topic, name) != name:
                raise _two_sources(topic, taken[topic], node)
        plain[name] = dataclasses.replace(node, topics=(*node.topics, *topics))
    return plain


def _takes_in(source: Source, topic: str) -> bool:
    """Return whether a source reads a topic that it does not name."""
    if source.pattern is not None:
        return matches(source.pattern, topic)
    primary = primary_of(topic)
    return primary is not None and primary.topic in source.topics


def check_overlap(node: Source, others: Iterable[Source]) -> None:
    """Reject a pattern that matches a topic named by another source, as far as this is known without the cluster.

    Raises:
        TopologyError: If the pattern matches such a topic, or another source has an equal pattern.
    """
    for other in others:
        if node.pattern is not None and _reads(node) == _reads(other):
            raise TopologyError(
                f"the pattern {node.pattern.pattern!r} has two sources, {other.name!r} and {node.name!r}; "
                "read it once and use the stream in both places"
            )
        for pattern, topics in ((node.pattern, other.topics), (other.pattern, node.topics)):
            both = [topic for topic in topics if pattern is not None and matches(pattern, topic)]
            if pattern is not None and both:
                raise TopologyError(
                    f"topic {both[0]!r} has two sources, {other.name!r} and {node.name!r}: the pattern {pattern.pattern!r} "
                    "matches it too. Change the pattern so that it does not match, or read the topic once and use the stream in both places"
                )
