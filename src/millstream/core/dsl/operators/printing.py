"""Printing: ``KStream.print``, for the development of a topology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Printing:
    """Prints a record as ``[label]: key, value``.

    Attributes:
        label: Prefix of the line.
        text: Maps key and value to the text; None prints both.
        file: A file to which lines are appended; None is standard output.

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
            print(line, flush=True)  # noqa: T201  its purpose is to print
        else:
            with open(self.file, "a", encoding="utf-8") as lines:
                lines.write(f"{line}\n")
