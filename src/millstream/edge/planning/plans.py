"""Plans of an application: its topology, divided according to its settings."""

from __future__ import annotations

from collections.abc import Collection

from millstream.core.fanout.epochs import primary_of
from millstream.core.model.errors import SettingsError, TopologyError
from millstream.core.topology.analysis.ranges import divided_plan, is_automatic, workers_of
from millstream.core.topology.plan import Plan
from millstream.core.topology.topology import Topology
from millstream.edge.settings.settings import Settings


def planned(
    topology: Topology, application_id: str, settings: Settings, existing: Collection[str] = ()
) -> Plan:
    """Divide a topology into sub-topologies and key ranges, according to the settings.

    Under exactly once with changelog topics, each task must commit its input and its changes in one transaction, so that it can be rebuilt
    without a checkpoint. Spark's shuffle is not used in this case, because it would move records between the transactions of tasks.

    Raises:
        TopologyError: If the topology is not valid, or has only global stores and thus no task.
    """
    plan = topology.plan(application_id, existing=existing)
    if settings.exactly_once and plan.changelogs:
        plan = topology.plan(application_id, through_shuffle=False, existing=existing)
    if not plan.subtopologies:
        raise TopologyError(
            "the topology has only global stores, so an application would have no task that reads them. Add a "
            "stream or a table; a test driver runs the topology as it is"
        )
    plan = divided_plan(plan, settings.parallelism)
    if settings.exactly_once:
        check_positions_of_ranges(plan)
    return plan


def check_positions_of_ranges(plan: Plan) -> None:
    """Check, for exactly once, that each key range publishes its position with its results if any task has changelog topics.

    A range without changelog topics publishes nothing.

    Raises:
        SettingsError: If ranges do not publish their positions.
    """
    for sub in plan.subtopologies:
        if plan.changelogs and sub.ranges > 1 and not sub.changelogs:
            raise SettingsError(
                f"sub-topology {sub.id}, which reads {', '.join(map(repr, sub.source_topics))}, has no store with a changelog topic, but "
                "others have. Its key ranges cannot publish their positions with their results under exactly_once, so a start "
                "without the checkpoint would process records again. Leave its topics out of parallelism=, give its "
                "stores changelog='kafka', or leave out changelog='kafka' everywhere"
            )


def pattern_changes(before: Plan, now: Plan) -> str:
    """Describe the changes of the topics that match patterns."""
    appeared = now.chosen_topics - before.chosen_topics
    gone = before.chosen_topics - now.chosen_topics
    parts = [f"new: {', '.join(sorted(appeared))}"] if appeared else []
    if gone:
        parts.append(f"gone: {', '.join(sorted(gone))}")
    return f"the topics that match have changed ({'; '.join(parts)})"


def check_rates(plan: Plan, settings: Settings) -> None:
    """Refuse rates for topics that are not read, because a misspelt name would go unnoticed."""
    unknown = sorted(settings.max_records_per_second.keys() - set(plan.broker_topics))
    if unknown and not plan.has_patterns:
        raise SettingsError(
            f"max_records_per_second names {', '.join(map(repr, unknown))}, which application {plan.application_id!r} does not "
            f"read from the broker; it reads {', '.join(map(repr, sorted(plan.broker_topics))) or 'nothing'}"
        )


def check_fan_out(plan: Plan, settings: Settings) -> None:
    """Refuse settings that do not fit topics with fan-out, because their producers write in transactions of their own.

    Raises:
        SettingsError: If open transactions would be read, or records would be sent exactly once.
    """
    if plan.split_topics and not settings.read_committed:
        raise SettingsError(
            f"topic {plan.split_topics[0]!r} is read with fan_out=True, and its producers write in transactions. Set "
            "isolation_level='read_committed', or processing_guarantee='exactly_once'"
        )
    if plan.fan_out_sinks and settings.exactly_once:
        raise SettingsError(
            f"topic {min(plan.fan_out_sinks)!r} is written with fan_out=True, which works only under "
            "processing_guarantee='at_least_once': whoever splits a partition must be able to abort the transactions of its producers"
        )


def check_split_topics(plan: Plan, existing: Collection[str]) -> None:
    """Refuse to read and write topics with split partitions like others: records would be missing, or readers would not find them.

    Raises:
        TopologyError: If a source or a sink without ``fan_out`` uses such a topic.
    """
    for fan_out, split in sorted(
        (topic, split) for topic in existing if (split := primary_of(topic)) is not None
    ):
        topic = split.topic
        why = (
            f"records of partition {split} may be in topic {fan_out!r}, because the partition has been split"
        )
        if topic in plan.global_part_of:
            raise TopologyError(
                f"{why}. A global table would not read them. Merge the partition, and delete {fan_out!r} when all readers have read it"
            )
        if topic in plan.external_topics and topic not in plan.split_topics:
            raise TopologyError(
                f"{why}. This application would not read them. Read topic {topic!r} with fan_out=True"
            )
        if topic in plan.plain_sinks:
            raise TopologyError(
                f"{why}. Readers would not find what this application sends to the partition. Write topic {topic!r} with fan_out=True"
            )


def spark_partitions(settings: Settings) -> int | None:
    """Return the wanted number of shuffle partitions; None if the cores determine it.

    Without a setting, it is at least the number of workers per partition. If the number of workers is automatic, the launch sets it.
    """
    workers = workers_of(settings.parallelism)
    if settings.shuffle_partitions is not None or workers == 1 or is_automatic(settings.parallelism):
        return settings.shuffle_partitions
    return int(1 << (workers - 1).bit_length())
