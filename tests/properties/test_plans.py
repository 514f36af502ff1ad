"""Random topologies have consistent plans: every node is in one sub-topology, every partition in one task, and every shuffle is fed
by a sub-topology that runs before it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import CoPartitioningError
from millstream.core.topology.layout import lay_out
from millstream.core.topology.plan import Plan

from .engines import Visits


class Quiet(ms.Processor):
    def process(self, record: ms.Record) -> None:
        pass


@st.composite
def topologies(draw: st.DrawFn) -> ms.Topology:
    """Build step by step; a step may use any existing stream."""
    builder = ms.StreamsBuilder()
    streams: list[ms.KStream[Any, Any]] = [
        builder.stream(f"topic-{n}") for n in range(draw(st.integers(1, 3)))
    ]
    for number in range(draw(st.integers(2, 8))):
        first, second = draw(st.sampled_from(streams)), draw(st.sampled_from(streams))
        step = draw(
            st.sampled_from(["filter", "rekey", "merge", "repartition", "count", "process", "table", "out"])
        )
        if step == "filter":
            streams.append(first.filter(bool))
        elif step == "rekey":
            streams.append(first.select_key(lambda k, v: v))
        elif step == "merge":
            streams.append(first.merge(second))
        elif step == "repartition":
            partitions = draw(st.sampled_from([None, None, 3]))
            streams.append(first.repartition(name=f"moved-{number}", partitions=partitions))
        elif step == "count":
            streams.append(
                first.group_by_key(name=f"group-{number}").count(store=f"counts-{number}").to_stream()
            )
        elif step == "table":
            grouped = first.to_table(store=f"rows-{number}").group_by(
                lambda k, v: (v, k), name=f"regroup-{number}"
            )
            streams.append(grouped.count(store=f"groups-{number}").to_stream())
        elif step == "process":
            streams.append(first.process(Quiet))
        else:
            first.to(f"out-{number}")
    return builder.build()


def test_every_plan_is_consistent() -> None:
    visits = Visits()

    @settings(max_examples=300)
    @given(topologies(), st.lists(st.integers(1, 4), min_size=3, max_size=3))
    def is_consistent_plan(topology: ms.Topology, counts: list[int]) -> None:
        plan = topology.plan("app")
        check_parts(topology, plan)
        for topic in plan.internal_topics.values():
            upstream = plan.subtopologies[topic.upstream]
            visits["own repartition"] += topic.upstream == topic.downstream
            visits["shuffle" if topic.through_shuffle else "topic"] += 1
            assert not topic.through_shuffle or plan.runs_before_shuffle(upstream), topic.name
        check_layout(plan, {f"topic-{n}": count for n, count in enumerate(counts)}, visits)
        assert topology.describe().count("Sub-topology: ") == len(plan.subtopologies)

    is_consistent_plan()
    visits.demand(
        **{"own repartition": 3, "shuffle": 20, "topic": 20, "laid out": 50, "not co-partitioned": 3}
    )


def check_parts(topology: ms.Topology, plan: Plan) -> None:
    """Check that sub-topologies are disjoint: they share no node, edge or store."""
    names = [name for sub in plan.subtopologies for name in sub.nodes]
    assert len(names) == len(set(names))
    assert [sub.id for sub in plan.subtopologies] == list(range(len(plan.subtopologies)))
    for sub in plan.subtopologies:
        assert sub.sources
        assert all(parent in sub.nodes for node in sub.nodes.values() for parent in node.parents)
    stores = [store for sub in plan.subtopologies for store in sub.stores]
    assert sorted(stores) == sorted(topology.stores)
    assert set(plan.subtopology_of) == {*plan.external_topics, *plan.internal_topics}


def check_layout(plan: Plan, external: dict[str, int], visits: Visits) -> None:
    try:
        layout = lay_out(plan, external)
    except CoPartitioningError:
        visits["not co-partitioned"] += 1
        return
    visits["laid out"] += 1
    assert set(layout.partitions) == set(plan.subtopology_of)
    assert all(count >= 1 for count in layout.partitions.values())
    placed = sorted(partition for group in layout.tasks.values() for partition in group)
    assert placed == sorted((topic, n) for topic, count in layout.partitions.items() for n in range(count))
