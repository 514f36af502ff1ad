"""The commands of ``penstock`` and their options; what they do is in the modules beside this one.

A command imports what it needs when it runs, so that the help is quick, and the doctor can look at an installation in
which Spark or a Kafka client is missing or broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.core.model.errors import PenstockError
from penstock.edge.cli.describe import described

if TYPE_CHECKING:
    from penstock.edge.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Penstock: a processor client for Apache Kafka whose pipelines run on Apache Spark.",
)


class Form(str, Enum):
    """The formats of ``describe``."""

    text = "text"
    mermaid = "mermaid"
    dot = "dot"
    plan = "plan"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@contextmanager
def _told(command: str) -> Iterator[None]:
    """Tell an error of Penstock's in one line, and end with exit code 1."""
    try:
        yield
    except PenstockError as error:
        typer.echo(f"penstock {command}: {error}", err=True)
        raise typer.Exit(1) from None


@app.callback()
def _common(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    lines: Annotated[int, typer.Option(min=1, help="How many lines of text to stream.")] = 25_000,
    keep: Annotated[
        bool, typer.Option(help="Leave everything running at the end, until Enter or Ctrl-C.")
    ] = False,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
) -> None:
    """Count words on a real broker, through Spark, in this terminal; then stop and remove everything."""
    from penstock.edge.cli.demo.command import demonstrate
    from penstock.edge.cli.demo.conductor import Options

    raise typer.Exit(demonstrate(Options(lines, keep, master)))


@app.command()
def doctor(
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(help="Brokers to reach, as host:port,host:port. Default: as the settings say."),
    ] = None,
    topics: Annotated[str, typer.Option(help="Topics that must exist, separated by commas.")] = "",
) -> None:
    """Check what Penstock needs on this machine, and say how to get what is missing."""
    from penstock.edge.cli.doctor.report import examine

    wanted = tuple(topic for topic in (part.strip() for part in topics.split(",")) if topic)
    raise typer.Exit(examine(bootstrap_servers, wanted))


@app.command()
def describe(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:ATTRIBUTE", help="A topology, such as examples.wordcount:topology."),
    ],
    form: Annotated[Form, typer.Option("--format", help="What to print.")] = Form.text,
) -> None:
    """Show a topology; nothing is connected or started."""
    with _told("describe"):
        typer.echo(described(target, form.value))


Application = Annotated[
    str, typer.Argument(metavar="APPLICATION_ID", help="The application; it must be stopped.")
]
StateDir = Annotated[
    Path | None, typer.Option(help="The application's state_dir. Default: as the settings say.")
]
CheckpointLocation = Annotated[
    str | None,
    typer.Option(help="The application's checkpoint_location. Default: as the settings say."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


def _settings(**given: object) -> Settings:
    """Make settings of options; what is not given comes from the environment and the settings file."""
    from penstock.edge.settings import settings_from

    return settings_from({name: value for name, value in given.items() if value is not None})


@app.command()
def rescale(
    application_id: Application,
    partitions: Annotated[int, typer.Option(min=1, max=1024, help="Wanted number of Spark partitions.")],
    state_dir: StateDir = None,
    checkpoint_location: CheckpointLocation = None,
    master: Annotated[str | None, typer.Option(help="Spark master. Default: as the settings say.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Move the state of a stopped application to more or fewer Spark partitions; nothing is lost."""
    from penstock.edge.cli.rescale import Options
    from penstock.edge.cli.rescale import rescale as move

    with _told("rescale"):
        move(
            Options(application_id, partitions, dry_run),
            _settings(
                bootstrap_servers="not needed for this",
                state_dir=state_dir,
                checkpoint_location=checkpoint_location,
                master=master,
            ),
        )
