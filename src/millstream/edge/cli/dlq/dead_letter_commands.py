"""The commands ``millstream dlq list``, ``show`` and ``replay``, and their options."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.edge.cli.command_options import DryRun, Servers, Yes, reporting_errors, settings_of

if TYPE_CHECKING:
    from millstream.edge.dead_letters.dead_letter_queue import DeadLetterQueue

letters = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Inspect dead letters, and send their records back."
)


class FailedStage(StrEnum):
    """The stages in which a record may fail."""

    deserialize = "deserialize"
    process = "process"
    produce = "produce"
    call = "call"


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")]
Group = Annotated[
    str | None,
    typer.Option(help="The consumer group that records what was replayed. Default: millstream-dlq-TOPIC."),
]
Stage = Annotated[FailedStage | None, typer.Option(help="Only those that failed in this stage.")]
Node = Annotated[str | None, typer.Option(help="Only those that failed in this node.")]
Source = Annotated[str | None, typer.Option(help="Only records that were read from this topic.")]
Error = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX", help="Only those whose error matches this regular expression, such as KeyError."
    ),
]
Key = Annotated[str | None, typer.Option(help="Only records with this key, as text.")]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="ISO",
        help="Only records with this time or a later one, such as 2026-01-31T18:00:00; without a zone, UTC.",
    ),
]
Until = Annotated[str | None, typer.Option(metavar="ISO", help="Only records with an earlier time.")]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", min=0, help="Only this partition of the dead-letter topic; repeatable."),
]
Offsets = Annotated[list[int] | None, typer.Option("--offset", min=0, help="Only this offset; repeatable.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Maximum number of dead letters.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON per letter.")]


@letters.command("list")
def list_letters(
    topic: Topic,
    *,
    stage: Stage = None,
    node: Node = None,
    from_topic: Source = None,
    error: Error = None,
    key: Key = None,
    since: Since = None,
    until: Until = None,
    partition: Partitions = None,
    offset: Offsets = None,
    pending: Annotated[
        bool, typer.Option("--pending", help="Leave out dead letters that were replayed.")
    ] = False,
    limit: Limit = None,
    as_json: AsJson = False,
    bootstrap_servers: Servers = None,
    group: Group = None,
) -> None:
    """List the dead letters of a topic, one per line."""
    from millstream.edge.cli.dlq.dead_letter_text import letter_filter, print_list

    with reporting_errors("dlq list"):
        wanted = letter_filter(
            stage=stage,
            node=node,
            source=from_topic,
            error=error,
            key=key,
            since=since,
            until=until,
            partitions=partition,
            offsets=offset,
        )
        queue = _queue(topic, bootstrap_servers, group)
        print_list(queue, wanted, limit, pending=pending, as_json=as_json)


@letters.command("show")
def show_letter(
    topic: Topic,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Its partition.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Its offset.")],
    *,
    as_json: AsJson = False,
    bootstrap_servers: Servers = None,
    group: Group = None,
) -> None:
    """Show one dead letter: the record, its headers, and the traceback."""
    from millstream.edge.cli.dlq.dead_letter_text import print_letter

    with reporting_errors("dlq show"):
        print_letter(_queue(topic, bootstrap_servers, group).letter(partition, offset), as_json=as_json)


@letters.command("replay")
def replay_letters(
    topic: Topic,
    *,
    stage: Stage = None,
    node: Node = None,
    from_topic: Source = None,
    error: Error = None,
    key: Key = None,
    since: Since = None,
    until: Until = None,
    partition: Partitions = None,
    offset: Offsets = None,
    to: Annotated[
        str | None, typer.Option(help="Send them to this topic. Default: where each was read.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Include dead letters that were replayed before.")
    ] = False,
    max_replays: Annotated[
        int, typer.Option(min=1, help="Skip records that were replayed this often and failed again.")
    ] = 3,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap_servers: Servers = None,
    group: Group = None,
) -> None:
    """Send the records of dead letters back to the topics from which they were read, each once."""
    from millstream.edge.cli.dlq.dead_letter_text import letter_filter, replay
    from millstream.edge.dead_letters.dead_letter_queue import ReplayRequest

    with reporting_errors("dlq replay"):
        wanted = letter_filter(
            stage=stage,
            node=node,
            source=from_topic,
            error=error,
            key=key,
            since=since,
            until=until,
            partitions=partition,
            offsets=offset,
        )
        request = ReplayRequest(wanted, to, max_replays, again, limit)
        sure = None if dry_run else (lambda: yes or typer.confirm("Replay?"))
        replay(_queue(topic, bootstrap_servers, group), request, sure)


def _queue(topic: str, servers: str | None, group: str | None) -> DeadLetterQueue:
    from millstream.core.model.errors import SettingsError
    from millstream.core.model.topics import checked_name
    from millstream.edge.dead_letters.dead_letter_queue import DeadLetterQueue

    if group == "":
        raise SettingsError("--group is empty; leave it out to use millstream-dlq-TOPIC")
    return DeadLetterQueue(checked_name(topic, "topic"), settings_of(bootstrap_servers=servers), group)
