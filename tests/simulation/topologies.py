"""The simulated applications: aggregations whose every result is known.

An aggregate is `<records so far>|<the newest one>`, so each result names the record that caused it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import millstream as ms

TOPIC = "in"
RESULTS = "out"
STORE = "counts"


def _counted(key: str, value: str, so_far: str) -> str:
    return f"{int(so_far.partition('|')[0]) + 1}|{value}"


def _empty() -> str:
    return "0|"


def word_of(value: str) -> str:
    """Return the word that a record counts: records are `<number>:<word>`."""
    return value.partition(":")[2]


def _by_key(changelog: str = "kafka") -> ms.Topology:
    builder = ms.StreamsBuilder()
    grouped = builder.stream(TOPIC).group_by_key()
    counts = grouped.aggregate(_empty, _counted, store=ms.stores.options(STORE, changelog=changelog))
    counts.to_stream().to(RESULTS)
    return builder.build()


def _regrouped(changelog: bool) -> ms.Topology:
    builder = ms.StreamsBuilder()
    grouped = builder.stream(TOPIC).group_by(lambda key, value: word_of(value))
    options = ms.stores.options(STORE, changelog="kafka" if changelog else "spark")
    grouped.aggregate(_empty, _counted, store=options).to_stream().to(RESULTS)
    return builder.build()


@dataclass(frozen=True)
class Kind:
    """A kind of application.

    Attributes:
        name: A readable name.
        build: Makes the topology.
        changelog: Whether its store has a changelog topic.
        own_key: Whether records are counted by their own key, in the task that reads them.
        ranges: The number of key ranges of each partition.
    """

    name: str
    build: Callable[[], ms.Topology]
    changelog: bool
    own_key: bool
    ranges: int = 1


KINDS = (
    Kind("by key", _by_key, changelog=True, own_key=True),
    Kind("through the shuffle", lambda: _regrouped(False), changelog=False, own_key=False),
    Kind("through a topic", lambda: _regrouped(True), changelog=True, own_key=False),
    Kind("in key ranges", lambda: _by_key("spark"), changelog=False, own_key=True, ranges=3),
)
