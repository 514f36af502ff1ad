"""``penstock pause``, ``resume``, ``throttle`` and ``status``: orders to an application that runs on this host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from penstock.core.model.errors import ControlError
from penstock.core.plan.stores import checked_name
from penstock.edge.contact import send
from penstock.edge.settings import Settings

OFF = "off"


class Steering:
    """Gives orders to a running application, and prints what holds then. All may raise ``ControlError``.

    Args:
        application_id: The application.
        settings: Where its state directory is.
    """

    def __init__(self, application_id: str, settings: Settings) -> None:
        self._name = checked_name(application_id, "application")
        self._home = settings.home(self._name)

    def pause(self, topics: Sequence[str] | None, subtopologies: Sequence[int] | None, *, keep: bool) -> None:
        """Pause topics and sub-topologies; without either, everything."""
        _print_orders(
            self._send("pause", topics=topics or None, subtopologies=subtopologies or None, keep=keep)
        )

    def resume(self, topics: Sequence[str] | None, subtopologies: Sequence[int] | None) -> None:
        """Resume topics and sub-topologies; without either, everything."""
        _print_orders(self._send("resume", topics=topics or None, subtopologies=subtopologies or None))

    def throttle(self, topic: str, rate: str) -> None:
        """Limit a topic to a rate, which is a number of records per second or ``off``."""
        _print_orders(self._send("throttle", topic=topic, records_per_second=_rate(rate)))

    def status(self, *, as_json: bool) -> None:
        """Print what the application is doing."""
        status = self._send("status")
        if as_json:
            typer.echo(json.dumps(status))
        else:
            for line in told(self._name, status):
                typer.echo(line)

    def _send(self, order: str, **data: Any) -> dict[str, Any]:
        return send(self._home, self._name, order, **data)


def told(name: str, status: Mapping[str, Any]) -> list[str]:
    """Give the status of an application in lines for people.

    Args:
        name: The application.
        status: Its status, as plain data.
    """
    lag = (f"{topic} {count:,}" for topic, count in status["lag"].items())
    return [
        f"{name}: {status['state']}",
        f"  micro-batch  {status['batch']}",
        f"  tasks        {status['tasks']}",
        f"  records/s    {status['records_per_s']:,.1f}",
        f"  lag          {', '.join(lag) or 'not known yet'}",
        f"  paused       {_paused(status)}",
        f"  throttled    {_throttled(status)}",
        *(f"  calls        {task}: {_calls(calls)}" for task, calls in status["calls"].items()),
        *(f"  restoring    {line}" for line in status["restoring"]),
        *(f"  error        {line}" for line in (status["error"] or "").splitlines()),
    ]


def _print_orders(status: Mapping[str, Any]) -> None:
    typer.echo(f"paused: {_paused(status)}\nthrottled: {_throttled(status)}")


def _paused(status: Mapping[str, Any]) -> str:
    return ", ".join(status["paused"]) or "nothing"


def _throttled(status: Mapping[str, Any]) -> str:
    return ", ".join(f"{topic} to {rate:,}/s" for topic, rate in status["throttled"].items()) or "nothing"


def _calls(calls: Mapping[str, Any]) -> str:
    unfinished = f"{calls['running']:,} running, {calls['with_station']:,} with the station, {calls['waiting']:,} waiting, "
    unfinished += f"{calls['parked']:,} parked, {calls['held']:,} held"
    return (
        unfinished if calls["oldest_s"] is None else f"{unfinished}, the oldest for {calls['oldest_s']:.1f} s"
    )


def _rate(text: str) -> int | None:
    if text == OFF:
        return None
    try:
        return int(text)
    except ValueError:
        raise ControlError(
            f"the rate is a whole number of records per second, or {OFF!r}, not {text!r}"
        ) from None
