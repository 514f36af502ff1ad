"""The planner: decides in the Spark driver how far each partition advances in the next micro-batch.

It lives as long as the query, in a Python process of its own, and asks the application before each batch: whether to go on,
what is paused, when a task wants to be woken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from millstream.core.engine.ledger import WITH_STATION
from millstream.core.model.errors import BrokerUnavailableError, TopicNotFoundError, shorter_topic
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets
from millstream.core.runtime.bounds import RunEnd, first_records
from millstream.core.runtime.changes import recreated, recreated_error
from millstream.core.runtime.intake import topics_finished_later
from millstream.core.runtime.origins import (
    Begun,
    begun_after,
    begun_from_json,
    begun_to_json,
    topics_committed_later,
)
from millstream.core.runtime.throttling import Throttle
from millstream.core.topology.evolution import check_stores, with_new_names
from millstream.drivers.spark.clock import reading
from millstream.drivers.spark.globals import GlobalEnds
from millstream.drivers.spark.inputs import Held, InputPlanner, Prospect, changed
from millstream.drivers.spark.offsets import batch_id, offset_after, positions_of, woken
from millstream.drivers.spark.planner.repartitions import Repartitions
from millstream.drivers.spark.planner.start_offsets import first_positions, positions_of_new, updated
from millstream.drivers.spark.spec import SourceSpec
from millstream.drivers.spark.times import times_after, topics_timed_by_readers

log = logging.getLogger("millstream.source")

_IDLE_POLL_S = 0.04


class Planner:
    """Plans the batches of one query. Owned by the reader in the Spark driver."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._final: Offsets | None = None
        self._waiting_since: float | None = None
        self._begun = False
        self._cut_off = False
        """Whether a run to the end has to wait for the broker, for a transaction of its own to be complete, or for what is
        paused or throttled: nothing to plan would tell Spark that it is done."""
        self._throttle = Throttle()
        self._last_began_s: float | None = None
        """When the last micro-batch was planned that may bring records, by the monotonic clock."""
        self._globals = GlobalEnds(spec)
        self._waits_for: frozenset[str] = frozenset()
        """The paused topics that a run to the end waits for, as was told last."""
        topology = spec.topology
        self._timed = topics_timed_by_readers(topology.plan)
        self._committed_later = topics_committed_later(topology.plan)
        self._oldest: Mapping[str, int] | None = None
        """The oldest micro-batch that a record is unfinished of, per topic in front of the shuffle, as the application said last."""
        self._times: Offsets = {}
        """The partition times that were reported, as the application said last."""
        self._finished_later = topics_finished_later(topology.plan)
        self._repartitions = Repartitions(spec)
        self._inputs = InputPlanner(topology.plan, topology.layout, spec.waits, spec.broker)

    def first(self) -> dict[str, Any]:
        """Decide where a query without a checkpoint begins."""
        positions = first_positions(self._spec, self._counts())
        begun = {"checkpoint": self._spec.checkpoint, "batch": -1}
        offset = offset_after(begun, positions, 0, reading(self._spec.clock), self._spec.topology)
        return {**offset, "run": self._spec.run}

    def fix_end(self) -> None:
        """Fix how far a run to the end goes in the topics from outside; internal topics are drained."""
        internal = self._spec.topology.plan.internal_topics
        counts = {topic: count for topic, count in self._counts().items() if topic not in internal}
        self._final = self._spec.broker.end_offsets(counts)
        if (before := self._spec.end.before_ms) is not None:
            found = self._spec.broker.offsets_at(counts, before)
            self._final = {topic: {**ends, **found.get(topic, {})} for topic, ends in self._final.items()}

    def _end_fixed_from(self, positions: Offsets) -> bool:
        """Fix how far a run reads that ends before the end, now that it is known where it begins; return True."""
        if self._final is not None and self._spec.end != RunEnd():
            self._final = first_records(positions, self._final, self._spec.end.records)
        return True

    def next(self, start: dict[str, Any]) -> dict[str, Any]:
        """Plan the next batch; give ``start`` back if there is nothing to do."""
        planned = self._planned(start)
        while planned is start:
            time.sleep(
                _IDLE_POLL_S
            )  # Spark asks again at once; this is the poll interval, not a wait for anything
            if not self._cut_off:
                break
            planned = self._planned(start)
        if planned is not start:
            if "begin" not in planned:  # the first of a run only initialises the tasks
                self._last_began_s = time.monotonic()
            planned = self._globals.onto(start, planned, self._recreated_among)
            planned = {**planned, **times_after(start, self._times, self._timed), "run": self._spec.run}
            if self._committed_later:
                planned["origins"] = self._origins(start, planned)
        return planned

    def _origins(self, start: Mapping[str, Any], planned: Mapping[str, Any]) -> list[list[Any]]:
        """Return where the micro-batches began that records may be unfinished of, the planned one included if it reads."""
        before: list[list[Any]] = start.get("origins", [])
        if "begin" in planned:  # reads nothing, and not all tasks have reported
            return before
        positions = {topic: at for topic, at in positions_of(start).items() if topic in self._committed_later}
        batch = Begun(batch_id(planned).number, positions)
        return begun_to_json(begun_after(begun_from_json(before), batch, self._oldest))

    def _planned(self, start: dict[str, Any]) -> dict[str, Any]:
        spec, now = self._spec, reading(self._spec.clock)
        if not self._begun:
            self._check_continues(start)
        ends = self._ends()
        orders = (
            spec.control.ask(
                "plan",
                {
                    "positions": positions_of(start),
                    "ends": ends,
                    "waiting": ends is None,
                    "now_ms": now.now_ms,
                    "held_back_ms": self._throttle.take_held_back_ms(),
                    "origins": start.get("origins") if self._begun else None,
                },
            )
            or {}
        )
        self._times = orders.get("times", {})
        self._oldest = orders.get("oldest")
        self._throttle.advance(orders.get("rates", {}), int(time.monotonic() * 1000))
        self._cut_off = ends is None and self._final is not None and not orders.get("hold")
        if orders.get("hold") or self._globals.unknown(start) or self._is_early(orders):
            return start
        if ends is not None and self._repartitions.settling(ends):
            self._cut_off = self._final is not None
            return start
        positions = positions_of(start)
        if not self._begun:
            positions = self._with_new_partitions(self._without_recreated(start, positions))
            self._begun = self._end_fixed_from(positions)
            begun = offset_after(start, positions, start["tick"] + 1, now, spec.topology)
            _, facts = self._aligned(start, positions, positions, {}, ends and self._limited(ends), orders)
            return {**begun, **facts, "begin": dict(spec.begin)}
        due = self._due(orders, now.now_ms)
        tick = start["tick"] + bool(due)
        facts = {}
        if ends is not None:
            beyond = {topic for topic, *_ in _beyond_the_end(positions, ends)}
            if beyond:  # of what can be read, but not necessarily of what there is
                there = {topic: count for topic, count in self._counts().items() if topic in beyond}
                log_ends = {**ends, **spec.broker.log_end_offsets(there)}
                beyond = {topic for topic, *_ in _beyond_the_end(positions, log_ends)}
                if beyond and self._recreated_among(beyond):
                    return start
                positions = _without_lost(positions, log_ends, skip=spec.skip_lost)
            paused = set(orders.get("paused", ()))
            limited = self._limited(ends)
            readable = {topic: e for topic, e in limited.items() if topic not in paused}
            allowed = self._allowed(positions, readable, orders)
            admitted = self._repartitions.admitted(positions, allowed, orders.get("bytes_per_record"))
            planned, facts = self._aligned(start, positions, admitted, allowed, limited, orders)
            if planned != positions_of(start) or self._lets_go(start, facts, orders):
                self._throttle.taken(positions, planned)
                return woken({**offset_after(start, planned, tick, now, spec.topology), **facts}, due)
            self._cut_off = self._final is not None and (
                self._is_held_back(positions, limited, paused)
                or self._repartitions.incomplete(ends)
                or _held(orders).idle_until_ms is not None
            )
        elif due:
            _, facts = self._aligned(start, positions, positions, {}, None, orders)
        if not due:
            return start
        return woken({**offset_after(start, positions, tick, now, spec.topology), **facts}, due)

    def _is_early(self, orders: Mapping[str, Any]) -> bool:
        """Return whether the trigger interval is not over, and no processor has asked for a commit."""
        if self._last_began_s is None or self._final is not None or orders.get("commit"):
            return False
        return time.monotonic() - self._last_began_s < self._spec.trigger_interval_ms / 1000

    def _allowed(self, positions: Offsets, readable: Offsets, orders: Mapping[str, Any]) -> Offsets:
        """Return how far topics may be read now; while the application drains, those from outside not at all."""
        if not orders.get("intake", True):
            outside = self._spec.topology.plan.external_topics
            readable = {topic: positions[topic] if topic in outside else e for topic, e in readable.items()}
        limited = self._throttle.limited(positions, readable)
        limited = self._repartitions.without_full(positions, limited, _held(orders))
        return _within_room(positions, limited, self._finished_later, _held(orders).room)

    def _due(self, orders: Mapping[str, Any], now: int) -> list[str] | None:
        """Return the tasks that are woken now; in a run to the end, only for records that they hold."""
        due: list[str] | None = orders.get("due")
        if self._final is None:
            return due
        waits_until = _held(orders).idle_until_ms
        return due if waits_until is not None and waits_until <= now else None

    def _aligned(
        self,
        start: Mapping[str, Any],
        positions: Offsets,
        admitted: Offsets,
        allowed: Offsets,
        ends: Offsets | None,
        orders: Mapping[str, Any],
    ) -> tuple[Offsets, dict[str, Any]]:
        """Plan inputs that meet in tasks together; give the ends, and what the offset says of them, if there are such inputs."""
        if not self._inputs.active:
            return admitted, {}
        paused, bounded = orders.get("paused", ()), self._final is not None
        if ends is None:
            return admitted, {"inputs": self._inputs.unknown(paused, bounded=bounded)}
        seen = Prospect(
            positions,
            admitted,
            allowed,
            ends,
            _held(orders),
            paused,
            bounded,
            orders.get("bytes_per_record"),
            start.get("inputs"),
        )
        planned, facts = self._inputs.planned(seen)
        return planned, {} if facts is None else {"inputs": facts}

    def _lets_go(self, start: Mapping[str, Any], facts: Mapping[str, Any], orders: Mapping[str, Any]) -> bool:
        """Return whether records that are held may be processed now although there is nothing new to read."""
        return bool(facts and _held(orders).buffered and changed(start.get("inputs"), facts["inputs"]))

    def _is_held_back(self, positions: Offsets, ends: Offsets, paused: Collection[str]) -> bool:
        """Return whether a run to the end has records left that a pause or a throttle keeps from it."""
        left = {
            topic
            for topic, partitions in ends.items()
            if any(to > positions.get(topic, {}).get(p, to) for p, to in partitions.items())
        }
        waits_for = frozenset(left.intersection(paused))
        if waits_for - self._waits_for:
            log.warning(
                "the run to the end waits until what is paused is resumed: %s", ", ".join(sorted(waits_for))
            )
        self._waits_for = waits_for
        return bool(left)

    def _check_continues(self, start: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of another topology; later offsets are this planner's own.

        Raises:
            IncompatibleTopologyError: If its stores are not those of the topology.
        """
        topology = self._spec.topology
        known = with_new_names(start["stores"], topology.lineage.renamed_stores)
        check_stores(known, topology.plan.store_fingerprints())

    def _without_recreated(self, start: dict[str, Any], positions: Offsets) -> Offsets:
        """Put topics that were made again since the checkpoint at their beginning; the application allows it."""
        again = recreated(start.get("topic_ids", {}), self._spec.topology.lineage.topic_ids)
        counts = {topic: count for topic, count in self._counts().items() if topic in again}
        return {**positions, **self._spec.broker.begin_offsets(counts)}

    def _recreated_among(self, topics: Iterable[str]) -> bool:
        """Return whether topics were made again since the query was started, and tell the application, which starts it anew.

        Raises:
            TopicRecreatedError: If such a topic is not to be read; one that a pattern chose always is.
        """
        ids = {topic: facts.id for topic, facts in self._spec.broker.topic_facts(topics).items()}
        again = recreated(self._spec.topology.lineage.topic_ids, ids)
        named = tuple(topic for topic in again if topic not in self._spec.topology.plan.chosen_topics)
        if named and not self._spec.restart_recreated:
            raise recreated_error(named)
        if again:
            self._spec.control.ask("topics", again)
        return bool(again)

    def _gone_from_patterns(self) -> bool:
        """Return whether topics are gone that only a pattern chose, and tell the application, which goes on without them."""
        chosen = self._spec.topology.plan.chosen_topics
        gone = chosen - self._spec.broker.partition_counts(chosen).keys()
        if gone:
            self._spec.control.ask("topics", tuple(sorted(gone)))
        return bool(gone)

    def _with_new_partitions(self, positions: Offsets) -> Offsets:
        """Add what the checkpoint does not know: topics new in the topology, partitions added to a topic."""
        known = {topic: dict(partitions) for topic, partitions in positions.items()}
        missing = {
            topic: count
            for topic, count in self._counts().items()
            if any(partition not in known.get(topic, {}) for partition in range(count))
        }
        # What is written to a partition, or to a topic of a pattern, before it is noticed belongs to the stream: no offset reset skips it.
        noticed = known.keys() | self._spec.topology.lineage.appeared
        added = {topic: count for topic, count in missing.items() if topic in noticed}
        fresh = {topic: count for topic, count in missing.items() if topic not in noticed}
        begin = {**positions_of_new(self._spec, fresh), **self._spec.broker.begin_offsets(added)}
        for topic, partitions in begin.items():
            known[topic] = {**partitions, **known.get(topic, {})}
        return known

    def _ends(self) -> Offsets | None:
        """Ask how far the topics can be read; None while no broker answers, which is no reason to end."""
        try:
            ends = self._spec.broker.end_offsets(self._counts())
            self._globals.ask()
        except BrokerUnavailableError as error:
            if self._waiting_since is None:
                self._waiting_since = time.monotonic()
                log.warning("waiting for the broker: %s", error)
            return None
        except TopicNotFoundError:  # made again with fewer partitions, perhaps
            if self._final is not None or not (
                self._gone_from_patterns() or self._recreated_among(self._topics())
            ):
                raise
            return None
        if self._waiting_since is not None:
            log.warning("the broker is back after %.1f s", time.monotonic() - self._waiting_since)
            self._waiting_since = None
        return ends

    def _limited(self, ends: Offsets) -> Offsets:
        return ends if self._final is None else {**ends, **self._final}

    def _topics(self) -> list[str]:
        """Return all topics that are read, those of global stores included."""
        topology = self._spec.topology
        return [*topology.plan.broker_topics, *topology.global_partitions]

    def _counts(self) -> dict[str, int]:
        topology = self._spec.topology
        return {topic: topology.layout.partitions[topic] for topic in topology.plan.broker_topics}


def _held(orders: Mapping[str, Any]) -> Held:
    """Return what the tasks hold, as the application says."""
    held: Held | None = orders.get("held")
    return Held({}) if held is None else held


def _within_room(
    positions: Offsets, ends: Offsets, finished_later: Collection[str], room: Mapping[TopicPartition, int]
) -> Offsets:
    """Read no more of a topic whose records are finished later than its tasks have room for, and little before they have said how much."""
    limited = {
        topic: {
            p: min(end, positions[topic].get(p, end) + room.get(TopicPartition(topic, p), WITH_STATION))
            for p, end in ends[topic].items()
        }
        for topic in ends.keys() & finished_later
    }
    return {**ends, **limited}


def _beyond_the_end(positions: Offsets, ends: Offsets) -> list[tuple[str, int, int, int]]:
    """Return topic, partition, position and end of the partitions that end before their position."""
    return [
        (topic, partition, at, ends[topic][partition])
        for topic, partitions in positions.items()
        for partition, at in partitions.items()
        if at > ends.get(topic, {}).get(partition, at)
    ]


def _without_lost(positions: Offsets, ends: Offsets, *, skip: bool) -> Offsets:
    """Go back to the end where a topic has become shorter, or refuse to.

    Raises:
        OffsetsLostError: If that is not to be skipped.
    """
    beyond = _beyond_the_end(positions, ends)
    for topic, partition, at, end in beyond:
        if not skip:
            raise shorter_topic(topic, partition, end, at)
        log.warning(
            "going back from offset %d to %d of %s-%d, where the topic now ends", at, end, topic, partition
        )
    ending: Offsets = {}
    for topic, partition, _, end in beyond:
        ending.setdefault(topic, {})[partition] = end
    return updated(positions, ending)
