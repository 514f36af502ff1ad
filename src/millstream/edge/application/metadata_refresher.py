"""Following topics that change while an application runs: new partitions, new topics of a pattern, topics that are made again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from millstream.core.model.errors import CoPartitioningError, MillstreamError, TopologyError
from millstream.core.ports import PartitionGrouper
from millstream.core.runtime.changes import changes, recreated_error
from millstream.core.topology.plan import Plan
from millstream.drivers.kafka.broker import Broker
from millstream.edge.application.running_application import RunningApplication
from millstream.edge.planning.plans import topics_met
from millstream.edge.settings.settings import Settings

log = logging.getLogger("millstream.application")


class Planning(Protocol):
    """An application, as far as its topics matter."""

    settings: Settings
    _grouper: PartitionGrouper

    def _plan_of(self, broker: Broker, existing: Mapping[str, int] | None = None) -> Plan:
        """Return the plan with the topics that patterns match now."""


class Following:
    """Looks at the topics of a running application.

    Args:
        application: The application.
        running: The same at work.
        broker: Where the topics are.
    """

    def __init__(self, application: Planning, running: RunningApplication, broker: Broker) -> None:
        self._application = application
        self._running = running
        self._broker = broker

    def look(self) -> None:
        """Follow topics that have changed: run on with their new partitions, or end with an error."""
        self._running._look_for_others()
        plan, before = self._running._continues
        now = self._broker.topic_facts(before)
        found = changes(before, now)
        named = tuple(topic for topic in found.recreated if topic not in plan.plan.chosen_topics)
        existing = self._broker.partition_counts() if plan.plan.has_patterns else {}
        try:
            matching = self._application._plan_of(self._broker, existing)
        except TopologyError as error:  # a new topic matches two patterns
            return self._running._changeover.end_with(error)
        if named and self._application.settings.on_recreated_topic == "fail":
            self._running._changeover.end_with(recreated_error(named))
        elif found.recreated:
            self._running._changeover.restart(
                f"{', '.join(found.recreated)} was created again and is read from its beginning"
            )
        elif matching.chosen_topics != plan.plan.chosen_topics:
            self._go_on_with(matching, existing, topics_met(plan.plan, matching))
        elif found.grown:
            grown = [f"{topic} from {was} to {now}" for topic, (was, now) in found.grown.items()]
            reason = f"the number of partitions has changed: {', '.join(grown)}"
            self._go_on_with(matching, self._broker.partition_counts(), reason)
        return None

    def _go_on_with(self, plan: Plan, existing: Mapping[str, int], reason: str) -> None:
        """Start the query again with other topics or partitions, if they fit together."""
        try:
            self._running._continues[0].fits(plan, existing, self._application._grouper)
        except MillstreamError as error:
            self._uneven(error)
        else:
            self._running._changeover.restart(reason)

    def _uneven(self, error: MillstreamError) -> None:
        """End because topics no longer fit together, or go on without their new partitions for now."""
        if (
            not isinstance(error, CoPartitioningError)
            or self._application.settings.on_uneven_partitions == "fail"
        ):
            self._running._changeover.end_with(error)
        else:
            log.warning("going on without the new partitions until the topics are alike again: %s", error)
