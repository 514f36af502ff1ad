"""Printing: what ``KStream.print`` does with a record. It shows what passes to whoever develops a topology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Printing:
    """Prints a record, as ``[label]: key, value``.

    Attributes:
        label: What the line begins with.
        text: Key and value to what stands in their place; None prints both.
        file: A file that lines are added to; None is standard output.

    Source: ``org.apache.kafka.streams.kstream.Printed``.
    """

    label: str
    text: Callable[[Any, Any], object] | None = None
    file: str | Path | None = None

    def __call__(self, key: Any, value: Any) -> None:
        """Print a record."""
        shown = f"{key}, {value}" if self.text is None else self.text(key, value)
        line = f"[{self.label}]: {shown}"
        if self.file is None:
            print(line, flush=True)  # noqa: T201  the operator is there to print
        else:
            with open(self.file, "a", encoding="utf-8") as lines:
                lines.write(f"{line}\n")
