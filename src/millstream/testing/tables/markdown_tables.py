"""Tables in Markdown format: reads, writes and compares them.

A cell is JSON (``12``, ``true``, ``null``, ``[1, 2]``, ``{"a": 1}``, ``"12"``), or else its text. An empty cell has no value. The number
12 is therefore written ``12``, and the string ``"12"``. The line of dashes below the head may be omitted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

from millstream.core.model.errors import SettingsError

Row = dict[str, str]

_BAR: Final = "\\u007c"
"""A bar in JSON, where it cannot be mistaken for the end of a cell."""


def read_table(text: str, columns: Collection[str]) -> list[Row]:
    """Read a table.

    Returns:
        Its rows, each as the text of its cells by column.

    Raises:
        SettingsError: If the table is no text, has no head, an unknown column, or a row with a different number of cells.

    Example:
        >>> read_table('''
        ...     | key  | value |
        ...     |------|-------|
        ...     | vase |    10 |
        ... ''', ("key", "value"))
        [{'key': 'vase', 'value': '10'}]
    """
    if not isinstance(text, str):
        raise SettingsError(f"a table is text in Markdown format, not {text!r}")
    lines = [_cells(line) for line in map(str.strip, text.splitlines()) if line]
    if not lines:
        raise SettingsError("the table is empty: its first line names the columns, as in | key | value |")
    head, *rows = lines
    unknown = [name for name in head if name not in columns]
    if unknown or len(set(head)) < len(head):
        raise SettingsError(
            f"the table has the columns {', '.join(head)}; it may have each of {', '.join(columns)} once"
        )
    if rows and all(cell and not cell.strip("-:") for cell in rows[0]):
        del rows[0]
    result = []
    for row in rows:
        if len(row) != len(head):
            raise SettingsError(
                f"the row | {' | '.join(row)} | has {len(row)} cells, and the table has {len(head)} columns"
            )
        result.append(dict(zip(head, row)))
    return result


def value_in(cell: str) -> Any:
    """Return the value of a cell; an empty cell is None.

    Example:
        >>> value_in("12"), value_in('"12"'), value_in("vase"), value_in("")
        (12, '12', 'vase', None)
    """
    if not cell:
        return None
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def cell_of(value: object) -> str:
    """Return the cell for a value. A value that is not JSON-compatible is written as ``str`` writes it, or as this text in JSON.

    A cell that is copied from a printed table has the same value again.

    Example:
        >>> cell_of(12), cell_of("12"), cell_of("vase"), cell_of(None), cell_of({"a": 1})
        ('12', '"12"', 'vase', 'null', '{"a": 1}')
    """
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return _cell_of_text(repr(value))
    if isinstance(value, str):
        plain = (
            value_in(value) == value and value == value.strip() and "|" not in value and value.isprintable()
        )
        return value if plain else _json(value)
    try:
        return _json(value)
    except (TypeError, ValueError):
        return _cell_of_text(str(value))


def _cell_of_text(text: str) -> str:
    """Return a text that may look like JSON, such as that of ``Decimal("1.5")``, and JSON if the text would become another when read."""
    return text if cell_of(value_in(text)) == text else cell_of(text)


def _json(value: object) -> str:
    """Return JSON in which no character ends the line or the cell, or changes the terminal."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if not text.isprintable():
        text = json.dumps(value, sort_keys=True)
    return text.replace("|", _BAR)


def normal(rows: Iterable[Row]) -> list[Row]:
    """Return rows with their cells as :func:`cell_of` writes them."""
    return [{name: cell_of(value_in(cell)) for name, cell in row.items()} for row in rows]


def written_table(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return the lines of a table. Each column is as wide as its widest cell."""
    every = [dict(zip(columns, columns)), *rows]
    widths = {name: max(len(row[name]) for row in every) for name in columns}
    lines = [f"| {' | '.join(row[name].ljust(widths[name]) for name in columns)} |" for row in every]
    return [lines[0], f"|{'|'.join('-' * (widths[name] + 2) for name in columns)}|", *lines[1:]]


def check_same(what: str, expected: Sequence[Row], actual: Sequence[Row], columns: Sequence[str]) -> None:
    """Compare rows.

    Raises:
        AssertionError: If the rows differ. The message shows each missing (-) and each surplus (+) row.
    """
    __tracebackhide__ = True
    if list(expected) == list(actual):
        return
    both = written_table([*expected, *actual], columns)
    head, rows = both[:2], both[2:]
    wanted, rest = rows[: len(expected)], rows[len(expected) :]
    lines = [f"  {line}" for line in head]
    for tag, a, b, c, d in SequenceMatcher(None, wanted, rest, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += [f"  {line}" for line in wanted[a:b]]
        else:
            lines += [f"- {line}" for line in wanted[a:b]] + [f"+ {line}" for line in rest[c:d]]
    raise AssertionError("\n".join([f"{what} is not as expected (- missing, + unexpected):", *lines]))


def _cells(line: str) -> list[str]:
    """Split a line. A bar in a JSON string is written as its escape, see ``_BAR``."""
    return [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
