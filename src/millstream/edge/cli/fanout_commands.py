"""The commands ``millstream fanout split``, ``merge`` and ``status``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.edge.cli.command_options import Servers, reporting_errors, settings_of

if TYPE_CHECKING:
    from millstream.core.fanout.ledger import PartitionState
    from millstream.drivers.kafka.fanout.coordinator import Coordinator

fanout = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Split a hot partition by key range, and merge it again.",
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="The partition.")]


@fanout.command("split")
def split_partition(
    topic: Topic,
    partition: Partition,
    *,
    into: Annotated[int, typer.Option(min=2, help="The number of key ranges.")],
    bootstrap_servers: Servers = None,
) -> None:
    """Divide the keys of a partition among several fan-out partitions."""
    with reporting_errors("fanout split"), _coordinator(topic, bootstrap_servers) as coordinator:
        _print(coordinator.change(partition, into))


@fanout.command("merge")
def merge_partition(topic: Topic, partition: Partition, *, bootstrap_servers: Servers = None) -> None:
    """Send all keys to the primary partition again."""
    with reporting_errors("fanout merge"), _coordinator(topic, bootstrap_servers) as coordinator:
        _print(coordinator.change(partition, 1))


@fanout.command("status")
def show_fanout(topic: Topic, *, bootstrap_servers: Servers = None) -> None:
    """Show the epochs of each partition that was split, and the producers."""
    with reporting_errors("fanout status"), _coordinator(topic, bootstrap_servers) as coordinator:
        states = coordinator.states()
        for state in states.values():
            _print(state)
        if not states:
            typer.echo(f"No partition of {topic} has ever been split.")
        typer.echo(f"Producers: {len(coordinator.members())}")
        if any(len(state.history.epochs) > 1 for state in states.values()):
            typer.echo(f"A plain consumer of {topic} does not see the fan-out partitions.")


@contextmanager
def _coordinator(topic: str, servers: str | None) -> Iterator[Coordinator]:
    from millstream.core.model.topics import checked_name
    from millstream.drivers.kafka.fanout.coordinator import Coordinator

    settings = settings_of(bootstrap_servers=servers)
    name = checked_name(topic, "topic")
    coordinator = Coordinator(settings.client("admin", name), name, settings.request_timeout_ms / 1000)
    try:
        yield coordinator
    finally:
        coordinator.close()


def _print(state: PartitionState) -> None:
    history = state.history
    for epoch in history.epochs:
        typer.echo(f"{history.primary}  epoch {epoch.number}  from position {epoch.base:,}")
        for stretch in epoch.stretches:
            end = "now" if stretch.end is None else f"{stretch.end:,}"
            typer.echo(f"  range {stretch.keys}: {stretch.log}, offsets {stretch.start:,} to {end}")
    if state.pending is not None:
        typer.echo(f"  change {state.change} to {state.ranges} ranges is under way: {state.pending}")
