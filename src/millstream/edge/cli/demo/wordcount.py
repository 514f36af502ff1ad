"""The topology of the demo: what a user would write. See also ``examples/wordcount.py``."""

from __future__ import annotations

import re

import millstream as ms

LINES = "lines"
COUNTS = "counts"


def words(line: str) -> list[str]:
    """Split a line into words, without case and punctuation.

    Example:
        >>> words("O, no! it is an ever-fixed mark,")
        ['o', 'no', 'it', 'is', 'an', 'ever', 'fixed', 'mark']
    """
    return re.findall(r"[a-z]+(?:'[a-z]+)?", line.lower())


def topology() -> ms.Topology:
    """Count the words of a topic's lines into another topic."""
    builder = ms.StreamsBuilder()
    lines = builder.stream(LINES, key=ms.serdes.string, value=ms.serdes.string)
    counts = lines.flat_map_values(words).group_by(lambda _, word: word).count(store="counts")
    counts.to_stream().to(COUNTS, value=ms.serdes.int64)
    return builder.build()
