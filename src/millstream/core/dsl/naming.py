"""Naming: what operators, and what they keep, are called when the program gives them no name.

Nodes are numbered, as Kafka Streams numbers them (``KSTREAM-FILTER-0000000003``): nothing is found by these numbers, so they
may change with every edit. What an operator *keeps* is found by its name after a restart: its stores with what it remembers
beside them, its internal topics, and the schedules of a processor. How these are called when the program does not say is the
*naming* of the builder:

``"stable"``
    By a *path*: the topic that the operator is behind, the aggregations and joins between, and what it does itself, as in
    ``orders-count``. A path says where data come from and what they are by, not how many operators they have passed: filters,
    mappings of values, branches, merges, lookups in tables and suppressions are not in it. Behind an operator that may
    have changed the keys it goes on with ``rekeyed``, since what is kept by other keys is something else. A name that was
    given to an operator or to a store begins a new path. Topics by pattern are called by what is a name in it: ``orders-.*``
    is ``orders-pattern``. Where the same name comes up again it gets a number, in the order of the program: ``orders-count-2``.

``"numbered"``
    By the number of the operator in the program, exactly as in Kafka Streams (``KSTREAM-AGGREGATE-STATE-STORE-0000000002``).
    These names become others when an operator is inserted in front.

Kafka Streams counts some names that it does not use, and so does this; see docs/decisions/0040-stable-names.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, get_args

from millstream.core.model.errors import TopologyError
from millstream.core.model.topics import checked_name
from millstream.core.topology.nodes import Node, Source

Naming = Literal["stable", "numbered"]
"""How what an operator keeps is called when the program gives it no name."""

REKEYED: Final = "rekeyed"
"""The part of a path that says that keys were changed."""

_WORDS: Final = re.compile("[A-Za-z0-9_]+")
_CLASSES: Final = re.compile(r"\\[A-Za-z]")
"""What of a pattern looks like a letter and is none: ``\\d``."""

_LONGEST: Final = 200
"""How long a generated name may be: a topic's has 249 characters, with the application's id in front and an ending."""


class Names:
    """The names of one topology under construction. Owned by its builder.

    Args:
        naming: How unnamed state is called.

    Raises:
        TopologyError: If there is no such naming.

    Attributes:
        numbered: Whether state is named by numbers.
        generated: The names of state and of internal topics that were generated.
    """

    def __init__(self, naming: Naming) -> None:
        if naming not in get_args(Naming):
            raise TopologyError(f"names is 'stable' or 'numbered', not {naming!r}")
        self.numbered = naming == "numbered"
        self.generated: set[str] = set()
        self._count = 0
        self._times: Counter[str] = Counter()
        self._given: set[str] = set()
        self._begun: dict[str, str] = {}

    # What the program counts.

    def node(self, kind: str, given: str | None = None) -> str:
        """Give the name of a node: the given one, which begins a path, or a numbered one. Either takes a number."""
        numbered = f"{kind}-{self._number()}"
        if given is None:
            return numbered
        return self.uncounted(given)

    def uncounted(self, given: str) -> str:
        """Give the name of a node that was given one and takes no number."""
        self._begun[given] = checked_name(given, "node")
        return given

    def store(self, kind: str) -> str:
        """Give the numbered name of a store; it takes a number (``newStoreName``)."""
        return f"{kind}-STATE-STORE-{self._number()}"

    def _number(self) -> str:
        number = self._count
        self._count += 1
        return f"{number:010d}"

    # What is kept.

    def kept(self, numbered: str, path: str) -> str:
        """Give the generated name of something that is kept.

        Args:
            numbered: What Kafka Streams calls it.
            path: Its path.

        Raises:
            TopologyError: If the program gave this name to something else, or it is too long.
        """
        if self.numbered:
            name = numbered
        else:
            self._times[path] += 1
            name = path if self._times[path] == 1 else f"{path}-{self._times[path]}"
        if len(name) > _LONGEST:
            raise TopologyError(
                f"the path {name[:60]!r}... makes a name of {len(name)} characters, which is too long for a topic: {_LONGEST} at most. "
                "Give an operator in front name='...'; the path begins anew with it"
            )
        self._generate(name)
        return name

    def _generate(self, name: str) -> None:
        if name in self._given:
            raise _clash(name)
        self.generated.add(name)

    def part(self, whole: str, suffix: str) -> str:
        """Give the name of a part of what is called something: it is generated if that is.

        Raises:
            TopologyError: If the program gave this name to something else.
        """
        name = whole + suffix
        if whole in self.generated:
            self._generate(name)
        return name

    def give(self, name: str) -> None:
        """Take note of a name that the program gave to a store.

        Raises:
            TopologyError: If it was generated for another one.
        """
        if name in self.generated:
            raise _clash(name)
        self._given.add(name)

    # Paths.

    def begin(self, node: str, path: str) -> None:
        """Say that a path begins at a node."""
        self._begun[node] = path

    def path(self, nodes: Mapping[str, Node], node: str, *, rekeyed: bool = False) -> str:
        """Give the path of what comes out of a node; of several parents the first one counts.

        Args:
            nodes: The nodes so far.
            node: The node.
            rekeyed: Whether keys were changed on the way, and nothing was kept by them since.
        """
        at = nodes[node]
        while at.name not in self._begun and not isinstance(at, Source):
            at = nodes[at.parents[0]]
        path = self._begun.get(at.name) or (_read_by(at) if isinstance(at, Source) else at.name)
        return f"{path}-{REKEYED}" if rekeyed else path


def _read_by(source: Source) -> str:
    """Give what the topics of a source are called in a path: the first one, or the words of their pattern."""
    if source.pattern is None:
        return source.topics[0]
    return "-".join([*_WORDS.findall(_CLASSES.sub(" ", source.pattern.pattern)), "pattern"])


def _clash(name: str) -> TopologyError:
    return TopologyError(
        f"{name!r} is the name of two things: one was given it, another one has none and would be called so after the topic it "
        "is behind. Give one of them another name"
    )
