"""The planner: decides how far each partition advances in the next micro-batch.

The planner lives as long as the query, in its own Python process in the Spark driver. Before each micro-batch it asks the application
whether to continue, which topics are paused, and when tasks want to be woken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from millstream.core.engine.asynchronous.backpressure import MIN_IN_FLIGHT
from millstream.core.model.errors import BrokerUnavailableError, TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.positions import Offsets, flat, nested
from millstream.core.ports import BatchId
from millstream.core.runtime.admission import RunEnd, first_records
from millstream.core.runtime.batch_plan import BatchPlan, Initialization, WallClock
from millstream.core.runtime.messages import PlanningOrders, PlanRequest
from millstream.core.runtime.origins import Begun, begun_after, topics_committed_later, topics_finished_later
from millstream.core.runtime.partition_times import latest, topics_timed_by_readers
from millstream.core.runtime.pausing import resting
from millstream.core.runtime.remaining_inputs import RemainingInputs, lets_tasks_continue
from millstream.core.runtime.throttling import Throttle
from millstream.core.topology.evolution import check_stores, with_new_names
from millstream.drivers.spark.clock import wall_clock
from millstream.drivers.spark.planner.fan_outs import FanOuts
from millstream.drivers.spark.planner.global_ends import GlobalEnds
from millstream.drivers.spark.planner.input_planner import InputPlanner, Outlook
from millstream.drivers.spark.planner.reads import ReadPlanner
from millstream.drivers.spark.planner.repartitions import Repartitions
from millstream.drivers.spark.planner.source_topics import InputTopics
from millstream.drivers.spark.planner.start_offsets import first_offsets, updated
from millstream.drivers.spark.spec import PlannedRead, SourceSpec

log = logging.getLogger("millstream.source")

_IDLE_POLL_S = 0.04


class _Request(NamedTuple):
    """A request for the next micro-batch: previous plan, wall clock, readable ends, the application's orders."""

    start: BatchPlan
    clock: WallClock
    ends: Offsets | None
    orders: PlanningOrders


class Planner:
    """Plans the micro-batches of one query. Owned by the reader in the Spark driver."""

    def __init__(self, spec: SourceSpec) -> None:
        plan = spec.topology.plan
        self._spec = spec
        self._reads = ReadPlanner(spec)
        self._topics = InputTopics(spec)
        self._final: Offsets | None = None
        """The end of a run to the end. None in other runs."""
        self._begun = False
        self._must_wait = False
        """Whether a run to the end waits for the broker, for its own open transaction, or for paused or throttled topics.

        Spark ends such a query if there is nothing to plan. The first micro-batch of a run waits as well: if there is nothing to plan for a
        new checkpoint, Spark runs an empty one.
        """
        self._throttle = Throttle({topic: split.topic for topic, split in plan.fan_outs.items()})
        self._last_began_s: float | None = None
        """When the last micro-batch with records was planned, in monotonic seconds. None before the first one."""
        self._globals = GlobalEnds(spec)
        self._waits_for: frozenset[str] = frozenset()
        """The paused topics that a run to the end waits for, as last logged."""
        self._timed = topics_timed_by_readers(plan)
        self._committed_later = topics_committed_later(plan)
        self._finished_later = topics_finished_later(plan)
        self._repartitions = Repartitions(spec)
        self._fan_outs = FanOuts(spec)
        self._inputs = InputPlanner(plan, spec.topology.layout, spec.waits, spec.broker)

    def first(self) -> dict[str, Any]:
        spec = self._spec
        positions = first_offsets(spec, self._topics.counts())
        batch = BatchId(spec.checkpoint, 0, spec.run)
        return BatchPlan(batch, spec.topology.remembered(positions), clock=wall_clock(spec.clock)).to_json()

    def reads(self, start: dict[str, Any], end: dict[str, Any]) -> list[PlannedRead]:
        """Return the reads of a planned micro-batch. They depend only on the plans."""
        return self._reads.reads(BatchPlan.from_json(start), BatchPlan.from_json(end))

    def fix_end(self) -> None:
        """Fix the ends of external topics for a run to the end. Internal topics are drained."""
        internal = self._spec.topology.plan.internal_topics
        counts = {topic: count for topic, count in self._topics.counts().items() if topic not in internal}
        self._final = self._spec.broker.end_offsets(counts)
        if (before := self._spec.end.before_ms) is not None:
            bounds = self._spec.broker.offsets_at(counts, before)
            self._final = {topic: {**ends, **bounds.get(topic, {})} for topic, ends in self._final.items()}

    def next(self, start: dict[str, Any]) -> dict[str, Any]:
        """Plan the next micro-batch.

        Returns:
            The offset at the end. If there is nothing to do, ``start`` itself, because Spark compares the text of offsets.
        """
        before = BatchPlan.from_json(start)
        planned = self._next(before)
        while planned is None:
            # Spark asks again at once. This sleep is the poll interval; it does not wait for an event.
            time.sleep(_IDLE_POLL_S)
            if not self._must_wait:
                break
            planned = self._next(before)
        return start if planned is None else planned.to_json()

    def _next(self, start: BatchPlan) -> BatchPlan | None:
        unread = self._reads.unread(start.id)
        start = start.at(updated(start.positions, unread))
        request, begun = self._ask_for_orders(start, left_out=bool(unread)), self._begun
        try:
            return self._complete_plan(start, request)
        except BrokerUnavailableError as error:
            # A broker was lost after the request for the ends. The next request waits for it.
            log.warning("planning again: %s", error)
            self._begun, self._must_wait = begun, self._final is not None or not begun
            return None
        except TopicNotFoundError:  # it was deleted after the request for the ends
            if not self._topics.continue_without_missing(bounded=self._final is not None):
                raise
            self._begun, self._must_wait = begun, False
            return None

    def _complete_plan(self, start: BatchPlan, request: _Request) -> BatchPlan | None:
        if request.ends is not None:
            self._fan_outs.read_epochs()
        paused = self._fan_outs.with_fan_outs(request.orders.paused)
        request = request._replace(orders=replace(request.orders, paused=paused))
        planned = self._planned(request)
        if planned is None:
            return None
        if planned.initialization is None:  # the first micro-batch of a run only initialises the tasks
            self._last_began_s = time.monotonic()
        with_ends = self._globals.with_ends(planned, start, self._topics.recreated_among)
        if with_ends is None:
            return None
        return replace(
            with_ends,
            times=self._times(request),
            origins=self._origins(request, planned),
            taps=request.orders.taps,
        )

    def _ask_for_orders(self, start: BatchPlan, *, left_out: bool) -> _Request:
        clock = wall_clock(self._spec.clock)
        if not self._begun:
            self._check_continues(start)
        ends = self._topics.ends(self._globals.ask, bounded=self._final is not None)
        question = PlanRequest(
            start.positions,
            ends,
            clock.now_ms,
            self._throttle.take_held_back_ms(),
            start.origins if self._begun else None,
            left_out,
        )
        orders: PlanningOrders = self._spec.control.ask("plan", question) or PlanningOrders()
        self._throttle.advance(orders.rates, int(time.monotonic() * 1000))
        return _Request(start, clock, ends, orders)

    def _planned(self, request: _Request) -> BatchPlan | None:
        """Plan the next micro-batch, except for the parts that depend on the plan. Return None if there is nothing to do."""
        start, _, ends, orders = request
        bounded = self._final is not None
        self._must_wait = ends is None and bounded and not orders.hold
        if orders.hold or self._globals.unknown(start) or self._is_early(orders):
            return None
        if ends is not None and self._repartitions.settling(ends):
            self._must_wait = bounded or not self._begun
            return None
        if not self._begun:
            return self._initializing(request)
        return self._initializing_again(request) if orders.initialize else self._following(request)

    def _initializing(self, request: _Request) -> BatchPlan:
        """Plan the first micro-batch of a run, which reads nothing and starts all tasks."""
        start, clock, ends, orders = request
        positions = self._topics.with_new_partitions(self._topics.without_recreated(start))
        if self._final is not None and self._spec.end != RunEnd():
            self._final = first_records(positions, self._final, self._spec.end.records)
        self._begun = True
        remaining = self._unknown(orders)
        if ends is not None:
            readable = self._fan_outs.readable(positions, self._limited_ends(ends), orders.records)
            _, remaining = self._aligned_ends(request, positions, positions, {}, readable)
        planned = self._plan_after(start, positions, clock, remaining)
        return self._starting_all(planned, self._spec.initialization, orders)

    def _initializing_again(self, request: _Request) -> BatchPlan:
        """Plan a micro-batch that reads nothing and starts all tasks, so that they correct their changelog topics."""
        start, clock, _, orders = request
        planned = self._plan_after(start, start.positions, clock, self._unknown(orders))
        return self._starting_all(planned, Initialization(), orders)

    def _starting_all(
        self, planned: BatchPlan, initialization: Initialization, orders: PlanningOrders
    ) -> BatchPlan:
        """Let a micro-batch start all tasks. Those of paused sub-topologies do not punctuate."""
        rest = tuple(sorted(resting(self._spec.topology.plan, orders.paused)))
        return replace(planned, tick=planned.tick + 1, initialization=replace(initialization, resting=rest))

    def _following(self, request: _Request) -> BatchPlan | None:
        """Plan a micro-batch that reads records or wakes tasks. Return None if there is nothing to do."""
        start, clock, ends, orders = request
        due = self._due_tasks(request)
        if ends is None:
            planned, remaining = start.positions, self._unknown(orders)
            goes_on = False
        else:
            positions = self._topics.without_lost(start.positions, ends)
            if positions is None:
                return None
            limited = self._limited_ends(ends)
            readable = self._fan_outs.readable(positions, limited, orders.records)
            allowed = self._allowed_ends(positions, readable, orders)
            admitted = self._repartitions.admitted(positions, allowed, orders.bytes_per_record)
            planned, remaining = self._aligned_ends(request, positions, admitted, allowed, readable)
            goes_on = planned != start.positions or self._releases_records(request, remaining)
            if goes_on:
                self._throttle.take_tokens(positions, planned)
            else:
                self._must_wait = self._final is not None and self._has_more(request, limited)
        if not goes_on and not due:
            return None
        following = self._plan_after(start, planned, clock, remaining)
        return replace(following, tick=start.tick + bool(due), woken=due)

    def _plan_after(
        self, start: BatchPlan, positions: Offsets, clock: WallClock, remaining: RemainingInputs | None
    ) -> BatchPlan:
        batch = BatchId(start.id.checkpoint, start.id.number + 1, self._spec.run)
        topology = self._spec.topology.remembered(positions)
        return BatchPlan(batch, topology, start.tick, clock, remaining)

    def _times(self, request: _Request) -> Offsets | None:
        """Return the partition times at the beginning of the micro-batch, or None if no reader needs them."""
        if not self._timed:
            return None
        known = latest(flat(request.start.times or {}), flat(request.orders.times))
        return nested({partition: ms for partition, ms in known.items() if partition.topic in self._timed})

    def _origins(self, request: _Request, planned: BatchPlan) -> tuple[Begun, ...] | None:
        """Return where the micro-batches with in-flight records began. Includes the planned micro-batch if it reads."""
        if not self._committed_later:
            return None
        start = request.start
        if planned.initialization is not None:  # it reads nothing, and some tasks have not reported yet
            return start.origins or ()
        positions = {
            topic: offsets for topic, offsets in start.positions.items() if topic in self._committed_later
        }
        return begun_after(start.origins or (), Begun(planned.id.number, positions), request.orders.oldest)

    def _is_early(self, orders: PlanningOrders) -> bool:
        """Return whether the trigger interval is still running and no processor has requested a commit."""
        if self._last_began_s is None or self._final is not None or orders.commit:
            return False
        return time.monotonic() - self._last_began_s < self._spec.trigger_interval_ms / 1000

    def _allowed_ends(self, positions: Offsets, limited: Offsets, orders: PlanningOrders) -> Offsets:
        """Return how far topics may be read, without paused topics. While draining, return only internal topics."""
        readable = {topic: ends for topic, ends in limited.items() if topic not in orders.paused}
        if not orders.intake:
            outside = self._spec.topology.plan.external_topics
            readable = {topic: positions[topic] if topic in outside else e for topic, e in readable.items()}
        readable = self._throttle.limited(positions, readable)
        readable = self._repartitions.without_full(positions, readable, orders.records)
        return _within_room(positions, readable, self._finished_later, orders.records.room)

    def _due_tasks(self, request: _Request) -> tuple[str, ...]:
        """Return the tasks to wake. In a run to the end, only tasks with buffered records."""
        orders = request.orders
        if self._final is None:
            return orders.due
        idle_until = orders.records.idle_until_ms
        return orders.due if idle_until is not None and idle_until <= request.clock.now_ms else ()

    def _aligned_ends(
        self, request: _Request, positions: Offsets, admitted: Offsets, allowed: Offsets, log_ends: Offsets
    ) -> tuple[Offsets, RemainingInputs | None]:
        """Plan inputs that are processed together up to a common time."""
        if not self._inputs.active:
            return admitted, None
        orders = request.orders
        outlook = Outlook(
            positions,
            admitted,
            allowed,
            log_ends,
            orders.records,
            orders.paused,
            self._final is not None,
            orders.bytes_per_record,
            request.start.inputs,
            self._fan_outs.epoch_ends,
        )
        return self._inputs.planned(outlook)

    def _unknown(self, orders: PlanningOrders) -> RemainingInputs | None:
        """Return the input facts while no broker answers."""
        if not self._inputs.active:
            return None
        return RemainingInputs(paused=orders.paused, bounded=self._final is not None, unknown=True)

    def _releases_records(self, request: _Request, remaining: RemainingInputs | None) -> bool:
        """Return whether buffered records can be processed although there is nothing new to read."""
        if remaining is None or not request.orders.records.buffered:
            return False
        return lets_tasks_continue(request.start.inputs, remaining)

    def _has_more(self, request: _Request, limited: Offsets) -> bool:
        """Return whether a run to the end must continue although nothing can be read now."""
        _, _, ends, orders = request
        assert ends is not None
        return (
            self._is_held_back(request.start.positions, limited, orders.paused)
            or self._repartitions.incomplete(ends)
            or orders.records.idle_until_ms is not None
        )

    def _is_held_back(self, positions: Offsets, ends: Offsets, paused: Collection[str]) -> bool:
        """Return whether a pause or throttle prevents a run to the end from finishing."""
        left = {
            topic
            for topic, partitions in ends.items()
            if any(to > positions.get(topic, {}).get(p, to) for p, to in partitions.items())
        }
        waits_for = frozenset(left.intersection(paused))
        if waits_for - self._waits_for:
            log.warning(
                "run(until='end') is waiting for paused topics: %s; resume them to continue",
                ", ".join(sorted(waits_for)),
            )
        self._waits_for = waits_for
        return bool(left)

    def _check_continues(self, start: BatchPlan) -> None:
        """Reject the checkpoint of another topology. Later offsets come from this planner.

        Raises:
            IncompatibleTopologyError: If the stores of the checkpoint do not match the topology.
        """
        topology = self._spec.topology
        known = with_new_names(start.topology.stores, topology.lineage.renamed_stores)
        check_stores(known, topology.plan.store_fingerprints())

    def _limited_ends(self, ends: Offsets) -> Offsets:
        return ends if self._final is None else {**ends, **self._final}


def _within_room(
    positions: Offsets, ends: Offsets, finished_later: Collection[str], room: Mapping[TopicPartition, int]
) -> Offsets:
    """Limit topics whose records finish later to the room of their tasks. While the room is unknown, read only a few records."""
    limited = {
        topic: {
            p: min(end, positions[topic].get(p, end) + room.get(TopicPartition(topic, p), MIN_IN_FLIGHT))
            for p, end in ends[topic].items()
        }
        for topic in ends.keys() & finished_later
    }
    return {**ends, **limited}
