"""The topology of the demo, as a user would write it (see also ``examples/wordcount.py``), and its input lines."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import cycle, islice

import millstream as ms

LINES = "lines"
COUNTS = "counts"


def words(line: str) -> list[str]:
    """Split a line into lower-case words without punctuation.

    Example:
        >>> words("O, no! it is an ever-fixed mark,")
        ['o', 'no', 'it', 'is', 'an', 'ever', 'fixed', 'mark']
    """
    return re.findall(r"[a-z]+(?:'[a-z]+)?", line.lower())


def topology() -> ms.Topology:
    """Count the words in the lines of a topic; write the counts to another topic."""
    builder = ms.StreamsBuilder()
    lines = builder.stream(LINES, key=ms.serdes.string, value=ms.serdes.string)
    counts = lines.flat_map_values(words).group_by(lambda _, word: word).count(store="counts")
    counts.to_stream().to(COUNTS, value=ms.serdes.int64)
    return builder.build()


def sonnet_lines() -> list[str]:
    text = files("millstream.edge").joinpath("data/sonnets.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def repeated(count: int) -> list[str]:
    """Return a number of lines; repeats the text if it has fewer.

    Example:
        >>> repeated(1)
        ["Shall I compare thee to a summer's day?"]
    """
    return list(islice(cycle(sonnet_lines()), count))
