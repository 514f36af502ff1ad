"""The command ``millstream shell``."""

from __future__ import annotations

import code
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.edge.cli.command_errors import reporting_errors
from millstream.edge.cli.run_commands import Id, Servers, Settings

if TYPE_CHECKING:
    from millstream.edge.lab.lab import Lab

_BANNER = """\
{lab!r}. Names: lab, ms, topology. Try

    lab.send("TOPIC", "value")      lab.read("TOPIC")        lab.wait()
    lab.entries("STORE")            lab.status()             lab.pause(), lab.resume()
    lab.preview(edited)             lab.deploy(edited)

Topics: {topics}. Stores: {stores}. Ctrl-D ends the shell and the application."""


def shell(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:ATTRIBUTE", help="A topology, such as examples.wordcount:topology."),
    ],
    application_id: Id = None,
    bootstrap_servers: Servers = None,
    settings: Settings = None,
) -> None:
    """Run a topology in a Python shell: try it, look into it, edit it. Without brokers, on one of its own."""
    from millstream.edge.cli.describe_command import topology_of
    from millstream.edge.cli.programs_by_name import name_of, settings_in
    from millstream.edge.lab.lab import Lab

    with reporting_errors("shell"):
        given = settings_in(settings or [])
        if bootstrap_servers is not None:
            given["bootstrap_servers"] = bootstrap_servers
        topology = topology_of(target)
        with Lab(application_id or name_of(target), **given) as lab:
            _talk(lab.deploy(topology), {"topology": topology})


def _talk(lab: Lab, names: dict[str, object]) -> None:
    """Run an interactive Python, or IPython if it is installed."""
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
