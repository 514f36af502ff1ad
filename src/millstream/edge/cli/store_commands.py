"""The command ``millstream store``: queries the stores of an application on this host."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from millstream.edge.cli.command_options import RunningApp, StateDir, reporting_errors
from millstream.edge.cli.terminal_text import value_text
from millstream.edge.records.json_text import json_text

if TYPE_CHECKING:
    from millstream.core.queries.question import Answer


_BELOW_ZERO: Final = re.compile(r"-[\d.][\d.e+-]*", re.IGNORECASE)


class StoreCommand(TyperCommand):
    """A command whose arguments may be numbers below zero, which otherwise look like options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(map(_BELOW_ZERO.fullmatch, args))
        return super().parse_args(ctx, args)


def store(
    application_id: RunningApp,
    name: Annotated[
        str | None, typer.Argument(metavar="STORE", help="The store. Default: list the stores.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Argument(metavar="METHOD", help="The method, such as get, range, fetch or info. Default: all."),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENT...", help="Keys, then times in ms since the epoch."),
    ] = None,
    *,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of entries. Without it, more than 10000 are an error."),
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Print values with their timestamps.")
    ] = False,
    max_lag: Annotated[
        int | None,
        typer.Option(min=0, help="Fail if the store is more than this many records behind its topics."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, with offsets and lag.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Read a store of a running application."""
    from millstream.core.queries.question import Question
    from millstream.edge.queries.remote_application import connect

    with reporting_errors("store"):
        application = connect(application_id, state_dir)
        if name is None:
            _print_stores(dict(application.stores()), as_json=as_json)
            return
        chosen = "all" if method is None else method
        question = Question(name, chosen, tuple(arguments or ()), limit, timestamps, max_lag, text=True)
        answer = application.ask(question)
        if as_json:
            typer.echo(json_text(vars(answer)))
        else:
            for line in _lines(answer.value, described=method == "info"):
                typer.echo(line)
            typer.echo(_position(answer), err=True)


def _print_stores(stores: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(stores))
        return
    for name, kind in stores.items():
        typer.echo(f"{name}  {kind}")


def _lines(value: Any, *, described: bool) -> list[str]:
    """Return an answer as lines, one per entry, or one per fact of a description."""
    if described:
        value = [[name, fact] for name, fact in value.items()]
    if not isinstance(value, list):
        return [value_text(value)]
    return [
        "  ".join(map(value_text, entry)) if isinstance(entry, list) else value_text(entry) for entry in value
    ]


def _position(answer: Answer) -> str:
    """Return the line that states to which state an answer belongs; it is not part of the answer."""
    offsets = [
        f"{topic}/{partition}: {offset}"
        for topic, of_topic in sorted(answer.offsets.items())
        for partition, offset in sorted(of_topic.items())
    ]
    return f"micro-batch {answer.batch}, offsets {', '.join(offsets) or 'none'}, lag {answer.lag}"
