"""The command ``millstream tap``: prints records that reach a node of an application on this host."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.edge.cli.command_options import RunningApp, StateDir, reporting_errors
from millstream.edge.cli.terminal_text import time_text, value_text
from millstream.edge.records.json_text import json_text

if TYPE_CHECKING:
    from millstream.edge.taps.tap_buffers import TapRecord


def tap(
    application_id: RunningApp,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of its topology.")],
    *,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many records. Default: run until Ctrl-C.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per record, with headers.")
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Print samples of the records that reach a node, while the application runs."""
    from millstream.edge.queries.remote_application import connect

    with reporting_errors("tap"), connect(application_id, state_dir).tap(node) as tapped:
        for record in islice(tapped, limit):
            typer.echo(json_text(asdict(record)) if as_json else _line(record))


def _line(record: TapRecord) -> str:
    origin = "-" if record.topic is None else f"{record.topic}-{record.partition}-{record.offset}"
    cut = "  (cut)" if record.cut else ""
    return (
        f"{origin}  {time_text(record.timestamp)}  {value_text(record.key)}  {value_text(record.value)}{cut}"
    )
