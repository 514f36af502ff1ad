"""Printing: what ``KStream.print`` does with a record. It shows what passes to whoever develops a topology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Printing:
    """Prints a record to standard output, as ``[label]: key, value``.

    Attributes:
        label: What the line begins with.
        text: Key and value to what stands in their place; None prints both.

    Source: ``org.apache.kafka.streams.kstream.Printed``.
    """

    label: str
    text: Callable[[Any, Any], object] | None = None

    def __call__(self, key: Any, value: Any) -> None:
        """Print a record."""
        shown = f"{key}, {value}" if self.text is None else self.text(key, value)
        print(f"[{self.label}]: {shown}", flush=True)  # noqa: T201  the operator is there to print
