"""``millstream reset``: lets an application start over at chosen offsets, after printing all effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from millstream.core.model.errors import (
    ApplicationRunningError,
    BrokerUnavailableError,
    MillstreamError,
    SettingsError,
)
from millstream.core.model.topics import checked_name
from millstream.core.runtime.reset import Target, listed_offsets, timestamp_ms, with_fan_outs
from millstream.core.topology.plan import counted
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.election import living_drivers
from millstream.drivers.kafka.process_names import process_of
from millstream.drivers.spark.clock import host_clock
from millstream.drivers.spark.driver.checkpoint import Files, files_of
from millstream.edge.checkpoint.application_reset import (
    ResetPlan,
    ResetRequest,
    execute_reset,
    planned,
)
from millstream.edge.checkpoint.state_lease import Lease
from millstream.edge.cli.spark_sessions import Sessions
from millstream.edge.settings.setting_types import duration_ms
from millstream.edge.settings.settings import Settings


def reset(request: ResetRequest, settings: Settings, *, dry_run: bool, sure: Callable[[], bool]) -> None:
    """Print what a reset will do, ask for confirmation, and execute it.

    Raises:
        ApplicationRunningError: If the application runs on this host, or a driver on another host is seen.
    """
    name = checked_name(request.application_id, "application")
    home, location = settings.home(name), settings.checkpoint(name)
    timeout_s = settings.request_timeout_ms / 1000
    broker = Broker(settings.client("admin", name), name, settings.read_committed, timeout_s)
    with Sessions(name, settings) as sessions:
        lease = Lease.take(home, name, "resetting")
        try:
            _check_drivers(broker, name)
            files = files_of(location, sessions.get)
            plan = planned(request, broker, files, home)
            check_listed(request, plan)
            for line in plan_lines(plan, files, location, host_clock()):
                typer.echo(line)
            if dry_run:
                typer.echo("Nothing was changed (--dry-run).")
            elif sure():
                execute_reset(plan, broker, files)
                typer.echo(f"Done. The next start of {name!r} begins at these offsets.")
            else:
                typer.echo("Nothing was changed.")
        finally:
            lease.release()


def check_listed(request: ResetRequest, plan: ResetPlan) -> None:
    """Check that a file of offsets lists only partitions that the reset moves. An export of the group also has its internal topics.

    Raises:
        SettingsError: If it lists another one, whose offset would have no effect.
    """
    inputs = with_fan_outs(request.input_topics, (move.topic for move in plan.moves))
    moved = {(move.topic, move.partition) for move in plan.moves if not inputs or move.topic in inputs}
    listed = ((topic, number) for topic, numbers in request.target.listed.items() for number in numbers)
    internal = {*plan.internal, *plan.kept_internal}
    others = [
        f"{topic}/{number}"
        for topic, number in listed
        if (topic, number) not in moved and topic not in internal
    ]
    if others:
        raise SettingsError(
            f"--from-file lists {', '.join(others)}, which this reset does not move: such a partition does not exist, or the application "
            "does not read the topic. Correct the file, or name the topic with --input-topic"
        )


def _check_drivers(broker: Broker, name: str) -> None:
    """Refuse a reset while a driver runs anywhere. Without permission to see the group, print that."""
    try:
        drivers = living_drivers(broker, name)
    except BrokerUnavailableError:
        raise
    except MillstreamError as error:
        typer.echo(f"Whether the application runs on another host cannot be seen: {error.message}")
        return
    if drivers:
        raise ApplicationRunningError(
            f"application {name!r} is running: {process_of(drivers[0])} is its driver. Nothing was changed. Stop it first; if it was killed, "
            "Kafka notices within 6 seconds"
        )


def plan_lines(plan: ResetPlan, files: Files, location: str, now_ms: int) -> Iterator[str]:
    yield f"Reset of application {plan.application_id!r}"
    yield ""
    yield "Start position in each partition (- means unknown):"
    width = max(len(move.topic) for move in plan.moves)
    yield f"  {'topic':<{width}}  partition  processed up to  begins at"
    for move in plan.moves:
        before = "-" if move.before is None else move.before
        note = f"  ({move.note})" if move.note else ""
        yield f"  {move.topic:<{width}}  {move.partition:>9}  {before:>15}  {move.after:>9}{note}"
    if plan.damage:
        yield f"The checkpoint is damaged ({plan.damage}), so the positions are the group's committed offsets."
    yield ""
    yield "To be deleted:"
    if files.exists():
        stores = f"; the stores {', '.join(plan.stores)} will be empty" if plan.stores else ""
        yield f"  checkpoint      {location}{stores}"
    if plan.local_copies is not None:
        yield f"  local copies    {plan.local_copies}"
    for topic, count in plan.internal.items():
        yield f"  internal topic  {topic} ({counted(count, 'partition')})"
    if not (files.exists() or plan.local_copies or plan.internal):
        yield "  nothing"
    for topic, group in plan.others.items():
        yield f"Not deleted: {topic}, which seems to belong to the group {group!r}."
    yield ""
    yield "The application is not running on this host. Another host would be seen only under at_least_once, or with standby=True."
    if plan.progress is not None and "now_ms" in plan.progress.planned:
        ago = (now_ms - plan.progress.planned["now_ms"]) / 1000
        yield f"The last micro-batch was planned {ago:,.0f} s ago."


def target_of(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
    from_file: Path | None,
) -> Target:
    """Return the start position from the options; without options, the beginning.

    Raises:
        SettingsError: If more than one option is given, or one cannot be parsed.
    """
    readings: dict[str, tuple[bool, Callable[[], Target]]] = {
        "--to-earliest": (to_earliest, Target),
        "--to-latest": (to_latest, lambda: Target("latest")),
        "--to-offset": (to_offset is not None, lambda: Target("offset", to_offset or 0)),
        "--to-datetime": (to_datetime is not None, lambda: _target_at(timestamp_ms(to_datetime or ""))),
        "--by-duration": (
            by_duration is not None,
            lambda: _target_at(host_clock() - _age_ms(by_duration or "")),
        ),
        "--shift-by": (shift_by is not None, lambda: Target("shift", shift_by or 0)),
        "--from-file": (from_file is not None, lambda: Target("listed", listed=_read(from_file or Path()))),
    }
    given = [option for option, (is_given, _) in readings.items() if is_given]
    if len(given) > 1:
        raise SettingsError(f"{' and '.join(given)} exclude each other: choose one start position")
    return readings[given[0]][1]() if given else Target()


def _age_ms(text: str) -> int:
    try:
        age = duration_ms(text)
    except ValueError:
        age = None
    if not isinstance(age, int) or age < 0:
        raise SettingsError(f"{text!r} is not a duration: write ISO 8601, such as PT30M, PT12H or P7D")
    return age


def _target_at(time_ms: int) -> Target:
    """Return the start at a time. To Kafka, a time before 1970 is an error or means the end; no record is that old."""
    return Target("time", max(0, time_ms))


def _read(file: Path) -> dict[str, dict[int, int]]:
    """Read offsets by topic and partition.

    Raises:
        SettingsError: If the file cannot be read, lists nothing, or lists a partition twice or with a negative offset.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SettingsError(f"{str(file)!r} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{str(file)!r} cannot be read: {error}") from None
    try:
        listed = listed_offsets(lines)
    except SettingsError as error:
        raise SettingsError(f"{str(file)!r}: {error.message}") from None
    offsets = [offset for partitions in listed.values() for offset in partitions.values()]
    if not offsets:
        raise SettingsError(f"{str(file)!r} lists no offsets; write lines of topic,partition,offset")
    if len(offsets) < sum(1 for line in lines if line):
        raise SettingsError(f"{str(file)!r} lists a partition twice")
    if min(offsets) < 0:
        raise SettingsError(f"{str(file)!r} lists the offset {min(offsets)}; offsets begin at 0")
    return listed
