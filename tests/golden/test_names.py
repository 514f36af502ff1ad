"""With `names="numbered"`, generated names are the same as in Kafka Streams 4.3.

`naming/DescribeNames.java` printed `naming/names.txt`: the descriptions of topologies that cover every operator.
`naming/names.py` builds the same topologies. Their nodes, stores and topics must have the same names. `DIFFERENT` lists all
exceptions, each with its reason.
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

    def names_missing_in(self, other: Named) -> set[str]:
        """Return the names that the other description does not have."""
        return {f"{name}" for own, others in zip(self, other) for name in own - others}


class Different(NamedTuple):
    """Names that only Kafka Streams or only Millstream has, as regular expressions."""

    theirs: str
    ours: str


ALWAYS_STORED = Different("", r".*-STATE-STORE-\d+|KTABLE-TRANSFORMVALUES-\d+-store")
"""A table that no operator looks up has a store, too: its old values are known, and it can be queried."""
COPY = Different("", r"KTABLE-\w+-\d+-store")
"""A separate node writes the copy of a derived table."""
WINDOWED = Different(r"KSTREAM-WINDOWED-\d+", "")
"""One node stores the records of a side and joins them."""
NULL_KEYS = Different(r"KSTREAM-FILTER-\d+", "")
"""An outer join has results for records without a key, so no filter drops them before the repartition."""
SHARED = Different(r"KSTREAM-(REDUCE-STATE-STORE|FILTER|SINK|SOURCE)-\d+(-repartition)?", "")
"""All aggregations of a grouping share one repartition topic."""
BUFFER = Different("", r"KSTREAM-JOIN-\d+-Buffer")
"""The buffer before a join is a separate node."""
ANSWERS = Different(r"KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-\d+", r"KTABLE-FK-JOIN-OUTPUT-STATE-STORE-\d+")
"""One node receives subscriptions and answers them."""
EXPLICIT = Different(
    r"(pairs|node|rich)-.*|KSTREAM-S\w+-\d+",
    r"(pairs|rich|by|counts)-.*|held-store-places|node|rich|KTABLE-FK-JOIN-.*",
)
"""Names derived from explicit names have other suffixes."""

DIFFERENT: dict[str, tuple[Different, ...]] = {
    "to_table": (ALWAYS_STORED,),
    "to_table_rekeyed": (ALWAYS_STORED,),
    "named_to_table": (ALWAYS_STORED,),
    "table": (ALWAYS_STORED,),
    "two_aggregations": (SHARED,),
    "stream_table_join_grace": (BUFFER,),
    "stream_join": (WINDOWED,),
    "stream_left_join": (WINDOWED,),
    "stream_outer_join": (WINDOWED,),
    "stream_join_rekeyed": (WINDOWED,),
    "stream_outer_join_rekeyed": (WINDOWED, NULL_KEYS),
    "stream_join_named": (WINDOWED, EXPLICIT),
    "stream_outer_join_named": (EXPLICIT,),
    "table_filter_and_map": (ALWAYS_STORED, COPY),
    "table_outer_join_store": (COPY,),
    "table_group_store": (EXPLICIT,),
    "table_aggregate": (EXPLICIT,),
    "transform_values": (ALWAYS_STORED, COPY),
    "transform_values_store": (ALWAYS_STORED, COPY),
    "named_suppress": (EXPLICIT,),
    "joined_twice": (WINDOWED,),
    "joined_with_itself": (WINDOWED,),
    "joined_and_grouped": (WINDOWED,),
    "named_ends": (ALWAYS_STORED,),
    "foreign_key_join": (ANSWERS,),
    "foreign_key_join_store": (ANSWERS,),
    "foreign_key_join_named": (EXPLICIT,),
}


def described(text: str) -> Named:
    """Return the names in a description."""
    stores, topics = (
        frozenset(name for names in re.findall(rf"{label}: \[([^\]]*)\]", text) for name in names.split(", "))
        for label in ("stores", "topics")
    )
    nodes = frozenset(re.findall(r"^\s+(?:Source|Processor|Sink): (\S+)", text, re.MULTILINE))
    return Named(nodes, stores - {""}, frozenset(topic.removeprefix("application-") for topic in topics))


def recorded() -> dict[str, Named]:
    """Return the names in Kafka Streams for each topology."""
    blocks = (block.partition("\n") for block in TEXT.split("# ")[1:])
    return {name: described(text) for name, _, text in blocks}


RECORDED = recorded()


def numbered(name: str) -> Named:
    builder = ms.StreamsBuilder(names="numbered")
    TOPOLOGIES[name](builder)
    return described(builder.build().describe())


def unexplained(names: set[str], patterns: list[str]) -> list[str]:
    return sorted(name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns))


def test_every_topology_is_recorded_and_built_in_the_same_order() -> None:
    assert list(RECORDED) == list(TOPOLOGIES)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_names_equal_those_of_kafka_streams_except_for_known_differences(name: str) -> None:
    theirs, ours, different = RECORDED[name], numbered(name), DIFFERENT.get(name, ())
    assert unexplained(theirs.names_missing_in(ours), [difference.theirs for difference in different]) == []
    assert unexplained(ours.names_missing_in(theirs), [difference.ours for difference in different]) == []


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
def test_every_known_difference_exists(name: str) -> None:
    theirs, ours = RECORDED[name], numbered(name)
    for difference in DIFFERENT[name]:
        unshared = theirs.names_missing_in(ours) | ours.names_missing_in(theirs)
        assert any(
            re.fullmatch(f"{difference.theirs}|{difference.ours}", own_name) for own_name in unshared
        ), difference


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_generated_node_names_do_not_depend_on_the_naming_of_state(name: str) -> None:
    builder = ms.StreamsBuilder()
    TOPOLOGIES[name](builder)
    stable = described(builder.build().describe()).nodes
    parts = re.compile(r".*-(filter|sink|source|process|process-values|transform(-store)?|buffer)")
    generated = {node for node in stable if not parts.fullmatch(node)}
    assert generated <= numbered(name).nodes
