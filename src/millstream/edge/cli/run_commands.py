"""The commands ``millstream run``, ``millstream plan`` and ``millstream shell``, whose argument is a program."""

from __future__ import annotations

import code
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.edge.cli.command_options import Servers, TopologyTarget, reporting_errors

if TYPE_CHECKING:
    from millstream.edge.lab.lab import Lab

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:ATTRIBUTE", help="An application or a topology, such as examples.wordcount:topology."
    ),
]
Id = Annotated[
    str | None, typer.Option("--id", help="Application id, for a topology. Default: the module's name.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting; repeatable. Dictionaries and lists are JSON."
    ),
]


def run(
    target: Target,
    application_id: Id = None,
    bootstrap_servers: Servers = None,
    settings: Settings = None,
    *,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Process the records that the topics contain now, and exit.")
    ] = False,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Be one of several drivers, of which one runs and the others wait."),
    ] = False,
) -> None:
    """Run an application, or a topology as one, until it is stopped."""
    from millstream.edge.cli.program_targets import application_of
    from millstream.edge.cli.setting_options import settings_in

    with reporting_errors("run"):
        given = settings_in(settings or [], bootstrap_servers)
        application = application_of(target, application_id, given)
        application.run(until="end" if until_end else None, standby=standby)


def plan(
    target: Target,
    application_id: Id = None,
    bootstrap_servers: Servers = None,
    settings: Settings = None,
) -> None:
    """Print what a start would find and do: partitions, tasks, topics to create, permissions, the checkpoint. Changes nothing."""
    from millstream.edge.cli.program_targets import application_of
    from millstream.edge.cli.setting_options import settings_in
    from millstream.edge.preflight.preflight_check import preflight

    with reporting_errors("plan"):
        given = settings_in(settings or [], bootstrap_servers)
        report = preflight(application_of(target, application_id, given))
        for line in report.lines():
            typer.echo(line)
        if report.problems:
            raise typer.Exit(1)


_BANNER = """\
{lab!r}. Names: lab, ms, topology. Try

    lab.send("TOPIC", "value")      lab.read("TOPIC")        lab.wait()
    lab.entries("STORE")            lab.status()             lab.pause(), lab.resume()
    lab.preview(edited)             lab.deploy(edited)

Topics: {topics}. Stores: {stores}. Ctrl-D ends the shell and the application."""


def shell(
    target: TopologyTarget,
    application_id: Id = None,
    bootstrap_servers: Servers = None,
    settings: Settings = None,
) -> None:
    """Run a topology and open a Python shell to try, inspect and edit it; without brokers, on an embedded one."""
    from millstream.edge.cli.program_targets import name_of, topology_of
    from millstream.edge.cli.setting_options import settings_in
    from millstream.edge.lab.lab import Lab

    with reporting_errors("shell"):
        given = settings_in(settings or [], bootstrap_servers)
        topology = topology_of(target)
        name = name_of(target) if application_id is None else application_id
        with Lab(name, **given) as lab:
            _start_shell(lab.deploy(topology), {"topology": topology})


def _start_shell(lab: Lab, names: dict[str, object]) -> None:
    """Run IPython if it is installed, otherwise an interactive Python."""
    plan = lab.running._run.plan
    banner = _BANNER.format(
        lab=lab,
        topics=", ".join(sorted({*plan.broker_topics, *plan.sink_topics})),
        stores=", ".join(sorted(lab.running.stores())) or "none",
    )
    names |= {"lab": lab, "ms": import_module("millstream")}
    if find_spec("IPython") is None:
        code.interact(banner, local=names, exitmsg="")
    else:
        typer.echo(banner)
        import_module("IPython").start_ipython(argv=["--no-banner"], user_ns=names)
