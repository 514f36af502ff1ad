"""The preflight check: topics, tasks, internal topics, permissions and the checkpoint of an application, without starting it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from millstream.core.fanout.epochs import control_topic
from millstream.core.model.errors import MillstreamError
from millstream.core.topology.describe import short_lines
from millstream.core.topology.internal import driver_topic
from millstream.core.topology.layout import Layout
from millstream.core.topology.plan import Plan, counted
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress, LocalFiles, local_path
from millstream.edge.application.application import Application
from millstream.edge.application.topology_edits import stores_of_edit
from millstream.edge.checkpoint.checkpoint_health import sound_progress
from millstream.edge.checkpoint.continuity import Continuity, continuity
from millstream.edge.planning.plans import check_split_topics


@dataclass(frozen=True)
class PreflightReport:
    """What a start would find and do, as lines of text.

    Attributes:
        plan: One line per sub-topology: tasks, topics, stores.
        topics: One line per input or output topic, with its partitions.
        checkpoint: What the checkpoint means for the stores.
    """

    plan: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    creates: tuple[str, ...] = ()
    checkpoint: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        for title, lines in vars(self).items():
            if lines:
                yield f"{title}:"
                yield from (f"  {line}" for line in lines)


def preflight(application: Application) -> PreflightReport:
    """Check the broker and the checkpoint of an application as a start does, but change nothing."""
    clients = application._clients
    clients.check()
    broker = clients.broker()
    try:
        existing = broker.partition_counts()
        plan = application._program.matching(application.settings, existing)
        unread = [
            f"topic {name!r} is read, but does not exist" for name in _read(plan) if name not in existing
        ]
        outputs = _outputs(application, plan, existing)
        report = PreflightReport(
            topics=(
                *(_topic_line(name, existing, "read") for name in _read(plan) if name in existing),
                *outputs.lines,
            ),
            permissions=tuple(_permissions(application, plan)),
            problems=(*unread, *outputs.problems),
        )
        return report if unread else _continued(application, plan, existing, report)
    finally:
        clients.disconnect()


def _continued(
    application: Application, plan: Plan, existing: Mapping[str, int], report: PreflightReport
) -> PreflightReport:
    """Return the report with what the start would do, or with the reason why it could not continue from the checkpoint."""
    try:
        check_split_topics(plan, existing)
        location = application.settings.checkpoint(application.id)
        progress = _progress(application, location)
        now = continuity(
            plan,
            progress,
            application._program.renamed_stores,
            exactly_once=application.settings.exactly_once,
        )
        layout = now.laid_out(existing, application._grouper)
    except MillstreamError as error:
        return replace(report, problems=(*report.problems, str(error)))
    return replace(
        report,
        plan=tuple(short_lines(now.plan, layout)),
        creates=tuple(_creates(application, now.plan, layout, existing)),
        checkpoint=tuple(_checkpoint(location, progress, now)),
    )


@dataclass(frozen=True)
class _Outputs:
    """The output topics, as lines, and the problems with those that do not exist."""

    lines: tuple[str, ...]
    problems: tuple[str, ...]


def _outputs(application: Application, plan: Plan, existing: Mapping[str, int]) -> _Outputs:
    needed = dict.fromkeys([*plan.sink_topics, *sorted(application.settings.policies.topics)])
    written = _topics_written(application, plan)
    missing = [name for name in written if name not in existing]
    lines = [_topic_line(name, existing, "written") for name in written if name in existing]
    if not missing or application._clients.creates_topics() is not False:
        return _Outputs(
            (*(f"{name}: does not exist; the broker may create it" for name in missing), *lines), ()
        )
    why = "does not exist, and the brokers do not create topics automatically"
    others = (f"{name}: {why}" for name in missing if name not in needed)  # a start does not wait for them
    return _Outputs(
        (*others, *lines),
        tuple(f"topic {name!r} is written, but {why}" for name in missing if name in needed),
    )


def _read(plan: Plan) -> list[str]:
    topics = [topic for part in plan.global_parts for topic in part.source_topics]
    return [*(topic for topic in plan.broker_topics if topic not in plan.internal_topics), *topics]


def _topics_written(application: Application, plan: Plan) -> list[str]:
    letters = plan.failure_topics | application.settings.policies.topics
    return list(dict.fromkeys([*plan.sink_topics, *sorted(letters)]))


def _topic_line(name: str, existing: Mapping[str, int], verb: str) -> str:
    return f"{name}: {verb}, {counted(existing[name], 'partition')}"


def _progress(application: Application, location: str) -> CheckpointProgress | None:
    """Return the progress of the application's checkpoint; None if there is none, or Spark is needed to read it."""
    path = local_path(location)
    if path is None:
        return None
    exactly_once = application.settings.exactly_once
    return sound_progress(LocalFiles(path), location, application.plan, exactly_once=exactly_once)


def _creates(
    application: Application, plan: Plan, layout: Layout, existing: Mapping[str, int]
) -> Iterator[str]:
    for name in sorted(plan.repartition_topics):
        if name not in existing:
            yield f"{name}: {layout.partitions[name]} partitions"
    tasks = Counter(task.subtopology for task in layout.tasks)
    for sub in plan.subtopologies:
        for store in sub.stores:
            topic = plan.changelogs.get(store)
            if topic is not None and topic not in existing:
                yield f"{topic}: {tasks[sub.id]} partitions, compacted"
    if (application.settings.exactly_once or plan.changelogs) and plan.commits_topic not in existing:
        yield f"{plan.commits_topic}: one partition per Spark partition, compacted"


def _checkpoint(location: str, progress: CheckpointProgress | None, now: Continuity) -> Iterator[str]:
    if local_path(location) is None:
        yield f"{location} is not read, because it is {_location_phrase(location)}; what follows is that of a first start"
        return
    if progress is None:
        yield "none: this is the first start"
        return
    yield f"micro-batch {progress.batch} is {'complete' if progress.committed else 'run again'}"
    kept, begun, dropped = stores_of_edit(now.remembered.stores, now)
    for verb, stores in (("keeps", kept), ("begins", begun), ("drops", dropped)):
        if stores:
            yield f"{verb} {', '.join(sorted(stores))}"


def _location_phrase(location: str) -> str:
    if location.startswith("/"):
        return f"on Spark's default file system: for a local disk, write file://{location}"
    return "not on a local disk"


def _permissions(application: Application, plan: Plan) -> Iterator[str]:
    for topic in _read(plan):
        yield f"Read, Describe on topic {topic}"
    for topic in _topics_written(application, plan):
        yield f"Write, Describe, DescribeConfigs on topic {topic}"
    yield f"Read, Describe on group {application.id}"
    exactly_once = application.settings.exactly_once
    if plan.changelogs or exactly_once:
        yield f"Read on group {plan.commits_topic}"
    if plan.repartition_topics or plan.changelogs or exactly_once:
        yield f"Create, Alter, Read, Write, Describe, DescribeConfigs, Delete on topics with the prefix {application.id}-"
    if exactly_once:
        yield f"Write, Describe on transactional ids with the prefix {application.id}-"
    driver, when = driver_topic(application.id), " (with standby=True)" if exactly_once else ""
    yield f"Create, Read, Describe on topic {driver}{when}"
    yield f"Read, Describe on group {driver}{when}"
    yield from _fan_out_permissions(plan)


def _fan_out_permissions(plan: Plan) -> Iterator[str]:
    for control in map(control_topic, plan.split_topics):
        yield f"Create, Read, Describe on topic {control}"
        yield f"Read, Describe on topics with the prefix {control}-"
    for control in map(control_topic, sorted(plan.fan_out_sinks)):
        yield f"Create, Read, Write, Describe on topic {control}"
        yield f"Write, Describe on topics with the prefix {control}-"
        yield f"Write, Describe on transactional ids with the prefix {control}-"
        yield f"Read on groups with the prefix {control}-"
