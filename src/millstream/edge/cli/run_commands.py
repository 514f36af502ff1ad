"""The commands ``millstream run`` and ``millstream plan``."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.edge.cli.command_errors import reporting_errors

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:ATTRIBUTE", help="An application or a topology, such as examples.wordcount:topology."
    ),
]
Id = Annotated[
    str | None, typer.Option("--id", help="Application id, for a topology. Default: the module's name.")
]
Servers = Annotated[
    str | None, typer.Option(help="Brokers, as host:port,host:port. Default: as the settings say.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting; may be given several times."),
]


def run(
    target: Target,
    application_id: Id = None,
    bootstrap_servers: Servers = None,
    settings: Settings = None,
    *,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Process what is in the topics now, and end.")
    ] = False,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Be one of several drivers, of which one runs and the others wait."),
    ] = False,
) -> None:
    """Run an application, or a topology as one, until it is stopped."""
    from millstream.edge.cli.programs_by_name import application_of, settings_in

    with reporting_errors("run"):
        given = settings_in(settings or [])
        if bootstrap_servers is not None:
            given["bootstrap_servers"] = bootstrap_servers
        application = application_of(target, application_id, given)
        application.run(until="end" if until_end else None, standby=standby)


def plan(
    target: Target,
    application_id: Id = None,
    bootstrap_servers: Servers = None,
    settings: Settings = None,
) -> None:
    """Print what a start would find and do: partitions, tasks, topics to create, permissions, the checkpoint. Changes nothing."""
    from millstream.edge.cli.programs_by_name import application_of, settings_in
    from millstream.edge.preflight.preflight_check import preflight

    with reporting_errors("plan"):
        given = settings_in(settings or [])
        if bootstrap_servers is not None:
            given["bootstrap_servers"] = bootstrap_servers
        report = preflight(application_of(target, application_id, given))
        for line in report.lines():
            typer.echo(line)
        if report.problems:
            raise typer.Exit(1)
