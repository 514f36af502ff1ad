"""The commands ``millstream record`` and ``millstream replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.edge.cli.command_options import Servers, TopologyTarget, reporting_errors, settings_of


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
