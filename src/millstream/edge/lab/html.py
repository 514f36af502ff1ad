"""HTML for notebooks, without scripts and external resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def table_html(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table.

    Example:
        >>> table_html(["key"], [["<a>"]])
        '<table><thead><tr><th>key</th></tr></thead><tbody><tr><td>&lt;a&gt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_cell_text(value))}</td>' for value in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell_text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def status_html(status: Mapping[str, Any], name: str = "") -> str:
    """Return the status of an application as HTML: its state, the lag of each topic, and any problems."""
    head = f"{status['state']}, micro-batch {status['batch']}, {status['records_per_s']:,.0f} records/s"
    rows = [
        (topic, f"{lag:,}", "paused" if topic in status["paused"] else status["throttled"].get(topic, ""))
        for topic, lag in sorted(status["lag"].items())
    ]
    notes = [*status["restoring"], *(f"{task}: {why}" for task, why in status["waiting"].items())]
    notes += [status["error"]] if status["error"] else []
    paragraphs = "".join(f"<p>{escape(note)}</p>" for note in notes)
    title = f"{escape(name)}: {head}" if name else head
    return f"<p><b>{title}</b></p>{table_html(('topic', 'lag', 'limit'), rows)}{paragraphs}"
