"""The lines of the demo: sonnets that ship with the package, over and over."""

from __future__ import annotations

from importlib.resources import files
from itertools import cycle, islice


def sonnet_lines() -> list[str]:
    text = files("millstream.edge").joinpath("data/sonnets.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def repeated(count: int) -> list[str]:
    """Return a number of lines; after the end, from the beginning again.

    Example:
        >>> repeated(1)
        ["Shall I compare thee to a summer's day?"]
    """
    return list(islice(cycle(sonnet_lines()), count))
