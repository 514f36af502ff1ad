"""Refreshes the metadata of an application's topics: new partitions, new topics that match a pattern, recreated topics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from millstream.core.model.errors import CoPartitioningError, MillstreamError, TopologyError
from millstream.core.runtime.changes import changes, recreated_error
from millstream.core.topology.plan import Plan
from millstream.edge.application.application_run import ApplicationRun
from millstream.edge.application.launching import Environment
from millstream.edge.checkpoint.continuity import warn_of_uneven
from millstream.edge.planning.plans import pattern_changes
from millstream.edge.settings.settings import Settings

log = logging.getLogger("millstream.application")


class MetadataRefresher:
    """Follows the topics of a running application.

    Args:
        matching: Returns the plan with the existing topics that match its patterns.
    """

    def __init__(
        self,
        run: ApplicationRun,
        environment: Environment,
        matching: Callable[[Mapping[str, int]], Plan],
        settings: Settings,
    ) -> None:
        self._run = run
        self._broker = environment.broker
        self._grouper = environment.grouper
        self._matching = matching
        self._settings = settings

    def refresh(self) -> None:
        """Check the topics for changes; restart the query with the changed topics, or fail."""
        if not self._run.resources.transactional:  # transactions already fence other runs
            self._run.resources.group_offsets.warn_of_others(self._run.id)
        plan, before = self._run.continues
        changed = changes(before, self._broker.topic_facts(before))
        named = tuple(topic for topic in changed.recreated if topic not in plan.plan.chosen_topics)
        existing = self._broker.partition_counts() if plan.plan.topics_vary else {}
        try:
            matching = self._matching(existing)
        except TopologyError as error:  # a new topic matches two patterns
            return self._run.query.stop_with(error)
        if named and self._settings.on_recreated_topic == "fail":
            self._run.query.stop_with(recreated_error(named))
        elif changed.recreated:
            self._run.query.restart(
                f"{', '.join(changed.recreated)} was recreated; reading it from its beginning"
            )
        elif matching.chosen_topics != plan.plan.chosen_topics:
            self._continue_with(matching, existing, pattern_changes(plan.plan, matching))
        elif changed.grown:
            grown = [f"{topic} from {was} to {now}" for topic, (was, now) in changed.grown.items()]
            reason = f"the number of partitions has changed: {', '.join(grown)}"
            self._continue_with(matching, self._broker.partition_counts(), reason)
        return None

    def changed_under_query(self) -> bool:
        """Return whether topics were recreated, or topics of a pattern deleted, since the query started. A new query handles both."""
        plan, before = self._run.continues
        try:
            now = self._broker.topic_facts(before)
        except MillstreamError as error:
            log.warning("the topics could not be checked for changes: %s", error)
            return False
        return bool(changes(before, now).recreated or (plan.plan.chosen_topics & before.keys()) - now.keys())

    def _continue_with(self, plan: Plan, existing: Mapping[str, int], reason: str) -> None:
        """Restart the query with changed topics or partitions, if they fit together."""
        try:
            self._run.continues[0].check_fits(plan, existing, self._grouper)
        except MillstreamError as error:
            self._uneven(error)
        else:
            self._run.query.restart(reason)

    def _uneven(self, error: MillstreamError) -> None:
        """Fail because topics no longer fit together, or ignore their new partitions for now, depending on the settings."""
        if not isinstance(error, CoPartitioningError) or self._settings.on_uneven_partitions == "fail":
            self._run.query.stop_with(error)
        else:
            warn_of_uneven(error)
