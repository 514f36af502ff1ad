"""The topology of the demo, as a user would write it (see also ``examples/wordcount.py``), and its input lines."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import cycle, islice

import millstream as ms

LINES = "lines"
COUNTS = "counts"


def words(line: str) -> list[str]:
    """Split a line into lower-case words without punctuation."""
    return re.findall(r"[a-z]+(?:'[a-z]+)?", line.lower())


def topology() -> ms.Topology:
    builder = ms.StreamsBuilder()
    lines = builder.stream(LINES, key=ms.serdes.string, value=ms.serdes.string)
    counts = lines.flat_map_values(words).group_by(lambda _, word: word).count(store="counts")
    counts.to_stream().to(COUNTS, value=ms.serdes.int64)
    return builder.build()


def sonnet_lines() -> list[str]:
    text = files("millstream.edge").joinpath("data/sonnets.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def repeated(count: int) -> list[str]:
    """Return a number of lines; repeats the text if it has fewer."""
    return list(islice(cycle(sonnet_lines()), count))
