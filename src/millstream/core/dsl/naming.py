"""Naming: the names of operators and their state if the program specifies none.

Nodes are numbered, as in Kafka Streams (``KSTREAM-FILTER-0000000003``). Nothing is looked up by these numbers, so an edit may change
them. The *state* of an operator is looked up by name after a restart: its stores with the data beside them, its internal topics, and the
schedules of a processor. The *naming* of the builder determines the names of state that has no name in the program:

``"stable"``
    A *path*: the topic upstream of the operator, the aggregations and joins in between, and the operation itself, as in
    ``orders-count``. A path identifies the origin of the data and what they are keyed by, but does not depend on the number of
    operators in between: filters, mappings of values, branches, merges, lookups in tables and suppressions do not appear in it. After
    an operator that may have changed the keys, the path continues with ``rekeyed``, because state by other keys is different state. The
    name of an operator or a store in the program begins a new path. A pattern of topics contributes its words: ``orders-.*`` becomes
    ``orders-pattern``. Repeated names are numbered in program order: ``orders-count-2``.

``"numbered"``
    The number of the operator in the program, exactly as in Kafka Streams (``KSTREAM-AGGREGATE-STATE-STORE-0000000002``).
    Inserting an operator upstream changes these names.

Like Kafka Streams, this module counts some names that are never used; see docs/decisions/0040-stable-names-for-stores-and-topics.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Literal, get_args

from millstream.core.model.errors import TopologyError
from millstream.core.model.topics import checked_name
from millstream.core.topology.global_nodes import GlobalTable
from millstream.core.topology.nodes import Node, Repartition, Source
from millstream.core.topology.topology import Topology

Naming = Literal["stable", "numbered"]
"""How to name state that has no name in the program."""

REKEYED: Final = "rekeyed"
"""The part of a path that marks changed keys."""

_WORDS: Final = re.compile("[A-Za-z0-9_]+")
_CLASSES: Final = re.compile(r"\\[A-Za-z]")
"""Escaped letters in a pattern, such as ``\\d``, which do not match themselves."""

_LONGEST: Final = 200
"""Maximum length of a generated name. A topic name may have 249 characters, including the application id and a suffix."""


class Names:
    """The names of one topology under construction.

    Raises:
        TopologyError: If the naming is unknown.

    Attributes:
        generated: The generated names of state and of internal topics.
    """

    def __init__(self, naming: Naming) -> None:
        if naming not in get_args(Naming):
            raise TopologyError(f"names must be 'stable' or 'numbered', not {naming!r}")
        self.numbered = naming == "numbered"
        self.generated: set[str] = set()
        self._count = 0
        self._times: Counter[str] = Counter()
        self._reserved: set[str] = set()
        self._path_at: dict[str, str] = {}

    # Nodes.

    def node(self, kind: str, given: str | None = None) -> str:
        """Return the name of a node: the given name, which begins a path, or a numbered one. Both use up a number."""
        numbered = f"{kind}-{self._next_number()}"
        if given is None:
            return numbered
        return self.uncounted(given)

    def uncounted(self, given: str) -> str:
        """Return the given name of a node without using up a number."""
        self._path_at[given] = checked_name(given, "node")
        return given

    def store(self, kind: str) -> str:
        """Return the numbered name of a store, which uses up a number (``newStoreName``)."""
        return f"{kind}-STATE-STORE-{self._next_number()}"

    def _next_number(self) -> str:
        number = self._count
        self._count += 1
        return f"{number:010d}"

    # State.

    def generate(self, numbered: str, path: str) -> str:
        """Return a generated name for state.

        Raises:
            TopologyError: If the program uses the name for something else, or the name is too long.
        """
        if self.numbered:
            name = numbered
        else:
            self._times[path] += 1
            name = path if self._times[path] == 1 else f"{path}-{self._times[path]}"
        if len(name) > _LONGEST:
            raise TopologyError(
                f"the path {name[:60]!r}... results in a name of {len(name)} characters, but a topic name may have at "
                f"most {_LONGEST}. Set name='...' on an upstream operator: the path then starts there"
            )
        self._add_generated(name)
        return name

    def _add_generated(self, name: str) -> None:
        if name in self._reserved:
            raise _clash(name)
        self.generated.add(name)

    def part(self, whole: str, suffix: str) -> str:
        """Return a name with a suffix. The result counts as generated if the name is generated.

        Raises:
            TopologyError: If the program uses the result for something else.
        """
        name = whole + suffix
        if whole in self.generated:
            self._add_generated(name)
        return name

    def reserve(self, name: str) -> None:
        """Reserve the name of a store in the program.

        Raises:
            TopologyError: If the name was generated for another store.
        """
        if name in self.generated:
            raise _clash(name)
        self._reserved.add(name)

    # Paths.

    def begin(self, node: str, path: str) -> None:
        """Begin a path at a node."""
        self._path_at[node] = path

    def path(self, nodes: Mapping[str, Node], node: str, *, rekeyed: bool = False) -> str:
        """Return the path of a node's output. If a node has several parents, the path follows the first.

        Args:
            nodes: The nodes so far.
            node: The node.
            rekeyed: Whether keys were changed on the way and no state exists by the new keys yet.
        """
        start = nodes[node]
        while start.name not in self._path_at and not isinstance(start, Source):
            start = nodes[start.parents[0]]
        path = self._path_at.get(start.name) or (_path_of(start) if isinstance(start, Source) else start.name)
        return f"{path}-{REKEYED}" if rekeyed else path


def _path_of(source: Source) -> str:
    """Return the path of a source: its first topic, or the words of its pattern."""
    if source.pattern is None:
        return source.topics[0]
    return "-".join([*_WORDS.findall(_CLASSES.sub(" ", source.pattern.pattern)), "pattern"])


def _clash(name: str) -> TopologyError:
    return TopologyError(
        f"{name!r} would be the name of two things: of one because you set it, of the other because it is generated from "
        "its path. Set another name on one of them"
    )


def check_explicit_names(topology: Topology, generated: Collection[str]) -> None:
    """Reject a topology with generated names.

    Global tables need no names, because they are filled from their topics whatever their stores are called.

    Raises:
        TopologyError: If a store or an internal topic has a generated name. The message lists each one, with its operator and the
            argument that sets the name.
    """
    unnamed = [*_stores(topology.nodes, generated), *_topics(topology.nodes, generated)]
    if unnamed:
        listed = "\n  ".join(unnamed)
        raise TopologyError(
            "build(explicit_names=True) requires explicit names, but these names would be generated, and may change "
            f"when the program is edited:\n  {listed}"
        )


def _stores(nodes: Mapping[str, Node], generated: Collection[str]) -> Iterator[str]:
    seen: set[str] = set()
    for node in nodes.values():
        for store in () if isinstance(node, GlobalTable) else node.store_names:
            if store in generated and store not in seen:
                seen.add(store)
                advice = "give the operator store='...' (a join also takes name='...')"
                yield f"store {store!r} of operator {node.name}, {_downstream_of_topics(nodes, node)}: {advice}"


def _topics(nodes: Mapping[str, Node], generated: Collection[str]) -> Iterator[str]:
    for node in nodes.values():
        if isinstance(node, Repartition) and node.topic_name in generated:
            advice = "give the grouping, the repartition or the join name='...'"
            yield f"internal topic {node.topic_name!r}, {_downstream_of_topics(nodes, node)}: {advice}"


def _downstream_of_topics(nodes: Mapping[str, Node], node: Node) -> str:
    topics = dict.fromkeys(_topics_read(nodes, node))
    return f"downstream of topic{'s' if len(topics) > 1 else ''} {', '.join(map(repr, topics))}"


def _topics_read(nodes: Mapping[str, Node], node: Node) -> Iterator[str]:
    if isinstance(node, Source):
        yield from node.topics if node.pattern is None else [node.pattern.pattern]
    for parent in node.parents:
        yield from _topics_read(nodes, nodes[parent])
