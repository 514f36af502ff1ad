"""The commands of ``millstream`` and their options; the modules beside this one implement the commands.

A command imports what it needs when it runs. This keeps the help fast, and lets the doctor examine an installation in which Spark or a
Kafka client is missing or broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer
from dotenv import load_dotenv

from millstream.core.topology import describe as descriptions
from millstream.core.topology import drawing
from millstream.core.topology.plan import Plan
from millstream.edge.cli.command_options import (
    DryRun,
    Servers,
    StateDir,
    TopologyTarget,
    Yes,
    reporting_errors,
    settings_of,
    settings_without_broker,
    spark_master,
)
from millstream.edge.cli.control_commands import page, parallelism, pause, ranges, resume, status, throttle
from millstream.edge.cli.dlq.dead_letter_commands import letters
from millstream.edge.cli.fanout_commands import fanout
from millstream.edge.cli.program_targets import plan_of
from millstream.edge.cli.record_commands import peek, record, replay, send, tap
from millstream.edge.cli.run_commands import plan, run, shell
from millstream.edge.cli.store_commands import StoreCommand, store
from millstream.edge.cli.top import top

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Millstream: a processor client for Apache Kafka whose pipelines run on Apache Spark.",
)
app.add_typer(letters, name="dlq")
app.add_typer(fanout, name="fanout")
app.command()(record)
app.command()(replay)
app.command(cls=StoreCommand)(store)
for _command in (run, plan, peek, send, top, tap, shell):
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millstream {version('millstream')}")
        raise typer.Exit


@app.callback()
def _common(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    env_file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A file of environment variables, such as .env."),
    ] = None,
) -> None:
    if env_file is None:
        return
    try:
        load_dotenv(env_file)
    except (OSError, ValueError) as error:  # it may not be text, or contain a null character
        raise typer.BadParameter(
            f"{str(env_file)!r} cannot be read: {error}", param_hint="--env-file"
        ) from None


@app.command()
def demo(
    lines: Annotated[int, typer.Option(min=1, help="How many lines of text to stream.")] = 25_000,
    keep: Annotated[
        bool, typer.Option(help="Leave everything running at the end, until Enter or Ctrl-C.")
    ] = False,
    master: Annotated[str, typer.Option(callback=spark_master, help="Spark master.")] = "local[*]",
) -> None:
    """Count words on a real broker, through Spark, in this terminal; then stop and remove everything."""
    from millstream.edge.cli.demo.conductor import DemoOptions
    from millstream.edge.cli.demo.demo_command import demonstrate

    raise typer.Exit(demonstrate(DemoOptions(lines, keep, master)))


@app.command()
def doctor(
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(help="Brokers to reach, as host:port,host:port. Default: from the settings."),
    ] = None,
    topics: Annotated[str, typer.Option(help="Topics that must exist, as a comma-separated list.")] = "",
    master: Annotated[
        str | None,
        typer.Option(
            callback=spark_master,
            help="Spark master whose executors to check as well, such as spark://host:7077.",
        ),
    ] = None,
) -> None:
    """Check what Millstream needs on this machine and on a cluster, and report how to fix what is missing."""
    from millstream.edge.cli.doctor.doctor_report import examine

    wanted = tuple(dict.fromkeys(topic for topic in (part.strip() for part in topics.split(",")) if topic))
    raise typer.Exit(examine(bootstrap_servers, wanted, master=master))


class DescribeFormat(StrEnum):
    text = "text"
    mermaid = "mermaid"
    dot = "dot"
    svg = "svg"
    plan = "plan"


_WRITERS: Final[Mapping[DescribeFormat, Callable[[Plan], str]]] = {
    DescribeFormat.text: descriptions.text,
    DescribeFormat.mermaid: drawing.mermaid,
    DescribeFormat.dot: drawing.dot,
    DescribeFormat.svg: drawing.svg,
    DescribeFormat.plan: str,
}


def described(target: str, form: DescribeFormat) -> str:
    return _WRITERS[form](plan_of(target))


@app.command()
def describe(
    target: TopologyTarget,
    form: Annotated[DescribeFormat, typer.Option("--format", help="What to print.")] = DescribeFormat.text,
) -> None:
    """Show a topology; nothing is connected or started."""
    with reporting_errors("describe"):
        typer.echo(described(target, form))


Stopped = Annotated[
    str, typer.Argument(metavar="APPLICATION_ID", help="The application; it must be stopped.")
]
CheckpointLocation = Annotated[
    str | None,
    typer.Option(help="The application's checkpoint_location. Default: from the settings."),
]


for _control in (pause, resume, throttle, parallelism, ranges, status, page):
    app.command()(_control)


@app.command()
def rescale(
    application_id: Stopped,
    *,
    partitions: Annotated[int, typer.Option(min=1, max=1024, help="New number of Spark partitions.")],
    state_dir: StateDir = None,
    checkpoint_location: CheckpointLocation = None,
    master: Annotated[str | None, typer.Option(help="Spark master. Default: from the settings.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Move the state of a stopped application to more or fewer Spark partitions; nothing is lost."""
    from millstream.edge.cli.rescale_command import rescale as move

    with reporting_errors("rescale"):
        settings = settings_without_broker(
            state_dir=state_dir, checkpoint_location=checkpoint_location, master=master
        )
        move(application_id, partitions, settings, dry_run=dry_run)


@app.command()
def reset(
    application_id: Stopped,
    *,
    bootstrap_servers: Servers = None,
    input_topic: Annotated[
        list[str] | None,
        typer.Option(help="Move only this topic; repeatable. Default: all topics that were read."),
    ] = None,
    internal_topic: Annotated[
        list[str] | None,
        typer.Option(help="Delete only this internal topic; repeatable. Default: all."),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Begin at the first available record. The default.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Begin after the last record.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="Begin at this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="ISO",
            help="Begin at the first record at or after this time, such as 2026-01-31T18:00:00; without a zone, UTC.",
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            metavar="ISO", help="Begin at the first record that is at most this old, such as PT12H."
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(help="Begin this many offsets later; negative: earlier.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(help="Begin at the offsets in this file, in lines of topic,partition,offset."),
    ] = None,
    state_dir: StateDir = None,
    checkpoint_location: CheckpointLocation = None,
    master: Annotated[
        str | None, typer.Option(help="Spark master, if the checkpoint is not on a local disk.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Start a stopped application over, at chosen offsets and with empty stores."""
    from millstream.edge.checkpoint.application_reset import ResetRequest
    from millstream.edge.cli.reset_command import reset as begin_anew
    from millstream.edge.cli.reset_command import target_of

    with reporting_errors("reset"):
        target = target_of(
            to_earliest=to_earliest,
            to_latest=to_latest,
            to_offset=to_offset,
            to_datetime=to_datetime,
            by_duration=by_duration,
            shift_by=shift_by,
            from_file=from_file,
        )
        settings = settings_of(
            bootstrap_servers=bootstrap_servers,
            state_dir=state_dir,
            checkpoint_location=checkpoint_location,
            master=master,
        )
        begin_anew(
            ResetRequest(application_id, target, input_topic or (), internal_topic or ()),
            settings,
            dry_run=dry_run,
            sure=lambda: yes or typer.confirm("Reset?"),
        )
