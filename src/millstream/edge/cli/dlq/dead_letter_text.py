"""Dead letters in the terminal. Records contain untrusted data, so control characters are always escaped."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import typer

from millstream.core.model.errors import SettingsError
from millstream.core.runtime.reset import timestamp_ms
from millstream.edge.cli.terminal_text import printable, time_text
from millstream.edge.dead_letters.dead_letter_queue import (
    DeadLetterQueue,
    LetterNotFoundError,
    ReplayRequest,
    Tally,
)
from millstream.edge.dead_letters.envelope import FAILURE_HEADERS, Envelope, LetterFilter
from millstream.edge.records.chosen_records import check_times
from millstream.testing.slice_file import json_value

_COLUMNS = ("partition", "offset", "time", "stage", "node", "read from", "replayed", "error")


def letter_filter(
    *,
    stage: str | None = None,
    node: str | None = None,
    source: str | None = None,
    error: str | None = None,
    key: str | None = None,
    since: str | None = None,
    until: str | None = None,
    partitions: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
) -> LetterFilter:
    """Return the filter that the options describe.

    Raises:
        SettingsError: If a time or the regular expression is invalid, or the time range is empty.
    """
    try:
        pattern = None if error is None else re.compile(error)
    except re.error as wrong:
        raise SettingsError(f"--error {error!r} is not a regular expression: {wrong}") from None
    since_ms, until_ms = (None if text is None else timestamp_ms(text) for text in (since, until))
    check_times(since_ms, until_ms)
    return LetterFilter(
        stage,
        node,
        source,
        pattern,
        key,
        since_ms,
        until_ms,
        frozenset(partitions or ()),
        frozenset(offsets or ()),
    )


def print_list(
    queue: DeadLetterQueue, wanted: LetterFilter, limit: int | None, *, pending: bool, as_json: bool
) -> None:
    """Print dead letters, one per line, each with whether it was replayed.

    Args:
        pending: Whether to omit replayed dead letters.

    Raises:
        SettingsError: If a chosen partition does not exist.
        LetterNotFoundError: If the topic has records, but no dead letters.
    """
    queue.check(wanted)
    seen: Counter[bool] = Counter()
    letters = _letters(queue.read(pending=pending), seen)
    listed = islice((pair for pair in letters if wanted.matches(pair[0])), limit)
    if as_json:
        for letter, replayed in listed:
            typer.echo(json.dumps(letter_json(letter, replayed)))
    else:
        rows = [_row(letter, replayed) for letter, replayed in listed]
        for line in _table(rows):
            typer.echo(line)
        typer.echo(f"{len(rows):,} dead letter{'' if len(rows) == 1 else 's'}")
    others = seen[False]
    if others and not seen[True] and not pending:  # with pending, replayed dead letters are not seen
        raise LetterNotFoundError(
            f"topic {queue.topic!r} is not a dead-letter topic: none of its records ({others:,}) has {FAILURE_HEADERS}"
        )
    if others:
        typer.echo(
            f"left out: {others:,} record{'' if others == 1 else 's'} without {FAILURE_HEADERS}", err=True
        )


def _letters(found: Iterable[tuple[Envelope, bool]], seen: Counter[bool]) -> Iterator[tuple[Envelope, bool]]:
    """Yield the dead letters among records; count them under True, and the other records under False."""
    for letter, replayed in found:
        seen[letter.is_letter] += 1
        if letter.is_letter:
            yield letter, replayed


def print_letter(found: tuple[Envelope, bool], *, as_json: bool) -> None:
    """Print all details of a dead letter, and whether it was replayed."""
    if as_json:
        typer.echo(json.dumps(letter_json(*found)))
        return
    letter, replayed = found
    facts = letter.facts
    source = letter.source
    origin = (
        "not in a header"
        if source is None
        else f"{source.topic}, partition {source.partition}, offset {facts.get('offset')}"
    )
    typer.echo(
        f"dead letter  {letter.topic_partition.topic}, partition {letter.topic_partition.partition}, offset {letter.offset}"
    )
    typer.echo(f"read from    {printable(origin)}")
    typer.echo(f"time         {time_text(letter.timestamp)}")
    typer.echo(
        f"failed in    stage {printable(facts.get('stage', '-'))}, node {printable(facts.get('node', '-'))}"
    )
    typer.echo(f"error        {printable(facts['error'])}")
    typer.echo(f"replayed     {_replays(letter, replayed) or 'no'}")
    typer.echo(f"record       {'as it was read' if letter.as_read else 'as it reached the operator'}")
    typer.echo(f"key          {_printable_data(letter.key)}")
    typer.echo(f"value        {_printable_data(letter.value)}")
    for name, value in letter.own_headers:
        typer.echo(f"header       {printable(name)} = {_printable_data(value)}")
    for line in facts["traceback"].splitlines():
        typer.echo(f"  {printable(line)}")


def replay(queue: DeadLetterQueue, request: ReplayRequest, sure: Callable[[], bool] | None) -> None:
    """Print what a replay will do, ask for confirmation, and execute it.

    Raises:
        SettingsError: If a chosen partition does not exist, or the records would be sent to the dead-letter topic.
        TopicNotFoundError: If the topic to send to does not exist.
    """
    queue.check(request.wanted, request.to)
    tally = queue.tally(request)
    typer.echo(f"Replay of dead letters of {queue.topic} (group {queue.group})")
    for line in tally_lines(tally):
        typer.echo(line)
    if sure is None:
        typer.echo("Nothing was sent (--dry-run).")
    elif not tally.sent:
        typer.echo("There is nothing to send.")
    elif sure():
        done = queue.replay(request)
        typer.echo(f"Done: {done.sent.total():,} sent.")
    else:
        typer.echo("Nothing was sent.")


def tally_lines(tally: Tally) -> Iterator[str]:
    for topic, count in sorted(tally.sent.items()):
        yield f"  {count:,} to {printable(topic)}"
    if tally.before:
        yield f"  {tally.before:,} left out: replayed before (--again sends them again)"
    for why, count in sorted(tally.refused.items()):
        yield f"  {count:,} left out: {printable(why)}"


def letter_json(letter: Envelope, replayed: bool) -> dict[str, object]:
    """Return a dead letter as JSON values; bytes that are not UTF-8 are encoded in base64."""
    return {
        "partition": letter.topic_partition.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp,
        "replayed": replayed,
        "replays": letter.replays,
        "as_read": letter.as_read,
        "key": json_value(letter.key),
        "value": json_value(letter.value),
        "headers": [[name, json_value(value)] for name, value in letter.own_headers],
        "error": letter.facts,
    }


def _printable_data(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        return printable(data.decode())
    except UnicodeDecodeError:
        return repr(data)


def _row(letter: Envelope, replayed: bool) -> tuple[str, ...]:
    facts, source = letter.facts, letter.source
    origin = "-" if source is None else f"{source.topic}/{source.partition}@{facts.get('offset', '?')}"
    cells = [
        facts.get("stage", "-"),
        facts.get("node", "-"),
        origin,
        _replays(letter, replayed),
        facts["error"],
    ]
    return (
        str(letter.topic_partition.partition),
        str(letter.offset),
        time_text(letter.timestamp),
        *(printable(cell.partition("\n")[0]) for cell in cells),
    )


def _replays(letter: Envelope, replayed: bool) -> str:
    replays = f"came back {letter.replays}x" if letter.replays else ""
    return ", ".join(part for part in ("yes" if replayed else "", replays) if part)


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    rows = [_COLUMNS, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS) - 1)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]])
