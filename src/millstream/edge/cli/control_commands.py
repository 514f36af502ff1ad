"""The commands to an application on this host: ``millstream pause``, ``resume``, ``throttle``, ``parallelism``, ``status`` and others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.core.model.errors import ControlError
from millstream.core.topology.analysis.ranges import AUTO
from millstream.edge.cli.command_options import StateDir, home_of, reporting_errors
from millstream.edge.cli.terminal_text import printable

if TYPE_CHECKING:
    from millstream.edge.status.application_status import RangeStatus, SplitStatus, Status, ThreadStatus
    from millstream.edge.status.async_status import CallStatus, HotKey

Running = Annotated[
    str, typer.Argument(metavar="APPLICATION_ID", help="The application, which runs on this host.")
]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; repeatable.")]
SubTopologies = Annotated[
    list[int] | None,
    typer.Option("--subtopology", help="Only what this sub-topology reads; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as one line of JSON.")]

OFF = "off"

_WAITS_FOR: Mapping[str, str] = {
    "retry": "a retry",
    "delay": "a delay",
    "key": "their key",
    "limit": "max_in_flight",
    "rate": "the rate limit",
    "breaker": "a circuit breaker",
    "time": "their time",
}


def pause(
    application_id: Running,
    topic: Topics = None,
    subtopology: SubTopologies = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the pause across restarts of the application.")
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Stop reading topics in a running application, all of them by default."""
    with reporting_errors("pause"):
        limits = {"topics": topic or None, "subtopologies": subtopology or None, "keep": keep}
        _print_limits(_send(application_id, state_dir, "pause", **limits))


def resume(
    application_id: Running,
    topic: Topics = None,
    subtopology: SubTopologies = None,
    state_dir: StateDir = None,
) -> None:
    """Read topics again in a running application, all of them by default."""
    with reporting_errors("resume"):
        limits = {"topics": topic or None, "subtopologies": subtopology or None}
        _print_limits(_send(application_id, state_dir, "resume", **limits))


def throttle(
    application_id: Running,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    rate: Annotated[str, typer.Argument(metavar="RATE|off", help="Maximum records per second, or off.")],
    state_dir: StateDir = None,
) -> None:
    """Limit how many records per second a running application reads from a topic."""
    with reporting_errors("throttle"):
        number = _whole_number(rate, OFF, "the rate must be a whole number of records per second")
        _print_limits(_send(application_id, state_dir, "throttle", topic=topic, records_per_second=number))


def parallelism(
    application_id: Running,
    workers: Annotated[str, typer.Argument(metavar="WORKERS|auto", help="Workers per partition, or auto.")],
    state_dir: StateDir = None,
) -> None:
    """Process each partition by another number of workers, in a running application."""
    with reporting_errors("parallelism"):
        number = _whole_number(workers, AUTO, "the number of workers must be a whole number")
        _send(application_id, state_dir, "parallelism", workers=AUTO if number is None else number)
        typer.echo(f"workers per partition: {workers}")


def ranges(application_id: Running, as_json: AsJson = False, state_dir: StateDir = None) -> None:
    """Print what the key ranges of a running application are doing."""
    with reporting_errors("ranges"):
        found = _send(application_id, state_dir, "status").ranges
        if as_json:
            typer.echo(json.dumps({task: asdict(each) for task, each in found.items()}))
            return
        if not found:
            typer.echo(f"{application_id} has no key ranges; start it with parallelism=")
        for task, each in found.items():
            typer.echo(_range_line(task, each))


def status(application_id: Running, as_json: AsJson = False, state_dir: StateDir = None) -> None:
    """Print what a running application is doing."""
    with reporting_errors("status"):
        found = _send(application_id, state_dir, "status")
        for line in [json.dumps(asdict(found))] if as_json else status_lines(application_id, found):
            typer.echo(line)


def page(application_id: Running, state_dir: StateDir = None) -> None:
    """Print the address of the page of a running application, with its token."""
    from millstream.edge.web.page_address import address_of

    with reporting_errors("page"):
        _send(application_id, state_dir, "status")  # the file with the address outlives the application
        typer.echo(address_of(home_of(application_id, state_dir), application_id))


def _send(application_id: str, state_dir: Path | None, command: str, **arguments: object) -> Status:
    from millstream.edge.control.control_client import send

    return send(home_of(application_id, state_dir), application_id, command, **arguments)


def status_lines(name: str, status: Status) -> list[str]:
    lag = (f"{topic} {count:,}" for topic, count in status.lag.items())
    return [
        f"{name}: {status.state}",
        f"  micro-batch  {status.batch}",
        f"  tasks        {status.tasks}",
        f"  workers      {status.workers}",
        f"  records/s    {status.records_per_s:,.1f}",
        f"  lag          {', '.join(lag) or 'not known yet'}",
        f"  paused       {_paused(status)}",
        f"  throttled    {_throttled(status)}",
        *(f"  split        {partition}: {_split(split)}" for partition, split in status.splits.items()),
        *(f"  calls        {task}: {_calls(calls)}" for task, calls in status.calls.items()),
        *(f"  threads      {task}: {_threads(threads)}" for task, threads in status.threads.items()),
        *(f"  waiting      task {task} {why}" for task, why in status.waiting.items()),
        *(f"  restoring    {line}" for line in status.restoring),
        *(f"  lacking      {line}" for line in status.lacking),
        *(f"  error        {printable(line)}" for line in (status.error or "").splitlines()),
    ]


def _split(split: SplitStatus) -> str:
    ranges = "one key range" if split.ranges == 1 else f"{split.ranges} key ranges"
    return f"epoch {split.epoch} of {split.newest}, {ranges}, position {split.position:,}, lag {split.lag:,}"


def _range_line(task: str, each: RangeStatus) -> str:
    positions = (
        ", ".join(f"{partition} {offset:,}" for partition, offset in each.positions.items())
        or "nothing read yet"
    )
    return (
        f"task {task}  range {each.number} of {each.of} ({each.first_hash:08x}-{each.end_hash - 1:08x})  at {positions}  "
        f"lag {each.lag:,}  {each.records_per_s:,.0f} records/s  busy {each.busy:.0%}  "
        f"state {each.state_bytes:,} bytes  on {each.placed or 'no executor yet'}"
    )


def _print_limits(status: Status) -> None:
    typer.echo(f"paused: {_paused(status)}\nthrottled: {_throttled(status)}")


def _paused(status: Status) -> str:
    return ", ".join(status.paused) or "nothing"


def _throttled(status: Status) -> str:
    return ", ".join(f"{topic} to {rate:,}/s" for topic, rate in status.throttled.items()) or "nothing"


def _calls(calls: CallStatus) -> str:
    reasons = calls.reasons
    queued = {reason: count for reason, count in reasons.items() if reason not in ("retry", "delay")}
    waiting = {reason: reasons[reason] for reason in ("retry", "delay")}
    parts = [
        f"{calls.running:,} running",
        f"{calls.with_async_worker:,} with the async worker{_reason_counts(queued)}",
        f"{calls.waiting:,} waiting{_reason_counts(waiting)}",
        f"{calls.parked:,} parked",
        f"{calls.held:,} held",
    ]
    if calls.oldest_s is not None:
        parts.append(f"the oldest for {calls.oldest_s:.1f} s")
    return ", ".join([*parts, *(_hot(operator, key) for operator, key in calls.hottest.items())])


def _reason_counts(reasons: Mapping[str, int]) -> str:
    counts = ", ".join(f"{count:,} for {_WAITS_FOR[reason]}" for reason, count in reasons.items() if count)
    return f" ({counts})" if counts else ""


def _hot(operator: str, hot: HotKey) -> str:
    share = f"key {printable(str(hot.key))} has {hot.share:.1%} of {operator}"
    ceiling = hot.ceiling_per_s
    return share if ceiling is None else f"{share}, which allows {ceiling:,.0f}/s"


def _threads(threads: ThreadStatus) -> str:
    each = ", ".join(f"{count:,}" for count in threads.executed)
    ended = f"; {threads.ended:,} were ended by functions" if threads.ended else ""
    return f"{threads.threads} have executed {each} records{ended}"


def _whole_number(text: str, word: str, what: str) -> int | None:
    """Return a whole number; None for the word that may replace it."""
    if text == word:
        return None
    with suppress(ValueError):  # ``int`` refuses thousands of digits
        # ``int`` also accepts spaces, underscores and digits of other scripts.
        if text.isascii() and text.isdigit():
            return int(text)
    raise ControlError(f"{what}, or {word!r}, not {text!r}")
