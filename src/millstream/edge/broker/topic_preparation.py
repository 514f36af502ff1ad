"""Prepares the topics of an application before it starts: creates or checks internal topics; all others must exist."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka.admin import ConfigResource

from millstream.core.model.errors import (
    BrokerUnavailableError,
    IncompatibleTopologyError,
    MillstreamError,
    SettingsError,
    TopicNotFoundError,
)
from millstream.core.topology.internal import (
    COMMITS_CONFIG,
    REPARTITION_CONFIG,
    changelog_config,
    repartition_config,
    wrong_config,
)
from millstream.core.topology.layout import Layout, missing_topics
from millstream.core.topology.plan import Plan
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.internal_topics import InternalTopics

_WAIT_S = 3.0
_POLL_S = 0.05
_OF_BROKERS: Final = "auto.create.topics.enable"
_OF_CLIENTS: Final = "allow.auto.create.topics"


@dataclass(frozen=True)
class TopicPreparation:
    """Prepares the topics of an application.

    Attributes:
        replication_factor: Replicas of internal topics; -1 for the broker's default.
    """

    broker: Broker
    replication_factor: int
    given: Mapping[str, str] = field(default_factory=dict)

    def _check_configs(self, plan: Plan, existing: Mapping[str, int]) -> None:
        """Check that the configuration of existing internal topics does not make results wrong.

        Raises:
            SettingsError: If the broker overwrites timestamps, or compacts or deletes records that are needed.
        """
        wanted = {name: dict(REPARTITION_CONFIG) for name in sorted(plan.repartition_topics)}
        for sub in plan.subtopologies:
            for store in sub.stores.values():
                if store.name in plan.changelogs:
                    wanted[plan.changelogs[store.name]] = changelog_config(store)
        present = [topic for topic in wanted if topic in existing]
        for topic, found in InternalTopics(self.broker).topic_configs(present).items():
            why = "event times, or records with equal keys, are lost"
            again = f". Lost records cannot be restored: `millstream reset {plan.application_id}` starts over"
            _check_config(topic, wanted[topic], found, why, again)

    def check_commits(self, topic: str, existing: Mapping[str, int]) -> None:
        """Check that an existing commits topic keeps the latest value of each key.

        Raises:
            SettingsError: If its records expire.
        """
        present = [topic] if topic in existing else []
        for name, found in InternalTopics(self.broker).topic_configs(present).items():
            why = "marks of delivered micro-batches and snapshots of tasks are lost after some time"
            _check_config(name, COMMITS_CONFIG, found, why)

    def prepare_repartitions(self, plan: Plan, layout: Layout, existing: Mapping[str, int]) -> None:
        """Create missing repartition topics, and check existing ones and the configuration of all internal topics.

        Raises:
            SettingsError: If a repartition topic has the wrong partition count, or an internal topic, changelogs included, has a
                wrong configuration.
        """
        self._check_configs(plan, existing)
        for topic in plan.internal_topics.values():
            if topic.through_shuffle:
                continue
            wanted = layout.partitions[topic.name]
            if topic.name not in existing:
                self.broker.create_topic(
                    topic.name, wanted, repartition_config(self.given), self.replication_factor
                )
            elif existing[topic.name] != wanted:
                raise _partition_count_error(topic.name, existing[topic.name], wanted)

    def prepare_changelogs(self, plan: Plan, layout: Layout, existing: Mapping[str, int]) -> list[str]:
        """Create missing changelog topics, and add missing partitions; return the stores whose topics have no records.

        Such a topic is new. It may exist already, if an earlier start has created it and was killed before its first micro-batch.

        Raises:
            SettingsError: If a changelog topic has more partitions than there are tasks.
        """
        tasks = Counter(task.subtopology for task in layout.tasks)
        filled, empty = self._filled_changelogs(plan, existing), []
        for sub in plan.subtopologies:
            for store in sub.stores.values():
                topic, wanted = plan.changelogs.get(store.name), tasks[sub.id]
                if topic is None:
                    continue
                current = existing.get(topic, 0)
                if current > wanted:
                    raise _partition_count_error(topic, current, wanted)
                if current < wanted:
                    config = changelog_config(store, self.given)
                    self.broker.ensure_topic(topic, wanted, config, self.replication_factor)
                if topic not in filled:
                    empty.append(store.name)
        return empty

    def _filled_changelogs(self, plan: Plan, existing: Mapping[str, int]) -> set[str]:
        topics = _changelogs(plan, existing)
        begin, end = self.broker.begin_offsets(topics), self.broker.end_offsets(topics)
        return {topic for topic in topics if begin[topic] != end[topic]}

    def await_sinks(self, topics: list[str]) -> dict[str, int]:
        """Wait for the output topics, which a broker with auto.create.topics.enable creates; return their partition counts."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            found = {topic: count for topic, count in self.broker.writable_topics(topics).items() if count}
            missing = [topic for topic in topics if topic not in found]
            if not missing:
                return found
            if time.monotonic() > deadline:
                raise TopicNotFoundError(
                    "the topology writes to topics that do not exist on the broker, which does not create them "
                    f"automatically: {', '.join(map(repr, missing))}. Create them, for example with kafka-topics --create "
                    f"--topic {missing[0]} --partitions 4"
                )
            time.sleep(_POLL_S)  # no event announces a topic

    def can_rebuild(self, plan: Plan, existing: Mapping[str, int]) -> bool:
        """Return whether an application without a checkpoint can continue from changelog topics and committed offsets.

        Raises:
            IncompatibleTopologyError: If the topics contain state that cannot be continued.
        """
        topics = _changelogs(plan, existing)
        ends = self.broker.end_offsets(topics)
        if not any(end for partitions in ends.values() for end in partitions.values()):
            return False
        unpublished = [store for store in plan.store_fingerprints() if store not in plan.changelogs]
        read = {topic: existing[topic] for topic in plan.broker_topics if topic in existing}
        if unpublished:
            why = f"the stores {', '.join(unpublished)} have no changelog topic (changelog='kafka')"
        elif not self.broker.committed_offsets(read):
            why = "the group has no committed offsets, so it is not known which records the stores contain"
        else:
            return True
        if ends == self.broker.begin_offsets(topics):  # the records of windows that have expired are deleted
            return False
        raise IncompatibleTopologyError(
            f"there is no checkpoint, and the state in the changelog topics {', '.join(topics)} cannot be continued: {why}. "
            f"Restore the checkpoint, or start over with `millstream reset {plan.application_id} --to-earliest`, which "
            "deletes these topics"
        )


def _check_config(
    topic: str, wanted: Mapping[str, str], found: Mapping[str, str], why: str, again: str = ""
) -> None:
    wrong = wrong_config(wanted, found)
    if wrong:
        now = ", ".join(f"{name}={found[name]}" for name in wrong)
        right = ",".join(f"{name}=[{value}]" for name, value in wrong.items())
        raise SettingsError(
            f"the internal topic {topic!r} has {now}, so {why}. Configure it with kafka-configs --alter --entity-type topics "
            f"--entity-name {topic} --add-config {right}{again}"
        )


def _changelogs(plan: Plan, existing: Mapping[str, int]) -> dict[str, int]:
    """Return the partition counts of the changelog topics that exist."""
    return {topic: existing[topic] for topic in plan.changelogs.values() if topic in existing}


def _partition_count_error(topic: str, partitions: int, wanted: int) -> SettingsError:
    return SettingsError(
        f"the internal topic {topic!r} has {partitions} partitions, but {wanted} are needed. It belongs to an earlier version of "
        "this application: use another application id, or delete the topic together with the application's checkpoint"
    )


def global_partitions(plan: Plan, existing: Mapping[str, int]) -> dict[str, int]:
    """Return the partition counts of the topics of global stores."""
    missing = [topic for topic in plan.global_part_of if topic not in existing]
    if missing:
        raise missing_topics(missing)
    return {topic: existing[topic] for topic in plan.global_part_of}


def creates_topics(broker: Broker) -> bool | None:
    """Return whether the brokers create a missing topic when a producer asks for it, without creating any; None if this user may not see that.

    Raises:
        BrokerUnavailableError: If no broker answers in time.
    """
    if str(broker.settings.get(_OF_CLIENTS, True)).lower() == "false":
        return False
    try:
        found = broker.ask(f"reading {_OF_BROKERS} of the brokers", lambda: _configured(broker))
    except BrokerUnavailableError:
        raise
    except MillstreamError:
        return None
    return True if "true" in found else False if found == {"false"} else None


def _configured(broker: Broker) -> set[str | None]:
    """Return the configurations of all brokers. A request can name only one of them."""
    admin = broker.admin()
    found = set()
    for number in admin.list_topics(timeout=broker.timeout_s).brokers:
        wanted = ConfigResource(ConfigResource.Type.BROKER, str(number))
        (future,) = admin.describe_configs([wanted], request_timeout=broker.timeout_s).values()
        entry = future.result().get(_OF_BROKERS)
        found.add(None if entry is None else entry.value)
    return found
