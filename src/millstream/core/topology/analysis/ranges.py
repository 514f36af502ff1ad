"""Ranges: decides which sub-topologies can be divided into key ranges, so that several tasks process one partition.

The records of a partition are divided by their serialised keys when they are read, before any user function is called. A sub-topology
can be divided if the processing of a record depends only on records of the same key and on the time of the partition. The following
are refused, with an error that names the node and the reason:

* an operator whose effect depends on several keys at once, such as a limit over a whole buffer;
* a processor that is not declared *local to keys*: ``process(..., key_local=True)``;
* an operator that keeps its own stream time, downstream of one that may omit records or create or delete values: with ranges, the
  operator would use the time of the partition instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from millstream.core.model.errors import IncompatibleTopologyError, SettingsError, TopologyError
from millstream.core.topology import join_nodes as j
from millstream.core.topology import nodes as n
from millstream.core.topology import window_nodes as w
from millstream.core.topology.async_nodes import ForeachAsync, MapValuesAsync, ProcessAsync, UnfinishedProcess
from millstream.core.topology.plan import Plan, SubTopology
from millstream.core.topology.processor import TransformRows
from millstream.core.topology.routing import Routing, ranges_of_state
from millstream.core.topology.stores import LruSpec, VersionedSpec

Workers = int | Literal["auto"]
"""A number of workers, or ``"auto"``: the application adjusts the number to its load while it runs."""
Parallelism = Workers | Mapping[str, Workers]
"""Number of workers per partition: one number for all topics, or one per topic (1 for topics that are not listed)."""

AUTO: Final = "auto"
AUTO_RANGES: Final = 16
"""Number of key ranges of a partition whose number of workers is automatic."""
MOST_RANGES: Final = 256
_BY_WINDOW: Final = (w.WindowedAggregate, w.SessionAggregate, w.SlidingAggregate)
_WINDOWED: Final = (*_BY_WINDOW, w.CalendarAggregate)
_TIMED: Final = (*_WINDOWED, w.Suppress)
_LOOSELY_EXPIRING: Final = (w.SlidingAggregate, w.CalendarAggregate)
"""Windows that may be readable for longer than without ranges, because their store does not use the time of the partition."""
_BY_VALUES: Final = (j.StreamJoin, j.GraceBuffer, w.SlidingAggregate)
"""Nodes that skip records without a value, so that these do not advance time."""
_KEEPING_VALUES: Final = (n.Source, n.Peek, n.Pass)
_KEEPING_ALL: Final = (*_KEEPING_VALUES, n.MapValues, n.ToStream, *_BY_WINDOW, w.Suppress)
"""Nodes that forward every record. A calendar omits records outside all of its windows."""


def ranges_for(workers: Workers) -> int:
    """Return the number of key ranges of a partition for a number of workers: a power of two, at least 16 if there are several workers.

    Within limits, the number of ranges is the same for different numbers of workers, so that changing them does not divide the state.

    Raises:
        SettingsError: If it is neither a whole number from 1 to 256 nor ``"auto"``.

    Example:
        >>> [ranges_for(workers) for workers in (1, 2, 16, 17, "auto")]
        [1, 16, 16, 64, 16]
    """
    if workers == AUTO:
        return AUTO_RANGES
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= MOST_RANGES:
        raise SettingsError(
            f"parallelism={workers!r}: it must be a whole number from 1 to {MOST_RANGES}, or 'auto'"
        )
    return 1 if workers == 1 else next(ranges for ranges in (16, 64, MOST_RANGES) if workers <= ranges)


def divided_plan(plan: Plan, parallelism: Parallelism) -> Plan:
    """Return a plan whose sub-topologies are divided into key ranges.

    Raises:
        SettingsError: If a number is out of range, or no source reads a topic.
        TopologyError: If a sub-topology that reads one of the topics cannot be divided.
    """
    if isinstance(parallelism, Mapping):
        unknown = sorted(parallelism.keys() - plan.subtopology_of.keys())
        if unknown and not plan.has_patterns:
            read = ", ".join(sorted(plan.subtopology_of))
            raise SettingsError(
                f"parallelism names {', '.join(map(repr, unknown))}, which the topology does not read; it reads: {read}"
            )
    subs = tuple(_in_key_ranges(plan, sub, parallelism) for sub in plan.subtopologies)
    return plan if subs == plan.subtopologies else replace(plan, subtopologies=subs)


def workers_of(parallelism: Parallelism) -> int:
    """Return the largest number of workers of any partition; for an automatic number, its maximum."""
    return max((AUTO_RANGES if each == AUTO else each for each in _worker_counts(parallelism)), default=1)


def is_automatic(parallelism: Parallelism) -> bool:
    """Return whether the application chooses the number of workers. If it does for one topic, it does for all.

    Example:
        >>> is_automatic({"orders": "auto", "clicks": 4}), is_automatic(4)
        (True, False)
    """
    return AUTO in _worker_counts(parallelism)


def with_workers(parallelism: Parallelism, workers: Workers) -> Parallelism:
    """Return a parallelism with another number of workers. If it names topics, those with one worker keep it.

    Example:
        >>> with_workers({"orders": 16, "clicks": 1}, 4), with_workers(1, 4), with_workers({"clicks": 1}, 4)
        ({'orders': 4, 'clicks': 1}, 4, 4)
    """
    if not isinstance(parallelism, Mapping) or all(each == 1 for each in parallelism.values()):
        return workers
    return {topic: 1 if each == 1 else workers for topic, each in parallelism.items()}


def _worker_counts(parallelism: Parallelism) -> Collection[Workers]:
    return parallelism.values() if isinstance(parallelism, Mapping) else (parallelism,)


def _in_key_ranges(plan: Plan, sub: SubTopology, parallelism: Parallelism) -> SubTopology:
    if not sub.nodes or plan.runs_before_shuffle(sub):
        return sub
    if isinstance(parallelism, Mapping):
        ranges = max((ranges_for(parallelism.get(topic, 1)) for topic in _topics_of(plan, sub)), default=1)
    else:
        ranges = ranges_for(parallelism)
    return sub if ranges == 1 else in_ranges(sub, ranges)


def _topics_of(plan: Plan, sub: SubTopology) -> Iterator[str]:
    """Yield the topics of a sub-topology, and those that reach it through Spark's shuffle."""
    yield from sub.source_topics
    for topic in sub.source_topics:
        internal = plan.internal_topics.get(topic)
        if internal is not None and internal.through_shuffle:
            yield from plan.subtopologies[internal.upstream].source_topics


def obstacle_of(sub: SubTopology) -> str | None:
    """Return why a sub-topology cannot be divided into key ranges; None if it can."""
    return next(_obstacles(sub), None)


def in_ranges(sub: SubTopology, ranges: int) -> SubTopology:
    """Return a sub-topology that is divided into key ranges."""
    if (reason := obstacle_of(sub)) is not None:
        raise TopologyError(
            f"sub-topology {sub.id} cannot be divided into key ranges: {reason}. Leave its topics out of parallelism=, or "
            "change the topology"
        )
    return replace(sub, ranges=ranges)


def with_ranges_of_state(plan: Plan, before: Routing) -> Plan:
    """Return a plan with at least the key ranges into which the state of its stores is divided, whatever ``parallelism`` is.

    Raises:
        IncompatibleTopologyError: If a sub-topology with such state can no longer be divided.
    """
    return replace(plan, subtopologies=tuple(_in_ranges_of_state(sub, before) for sub in plan.subtopologies))


def _in_ranges_of_state(sub: SubTopology, before: Routing) -> SubTopology:
    ranges = ranges_of_state(before, sub)
    if ranges <= sub.ranges:
        return sub
    if (reason := obstacle_of(sub)) is not None:
        raise IncompatibleTopologyError(
            f"the state of sub-topology {sub.id} is divided into {ranges} key ranges, which cannot be merged, and this topology cannot be "
            f"divided: {reason}. Change the topology, or start over with `millstream reset` or another application id"
        )
    return replace(sub, ranges=ranges)


def _obstacles(sub: SubTopology) -> Iterator[str]:
    """Yield the reasons why a sub-topology cannot be divided."""
    for node in sub.nodes.values():
        reason = _obstacle(node)
        if reason is not None:
            yield f"node {node.name!r} ({type(node).__name__}) {reason}"
        elif isinstance(node, _BY_VALUES):
            yield from _lost_time(sub, node, node, _KEEPING_VALUES)
        elif isinstance(node, _TIMED) or _is_versioned(node):
            yield from _lost_time(sub, node, node, _KEEPING_ALL)
        yield from _shown_for_longer(sub, node)
    tables = {node.store.name for node in sub.nodes.values() if isinstance(node, n.TableSource)}
    for spec in sub.stores.values():
        if isinstance(spec, VersionedSpec) and spec.name not in tables:
            yield f"store {spec.name!r} keeps versions, whose expiry depends on the writes of all keys"
        elif isinstance(spec, LruSpec):
            yield f"store {spec.name!r} evicts the least recently used of all keys"


def _shown_for_longer(sub: SubTopology, node: n.Node) -> Iterator[str]:
    """Yield the windows that a node looks up, if they may be readable for longer than without ranges."""
    if isinstance(node, (*_LOOSELY_EXPIRING, n.Cogroup)):
        return
    for other in sub.nodes.values():
        if isinstance(other, _LOOSELY_EXPIRING) and other.store.name in node.store_names:
            yield (
                f"node {node.name!r} ({type(node).__name__}) looks up windows of {other.name!r}, whose expiry depends on "
                "the windows of other keys"
            )


def _is_versioned(node: n.Node) -> bool:
    return isinstance(node, n.TableSource) and isinstance(node.store, VersionedSpec)


def _obstacle(node: n.Node) -> str | None:
    """Return why a node cannot be divided, or None if it can."""
    if isinstance(node, n.Source):
        takes_times = node.timestamp is not None
        return "extracts timestamps from records, so the reader does not know them" if takes_times else None
    if isinstance(node, UnfinishedProcess):
        return "is a processor with calls= or acknowledges=True, which has no key ranges"
    if isinstance(node, TransformRows):
        return "transforms a table with a processor (transform_values), which has no key ranges"
    if isinstance(node, n.Process):
        return None if node.key_local else "is a processor without key_local=True"
    if isinstance(node, ProcessAsync):
        return "is a coroutine with stores (process_async), which has no key ranges"
    if isinstance(node, (MapValuesAsync, ForeachAsync)) and node.calls.order == "partition":
        return "keeps the order of a whole partition (order='partition')"
    if not (node.pure or node.local_to_key):
        return "depends on more than the records of one key"
    if node.closes_idle:
        return "closes windows when all keys are idle (close_idle_after)"
    if isinstance(node, w.Suppress) and node.suppressed.limited:
        return "limits a buffer that all keys share"
    if isinstance(node, j.StreamJoin) and node.unmatched is not None:
        return _early_results(node.times)
    return _shared_checks(node) if isinstance(node, _WINDOWED) else None


def _early_results(times: j.JoinTimes) -> str | None:
    if times.interval:
        return "checks for records without a partner at intervals that all keys share (unmatched_interval)"
    if not times.final:
        return "emits records without a partner depending on records of other keys (unmatched='early')"
    return None


def _shared_checks(node: Any) -> str | None:
    if node.emit.at_close and not node.emit.at_once:
        return "checks for closed windows at intervals, or after records, that all keys share"
    if isinstance(node, w.SlidingAggregate):
        enough = 3 * node.windows.difference_ms + node.windows.grace_ms + 1
        if node.store.retention_ms < enough:
            return (
                "has windows that may expire because of other keys while records can still be joined with them; set "
                f"store=ms.stores.options(..., retention={enough}) or more"
            )
    return None


def _lost_time(
    sub: SubTopology, node: n.Node, behind: n.Node, keeping: tuple[type[n.Node], ...]
) -> Iterator[str]:
    """Yield the nodes upstream of a node with its own stream time that may omit records, or change which records have values."""
    for parent in (sub.nodes[name] for name in behind.parents):
        if isinstance(parent, keeping):
            yield from _lost_time(sub, node, parent, keeping)
        elif isinstance(parent, n.TableSource):
            yield (
                f"node {node.name!r} ({type(node).__name__}) has its own stream time, and table {parent.name!r} upstream of it does "
                "not forward deletes of rows that do not exist, so its time is not that of the partition"
            )
        else:
            does = "make values null" if isinstance(parent, _KEEPING_ALL) else "drop records"
            yield (
                f"node {node.name!r} ({type(node).__name__}) has its own stream time, and {parent.name!r} upstream of it may {does}, so "
                f"its time is not that of the partition; insert repartition() between them"
            )


def needs_steps(sub: SubTopology) -> bool:
    """Return whether anything in a sub-topology depends on more than the times at the records of a key range.

    This applies to nodes that emit results at records of other keys, and to nodes with a stream time and several inputs.
    """
    nodes = sub.nodes.values()
    emitting = any(isinstance(node, (j.StreamJoin, j.GraceBuffer)) for node in nodes)
    timed = any(isinstance(node, _TIMED) or _is_versioned(node) for node in nodes)
    return emitting or (timed and len(sub.origins) > 1)
