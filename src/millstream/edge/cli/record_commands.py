"""The commands ``millstream peek``, ``send``, ``tap``, ``record`` and ``replay``, which show, write and keep records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millstream.core.model.errors import SettingsError
from millstream.edge.cli.command_options import (
    RunningApp,
    Servers,
    StateDir,
    TopologyTarget,
    reporting_errors,
    settings_of,
)
from millstream.edge.cli.terminal_text import time_text, value_text
from millstream.edge.records.json_text import json_text

if TYPE_CHECKING:
    from millstream.edge.records.text_records import PeekedRecord
    from millstream.edge.taps.tap_buffers import TapRecord

_LAST: Final = 10
"""How many records of each partition are read without an option."""

KeyFormat = Annotated[
    str,
    typer.Option(
        "--key-format", help="Format of the keys: auto, or the name of a serde, such as int64 or json."
    ),
]
ValueFormat = Annotated[
    str, typer.Option("--value-format", help="Format of the values: auto, or the name of a serde.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per record, with headers.")]


def peek(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    *,
    last: Annotated[
        int | None,
        typer.Option(min=1, help="Read this many of the last records of each partition. Default: 10."),
    ] = None,
    beginning: Annotated[
        bool, typer.Option("--beginning", help="Read all records, from the first one.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for further records, until Ctrl-C.")] = False,
    key_format: KeyFormat = "auto",
    value_format: ValueFormat = "auto",
    as_json: AsJson = False,
    bootstrap_servers: Servers = None,
) -> None:
    """Print records of a topic; reading commits nothing."""
    from millstream.edge.records.text_records import PeekOptions, peeked

    with reporting_errors("peek"):
        if beginning and last is not None:
            raise SettingsError("--beginning and --last exclude each other")
        count = None if beginning else last or _LAST
        wanted = PeekOptions(topic, count, follow, key_format, value_format)
        for row in peeked(wanted, settings_of(bootstrap_servers=bootstrap_servers)):
            typer.echo(json_text(row._asdict()) if as_json else _line(row))


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="The values. Default: the lines of standard input."),
    ] = None,
    *,
    key: Annotated[str | None, typer.Option(help="The key of all values. Default: null.")] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            help="Text between key and value in each value or line; one without it has the key of --key."
        ),
    ] = None,
    key_format: KeyFormat = "auto",
    value_format: ValueFormat = "auto",
    bootstrap_servers: Servers = None,
) -> None:
    """Write records to a topic; keys go to the partitions where Java producers put them."""
    from millstream.edge.records.text_records import send_text

    with reporting_errors("send"):
        if separator == "":
            raise SettingsError("--separator is empty; leave it out to send values without keys")
        given = values if values else _lines()
        settings = settings_of(bootstrap_servers=bootstrap_servers)
        count = send_text(topic, _records(iter(given), key, separator), (key_format, value_format), settings)
        typer.echo(f"{count:,} written to {topic}")


def _lines() -> Iterator[str]:
    """Yield the lines of standard input."""
    try:
        for line in sys.stdin:
            yield line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"standard input is not {sys.stdin.encoding}: {error}; the records before it were sent. Correct it, then send it and those after it"
        ) from None


def _records(
    values: Iterator[str], key: str | None, separator: str | None
) -> Iterator[tuple[str | None, str | None]]:
    for value in values:
        own, found, rest = value.partition(separator) if separator else ("", "", "")
        yield (own, rest) if found else (key, value)


def _line(row: PeekedRecord) -> str:
    origin = f"{row.partition}-{row.offset}"
    return f"{origin}  {time_text(row.timestamp)}  {value_text(row.key)}  {value_text(row.value)}"


def tap(
    application_id: RunningApp,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of its topology.")],
    *,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many records. Default: run until Ctrl-C.")
    ] = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
) -> None:
    """Print samples of the records that reach a node, while the application runs."""
    from millstream.edge.queries.remote_application import connect

    with reporting_errors("tap"), connect(application_id, state_dir).tap(node) as tapped:
        for record in islice(tapped, limit):
            typer.echo(json_text(asdict(record)) if as_json else _tapped_line(record))


def _tapped_line(record: TapRecord) -> str:
    origin = "-" if record.topic is None else f"{record.topic}-{record.partition}-{record.offset}"
    cut = "  (cut)" if record.cut else ""
    return (
        f"{origin}  {time_text(record.timestamp)}  {value_text(record.key)}  {value_text(record.value)}{cut}"
    )


def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")],
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics.")],
    *,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this partition; repeatable.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="ISO",
            help="From the first record with this time or a later one, such as 2026-01-31T18:00:00; without a zone, UTC.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="ISO", help="Up to the first record with this time or a later one.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only this many of the last records of each partition.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of records; the earliest are kept.")
    ] = None,
    bootstrap_servers: Servers = None,
) -> None:
    """Write a slice of topics to a file, to replay it in a test; reading commits nothing."""
    from millstream.core.runtime.reset import timestamp_ms
    from millstream.edge.records.recording import RecordedRange
    from millstream.edge.records.recording import record as write

    with reporting_errors("record"):
        since_ms, until_ms = (None if text is None else max(0, timestamp_ms(text)) for text in (since, until))
        wanted = RecordedRange(
            tuple(dict.fromkeys(topics)), frozenset(partition or ()), since_ms, until_ms, last
        )
        counts = write(wanted, file, settings_of(bootstrap_servers=bootstrap_servers), limit=limit)
        for topic, count in counts.items():
            typer.echo(f"{count:,} of {topic}")


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that millstream record has written.")],
    target: TopologyTarget,
) -> None:
    """Process a slice with a topology in this process, and print what it sends as tables of a test; no broker is needed."""
    from millstream.edge.cli.program_targets import topology_of
    from millstream.edge.records.recording import replayed

    with reporting_errors("replay"):
        for line in replayed(file, topology_of(target)):
            typer.echo(line)
