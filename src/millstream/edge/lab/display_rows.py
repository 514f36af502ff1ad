"""Rows of records or store entries, with displays for notebooks and terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.edge.lab.html import table_html


@dataclass(frozen=True)
class Rows(Sequence[tuple[Any, ...]]):
    """Rows with named columns: a sequence of tuples.

    Example:
        >>> print(Rows(("key", "value"), (("to", 2),)))
        key   value
        'to'  2
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def __str__(self) -> str:
        cells = [self.columns, *([repr(value) for value in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells
        )
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html(self.columns, self.rows)
