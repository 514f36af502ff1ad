"""With `names="numbered"` everything generated is called as Kafka Streams 4.3 calls it.

`naming/names.txt` is what `naming/DescribeNames.java` prints: the descriptions of topologies that cover every operator.
`naming/names.py` builds the same. Nodes, stores and topics must be the same by name. What cannot be is in `DIFFERENT`, each
with its reason, and nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import millstream as ms

from .naming.names import TOPOLOGIES

TEXT = (Path(__file__).parent / "naming" / "names.txt").read_text()


class Named(NamedTuple):
    """The names in a description of a topology."""

    nodes: frozenset[str]
    stores: frozenset[str]
    topics: frozenset[str]

    def but(self, other: Named) -> set[str]:
        """Return the names that the other does not have."""
        return {f"{name}" for kept, left in zip(self, other) for name in kept - left}


class Different(NamedTuple):
    """Names that only one of both has, as regular expressions."""

    theirs: str
    ours: str


UNKEPT = Different("", r".*-STATE-STORE-\d+|KTABLE-TRANSFORMVALUES-\d+-store")
"""A table that nothing looks up is kept all the same: old values are known, and it can be queried."""
COPY = Different("", r"KTABLE-\w+-\d+-store")
"""The copy of a derived table is a node of its own."""
WINDOWED = Different(r"KSTREAM-WINDOWED-\d+", "")
"""One node puts the records of a side into their store and joins them."""
NULL_KEYS = Different(r"KSTREAM-FILTER-\d+", "")
"""An outer join has results for records without a key, so they cross the repartition."""
SHARED = Different(r"KSTREAM-(REDUCE-STATE-STORE|FILTER|SINK|SOURCE)-\d+(-repartition)?", "")
"""A grouping is repartitioned once, however many aggregations there are."""
BUFFER = Different("", r"KSTREAM-JOIN-\d+-Buffer")
"""The buffer in front of a join is a node of its own."""
ANSWERS = Different(r"KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-\d+", r"KTABLE-FK-JOIN-OUTPUT-STATE-STORE-\d+")
"""One node receives subscriptions and answers them."""
GIVEN = Different(
    r"(pairs|node|rich)-.*|KSTREAM-S\w+-\d+",
    r"(pairs|rich|by|counts)-.*|held-store-places|node|rich|KTABLE-FK-JOIN-.*",
)
"""Names that follow from given ones have endings of their own."""

DIFFERENT: dict[str, tuple[Different, ...]] = {
    "to_table": (UNKEPT,),
    "to_table_rekeyed": (UNKEPT,),
    "named_to_table": (UNKEPT,),
    "table": (UNKEPT,),
    "two_aggregations": (SHARED,),
    "stream_table_join_grace": (BUFFER,),
    "stream_join": (WINDOWED,),
    "stream_left_join": (WINDOWED,),
    "stream_outer_join": (WINDOWED,),
    "stream_join_rekeyed": (WINDOWED,),
    "stream_outer_join_rekeyed": (WINDOWED, NULL_KEYS),
    "stream_join_named": (WINDOWED, GIVEN),
    "stream_outer_join_named": (GIVEN,),
    "table_filter_and_map": (UNKEPT, COPY),
    "table_outer_join_store": (COPY,),
    "table_group_store": (GIVEN,),
    "table_aggregate": (GIVEN,),
    "transform_values": (UNKEPT, COPY),
    "transform_values_store": (UNKEPT, COPY),
    "named_suppress": (GIVEN,),
    "joined_twice": (WINDOWED,),
    "joined_with_itself": (WINDOWED,),
    "joined_and_grouped": (WINDOWED,),
    "named_ends": (UNKEPT,),
    "foreign_key_join": (ANSWERS,),
    "foreign_key_join_store": (ANSWERS,),
    "foreign_key_join_named": (GIVEN,),
}


def described(text: str) -> Named:
    """Parse a description."""
    stores, topics = (
        frozenset(name for names in re.findall(rf"{label}: \[([^\]]*)\]", text) for name in names.split(", "))
        for label in ("stores", "topics")
    )
    nodes = frozenset(re.findall(r"^\s+(?:Source|Processor|Sink): (\S+)", text, re.MULTILINE))
    return Named(nodes, stores - {""}, frozenset(topic.removeprefix("application-") for topic in topics))


def recorded() -> dict[str, Named]:
    """Return the names in Kafka Streams, by topology."""
    blocks = (block.partition("\n") for block in TEXT.split("# ")[1:])
    return {name: described(text) for name, _, text in blocks}


RECORDED = recorded()


def numbered(name: str) -> Named:
    builder = ms.StreamsBuilder(names="numbered")
    TOPOLOGIES[name](builder)
    return described(builder.build().describe())


def unexplained(names: set[str], patterns: list[str]) -> list[str]:
    return sorted(name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns))


def test_every_topology_is_in_both() -> None:
    assert list(RECORDED) == list(TOPOLOGIES)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_everything_has_the_name_that_kafka_streams_gives(name: str) -> None:
    theirs, ours, different = RECORDED[name], numbered(name), DIFFERENT.get(name, ())
    assert unexplained(theirs.but(ours), [each.theirs for each in different]) == []
    assert unexplained(ours.but(theirs), [each.ours for each in different]) == []


def in_order(text: str) -> set[tuple[str, ...]]:
    """Return the nodes of each sub-topology in the order of a description."""
    parts = text.split("Sub-topology:")[1:]
    return {tuple(re.findall(r"^\s+(?:Source|Processor|Sink): (\S+)", part, re.MULTILINE)) for part in parts}


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if name not in DIFFERENT])
def test_nodes_are_described_in_the_order_of_kafka_streams(name: str) -> None:
    text = next(block for block in TEXT.split("# ")[1:] if block.startswith(f"{name}\n"))
    builder = ms.StreamsBuilder(names="numbered")
    TOPOLOGIES[name](builder)
    assert in_order(builder.build().describe()) == in_order(text)


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_is_said_to_be_different_is(name: str) -> None:
    theirs, ours = RECORDED[name], numbered(name)
    for each in DIFFERENT[name]:
        only = theirs.but(ours) | ours.but(theirs)
        assert any(re.fullmatch(f"{each.theirs}|{each.ours}", found) for found in only), each


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_nodes_have_the_same_names_whatever_state_is_called(name: str) -> None:
    builder = ms.StreamsBuilder()
    TOPOLOGIES[name](builder)
    stable = described(builder.build().describe()).nodes
    parts = re.compile(r".*-(filter|sink|source|process|process-values|transform(-store)?|buffer)")
    generated = {node for node in stable if not parts.fullmatch(node)}
    assert generated <= numbered(name).nodes
