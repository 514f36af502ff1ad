"""Commands to an application on this host: ``millstream pause``, ``resume``, ``throttle``, ``parallelism``, ``status`` and others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import typer

from millstream.core.model.errors import ControlError
from millstream.core.model.topics import checked_name
from millstream.core.topology.analysis.ranges import AUTO
from millstream.edge.cli.terminal_text import printable
from millstream.edge.control.control_client import send
from millstream.edge.settings.settings import Settings
from millstream.edge.status.application_status import RangeStatus, Status, ThreadStatus
from millstream.edge.status.async_status import CallStatus, HotKey

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


class ControlCommands:
    """Sends commands to a running application, and prints the result. All methods may raise ``ControlError``."""

    def __init__(self, application_id: str, settings: Settings) -> None:
        self._name = checked_name(application_id, "application")
        self._home = settings.home(self._name)

    def pause(self, topics: Sequence[str] | None, subtopologies: Sequence[int] | None, *, keep: bool) -> None:
        """Pause topics and sub-topologies; pause everything if both are empty."""
        _print_limits(
            self._send("pause", topics=topics or None, subtopologies=subtopologies or None, keep=keep)
        )

    def resume(self, topics: Sequence[str] | None, subtopologies: Sequence[int] | None) -> None:
        """Resume topics and sub-topologies; resume everything if both are empty."""
        _print_limits(self._send("resume", topics=topics or None, subtopologies=subtopologies or None))

    def throttle(self, topic: str, rate: str) -> None:
        """Limit a topic to a rate: a number of records per second, or ``off``."""
        _print_limits(self._send("throttle", topic=topic, records_per_second=_rate(rate)))

    def parallelism(self, workers: str) -> None:
        self._send("parallelism", workers=_workers(workers))
        typer.echo(f"workers per partition: {workers}")

    def ranges(self, *, as_json: bool) -> None:
        ranges = self._send("status").ranges
        if as_json:
            typer.echo(json.dumps({task: asdict(each) for task, each in ranges.items()}))
        elif not ranges:
            typer.echo(f"{self._name} has no key ranges; start it with parallelism=")
        for task, each in () if as_json else ranges.items():
            typer.echo(_range_line(task, each))

    def status(self, *, as_json: bool) -> None:
        status = self._send("status")
        if as_json:
            typer.echo(json.dumps(asdict(status)))
        else:
            for line in status_lines(self._name, status):
                typer.echo(line)

    def page(self) -> None:
        from millstream.edge.web.page import address_of

        self._send("status")  # the file with the address outlives the application
        typer.echo(address_of(self._home, self._name))

    def _send(self, command: str, **arguments: Any) -> Status:
        return send(self._home, self._name, command, **arguments)


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
        *(f"  calls        {task}: {_calls(calls)}" for task, calls in status.calls.items()),
        *(f"  threads      {task}: {_threads(threads)}" for task, threads in status.threads.items()),
        *(f"  waiting      task {task} {why}" for task, why in status.waiting.items()),
        *(f"  restoring    {line}" for line in status.restoring),
        *(f"  lacking      {line}" for line in status.lacking),
        *(f"  error        {printable(line)}" for line in (status.error or "").splitlines()),
    ]


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
        f"{calls.with_async_worker:,} with the async worker{_why(queued)}",
        f"{calls.waiting:,} waiting{_why(waiting)}",
        f"{calls.parked:,} parked",
        f"{calls.held:,} held",
    ]
    if calls.oldest_s is not None:
        parts.append(f"the oldest for {calls.oldest_s:.1f} s")
    return ", ".join([*parts, *(_hot(operator, key) for operator, key in calls.hottest.items())])


def _why(reasons: Mapping[str, int]) -> str:
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


def _workers(text: str) -> int | str:
    if text == AUTO:
        return text
    try:
        return _whole(text)
    except ValueError:
        raise ControlError(
            f"the number of workers must be a whole number, or {AUTO!r}, not {text!r}"
        ) from None


def _whole(text: str) -> int:
    """Return a number of ASCII digits; ``int`` also accepts spaces, underscores and digits of other scripts.

    Raises:
        ValueError: If the text is another one.
    """
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _rate(text: str) -> int | None:
    if text == OFF:
        return None
    try:
        return _whole(text)
    except ValueError:
        raise ControlError(
            f"the rate must be a whole number of records per second, or {OFF!r}, not {text!r}"
        ) from None
