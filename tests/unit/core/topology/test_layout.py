"""Layout: partition groups, co-partitioning, and the partition counts of internal topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

import millstream as ms
from millstream.core.model.errors import CoPartitioningError, TopicNotFoundError, TopologyError
from millstream.core.topology.layout import Layout, default_grouper, lay_out

STORE = ms.stores.key_value("shared", ms.serdes.string, ms.serdes.string)
P = ms.TopicPartition


class Quiet(ms.Processor):
    def process(self, record: ms.Record) -> None:
        pass


def two_topics(*, shared_store: bool) -> ms.Topology:
    """Return a topology of two sources, each with a processor, and a sink that connects them to one sub-topology."""
    topology = (
        ms.Topology()
        .add_source("a", "A")
        .add_source("b", "B")
        .add_processor("pa", Quiet, "a")
        .add_processor("pb", Quiet, "b")
        .add_sink("out", "O", ["pa", "pb"])
    )
    return topology.add_state_store(STORE, processors=["pa", "pb"]) if shared_store else topology


def tasks(layout: Layout) -> dict[str, list[str]]:
    return {str(task): sorted(map(str, group)) for task, group in layout.tasks.items()}


class TestDefaultGrouper:
    def test_groups_partitions_with_the_same_number(self) -> None:
        groups = default_grouper({"a": 3, "b": 1})
        assert groups == [{P("a", 0), P("b", 0)}, {P("a", 1)}, {P("a", 2)}]

    def test_returns_no_groups_without_topics(self) -> None:
        assert default_grouper({}) == []

    def test_results_in_one_task_per_group(self) -> None:
        layout = lay_out(two_topics(shared_store=False).plan(), {"A": 2, "B": 3, "unrelated": 9})
        assert tasks(layout) == {"0_0": ["A-0", "B-0"], "0_1": ["A-1", "B-1"], "0_2": ["B-2"]}
        assert layout.partitions == {"A": 2, "B": 3}
        assert layout.tasks_of[P("B", 2)] == (ms.TaskId(0, 2),)


class TestCustomGrouper:
    def test_decides_the_tasks(self) -> None:
        def single_group(partitions: Mapping[str, int]) -> Sequence[frozenset[ms.TopicPartition]]:
            return [frozenset(P(t, n) for t, count in partitions.items() for n in range(count))]

        layout = lay_out(two_topics(shared_store=False).plan(), {"A": 2, "B": 1}, single_group)
        assert tasks(layout) == {"0_0": ["A-0", "A-1", "B-0"]}

    @pytest.mark.parametrize(
        "groups",
        [
            [],
            [{P("A", 0)}],
            [{P("A", 0), P("B", 0)}, {P("A", 0)}],
            [{P("A", 0), P("B", 0), P("C", 0)}],
            [{P("A", 0), P("B", 1)}],
        ],
        ids=["nothing", "lost", "repeated", "foreign", "wrong number"],
    )
    def test_must_return_each_partition_exactly_once(self, groups: list[set[ms.TopicPartition]]) -> None:
        with pytest.raises(
            TopologyError,
            match=r"each partition of sub-topology 0 into exactly one group; it received .*'A': 1.* returned ",
        ):
            lay_out(
                two_topics(shared_store=False).plan(),
                {"A": 1, "B": 1},
                lambda _: [frozenset(g) for g in groups],
            )


class TestExternalTopics:
    def test_missing_topics_are_all_named_in_one_error(self) -> None:
        with pytest.raises(
            TopicNotFoundError,
            match=r"reads topics that do not exist on the broker: 'A', 'B'.*kafka-topics --create --topic A --partitions 4",
        ):
            lay_out(two_topics(shared_store=True).plan(), {"O": 1})

    def test_topics_that_use_one_store_need_equal_partition_counts(self) -> None:
        with pytest.raises(
            CoPartitioningError,
            match=r"use the same store of sub-topology 0.*'A' has 2, 'B' has 3\. Add repartition\(partitions=\.\.\.\) to",
        ):
            lay_out(two_topics(shared_store=True).plan(), {"A": 2, "B": 3})

    def test_topics_without_a_common_store_may_have_different_partition_counts(self) -> None:
        assert len(lay_out(two_topics(shared_store=False).plan(), {"A": 2, "B": 3}).tasks) == 3

    def test_copartitioning_is_checked_through_intermediate_nodes(self) -> None:
        builder = ms.StreamsBuilder()
        merged = builder.stream("A").filter(lambda k, v: True).merge(builder.stream("B"))
        merged.map_values(lambda v: v).group_by_key().count(store="counts")
        with pytest.raises(CoPartitioningError):
            lay_out(builder.build().plan(), {"A": 1, "B": 2})


def internal_partition_counts(
    define: Callable[[ms.StreamsBuilder], None], external: Mapping[str, int]
) -> Mapping[str, int]:
    builder = ms.StreamsBuilder()
    define(builder)
    layout = lay_out(builder.build().plan("app"), external)
    return {name: count for name, count in layout.partitions.items() if name not in external}


class TestInternalTopics:
    def test_have_the_largest_partition_count_upstream(self) -> None:
        def define(builder: ms.StreamsBuilder) -> None:
            builder.stream(["A", "B"]).group_by(lambda k, v: v).count(store="counts")

        assert internal_partition_counts(define, {"A": 2, "B": 5}) == {"app-counts-repartition": 5}

    def test_have_the_requested_partition_count(self) -> None:
        def define(builder: ms.StreamsBuilder) -> None:
            builder.stream("A").repartition(name="wide", partitions=7).to("out")

        assert internal_partition_counts(define, {"A": 2}) == {"app-wide-repartition": 7}

    def test_pass_their_partition_count_downstream(self) -> None:
        def define(builder: ms.StreamsBuilder) -> None:
            wide = builder.stream("A").repartition(name="wide", partitions=7)
            wide.group_by(lambda k, v: v).count(store="counts")

        assert internal_partition_counts(define, {"A": 2}) == {
            "app-wide-repartition": 7,
            "app-counts-repartition": 7,
        }

    def test_have_the_partition_count_of_topics_that_use_the_same_store(self) -> None:
        def define(builder: ms.StreamsBuilder) -> None:
            builder.add_state_store(STORE)
            builder.stream("B").process(Quiet, stores=["shared"])
            builder.stream("A").repartition(name="moved").process(Quiet, stores=["shared"])

        assert internal_partition_counts(define, {"A": 2, "B": 3}) == {"app-moved-repartition": 3}

    @pytest.mark.parametrize("sources", [{"a": 2, "b": 5}, {"a": 5, "b": 2}])
    def test_that_are_joined_have_the_largest_partition_count_upstream_of_both(
        self, sources: dict[str, int]
    ) -> None:
        builder = ms.StreamsBuilder()
        left, right = (builder.stream(topic).select_key(lambda k, v: v) for topic in "ab")
        near = ms.JoinWindows(before=1, after=1, grace=0)
        left.join(right, lambda x, y: x, windows=near, name="j").to("out")
        counts = lay_out(builder.build().plan("app"), sources).partitions
        assert counts["app-j-left-repartition"] == counts["app-j-right-repartition"] == 5

    def test_have_counts_that_do_not_depend_on_the_order_of_creation(self) -> None:
        def define(builder: ms.StreamsBuilder) -> None:
            first = builder.stream("A").repartition(name="first")
            first.map(lambda k, v: (v, k)).group_by_key().count(
                store="counts"
            )  # before its sub-topology reads `second`
            first.merge(builder.stream("B").repartition(name="second")).to("out")

        assert internal_partition_counts(define, {"A": 2, "B": 3}) == {
            "app-first-repartition": 2,
            "app-second-repartition": 3,
            "app-counts-repartition": 3,
        }

    def test_that_feed_their_own_subtopology_have_the_count_of_its_other_topics(self) -> None:
        def define(builder: ms.StreamsBuilder) -> None:
            stream = builder.stream("A")
            stream.merge(stream.repartition(name="again")).to("out")

        assert internal_partition_counts(define, {"A": 2}) == {"app-again-repartition": 2}


def test_a_repartition_keeps_its_partition_count_when_partitions_are_added_upstream() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("lines").group_by(lambda k, v: v).count(store="counts")
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"lines": 6}, previous={"app-counts-repartition": 4})
    assert layout.partitions == {"lines": 6, "app-counts-repartition": 4}
    assert sorted(map(str, layout.tasks))[-1] == "1_3"
