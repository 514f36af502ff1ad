"""Edits that change how records reach tasks: each edit continues with its state, or is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.records.queue import QueueId
from millstream.core.engine.step_outcome import Snapshot
from millstream.core.model.errors import CoPartitioningError, IncompatibleTopologyError
from millstream.core.model.ids import TopicPartition
from millstream.core.model.partitioning import partition_of
from millstream.core.model.record import Records
from millstream.core.ports import BatchId, PartitionGrouper
from millstream.core.runtime.batch_plan import BatchPlan, Initialization
from millstream.core.state.segments.log import Manifest, encode_manifest
from millstream.core.topology.layout import Layout, default_grouper
from millstream.core.topology.topology import Topology
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress
from millstream.drivers.spark.executor.snapshots import snapshot_to_json
from millstream.drivers.spark.spec import TopologySpec
from millstream.edge.checkpoint.continuity import Continuity, check_held, check_interrupted, continuity

Partitions = Mapping[str, int]
NEAR = ms.JoinWindows(before=5, after=5, grace=5)
Build = Callable[[ms.StreamsBuilder], object]


def halves(partitions: Partitions) -> Sequence[frozenset[TopicPartition]]:
    return _two_groups(partitions, lambda number, count: number < count / 2)


def parity(partitions: Partitions) -> Sequence[frozenset[TopicPartition]]:
    return _two_groups(partitions, lambda number, count: number % 2 == 0)


def pairs(partitions: Partitions) -> Sequence[frozenset[TopicPartition]]:
    """Group partitions in pairs: a topic that grows creates new groups."""
    widest = range((max(partitions.values()) + 1) // 2)
    return [
        frozenset(TopicPartition(t, p) for t, n in partitions.items() for p in range(n) if p // 2 == group)
        for group in widest
    ]


def _two_groups(
    partitions: Partitions, first: Callable[[int, int], bool]
) -> Sequence[frozenset[TopicPartition]]:
    every = [(TopicPartition(t, p), first(p, n)) for t, n in partitions.items() for p in range(n)]
    return [
        frozenset(partition for partition, is_first in every if is_first is in_first)
        for in_first in (True, False)
    ]


def by_region(topic: str, key: Any, value: Any, partitions: int) -> int:
    return 0


def by_customer(topic: str, key: Any, value: Any, partitions: int) -> int:
    return 0


class Quiet(ms.Processor[Any, Any, Any, Any]):
    def process(self, record: ms.Record[Any, Any]) -> None:
        pass


@dataclass(frozen=True)
class Program:
    """A topology with the partitions that exist on the broker."""

    build: Build
    partitions: Partitions = field(default_factory=lambda: {"in": 4, "other": 4, "wide": 8})
    grouper: PartitionGrouper = default_grouper
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        builder = ms.StreamsBuilder()
        self.build(builder)
        return builder.build()

    def plan(self) -> Any:
        return self.topology.plan("app", existing=self.partitions)

    def continuing(self, checkpoint: CheckpointProgress | None) -> tuple[Continuity, Layout]:
        found = continuity(self.plan(), checkpoint, self.renamed, exactly_once=False)
        return found, found.laid_out(self.partitions, self.grouper)

    def checkpoint(self, before: CheckpointProgress | None = None) -> CheckpointProgress:
        """Return the checkpoint that the program leaves behind."""
        found, layout = self.continuing(before)
        spec = TopologySpec(found.plan, layout, {}, ErrorPolicies(), {}, found.lineage(layout, {}))
        positions = {
            topic: dict.fromkeys(range(layout.partitions[topic]), 9) for topic in found.plan.broker_topics
        }
        plan = BatchPlan(BatchId("x", 1), spec.remembered(positions))
        kept: dict[str, Any] = json.loads(json.dumps(plan.to_json()))
        return CheckpointProgress(3, True, False, 2, kept, kept, 3)


def program(build: Build, grouper: PartitionGrouper = default_grouper, /, **partitions: int) -> Program:
    known = {"in": 4, "other": 4, "wide": 8, **partitions}
    return Program(build, known, grouper)


def counted(
    transform: Callable[[Any], Any] = lambda stream: stream,
    topic: str = "in",
    store: str = "c",
    then: str = "o",
) -> Build:
    """Count the records of a topic by key, with an operation in front."""

    def build(builder: ms.StreamsBuilder) -> None:
        transform(builder.stream(topic)).group_by_key().count(store=store).to_stream().to(then)

    return build


def wide(partitions: int | None = None, name: str = "w", **options: Any) -> Callable[[Any], Any]:
    return lambda stream: stream.repartition(partitions=partitions, name=name, **options)


def regrouped(builder: ms.StreamsBuilder) -> None:
    builder.stream("in").group_by(lambda k, v: v).count(store="c").to_stream().to("o")


def through_kafka(builder: ms.StreamsBuilder) -> None:
    """Repartition behind a processor, which needs a topic for that."""
    quiet_stream = builder.stream("in").process(Quiet)
    quiet_stream.repartition(partitions=4, name="w").group_by_key().count(store="c").to_stream().to("o")


def joined(left: Callable[[Any], Any], right: Callable[[Any], Any]) -> Build:
    def build(builder: ms.StreamsBuilder) -> None:
        first, second = left(builder.stream("in")), right(builder.stream("other"))
        first.join(second, lambda a, b: a, windows=NEAR, name="j").to("o")

    return build


def unchanged(stream: Any) -> Any:
    return stream


def merged(*topics: str) -> Build:
    def build(builder: ms.StreamsBuilder) -> None:
        first, *others = [builder.stream(topic) for topic in topics]
        for other in others:
            first = first.merge(other)
        first.group_by_key().count(store="c").to_stream().to("o")

    return build


def by_pattern(builder: ms.StreamsBuilder) -> None:
    builder.stream(re.compile("y-.*")).group_by_key().count(store="c").to_stream().to("o")


def foreign(**options: Any) -> Build:
    def build(builder: ms.StreamsBuilder) -> None:
        left, right = builder.table("in", store="l"), builder.table("other", store="r")
        left.join(right, lambda a, b: a, on=lambda value: value, store="j", **options).to_stream().to("o")

    return build


def enriched(transform: Callable[[Any], Any] = unchanged) -> Build:
    """Join with a global table, beside the counts."""

    def build(builder: ms.StreamsBuilder) -> None:
        known = builder.global_table("wide", store="g")
        stream = builder.stream("in").join(known, lambda k, v: k, lambda a, b: a)
        transform(stream).group_by_key().count(store="c").to_stream().to("o")

    return build


def with_calls(transform: Callable[[Any], Any]) -> Build:
    return lambda builder: transform(builder.stream("in")).map_values_async(str.upper, name="call").to("o")


def stateless(transform: Callable[[Any], Any] = unchanged) -> Build:
    return lambda builder: transform(builder.stream("in")).map_values(str.upper).to("o")


def quiet(transform: Callable[[Any], Any] = unchanged) -> Build:
    return lambda builder: transform(builder.stream("in")).process(Quiet).to("o")


def two_counts(transform: Callable[[Any], Any]) -> Build:
    """Two stores in one sub-topology, one of them with an operation in front."""

    def build(builder: ms.StreamsBuilder) -> None:
        first = builder.stream("in").group_by_key().count(store="c").to_stream()
        second = transform(builder.stream("other")).group_by_key().count(store="d").to_stream()
        first.merge(second).to("o")

    return build


REFUSED = {
    "a repartition is put in front": (program(counted()), program(counted(wide(8))), "'c'.*'in' by its 4 partitions.*'app-w-repartition' by key over 8 partitions"),
    "in front of a topic with one partition": (program(counted(), **{"in": 1}), program(counted(wide(8)), **{"in": 1}), "'in' by its 1 partitions"),
    "with as many partitions": (program(counted()), program(counted(wide(4))), "by key over 4 partitions"),
    "with the number taken from the topic": (program(counted()), program(counted(wide())), "by key over 4 partitions"),
    "a repartition is taken out": (program(counted(wide(8))), program(counted()), "by key over 8 partitions and would come from 'in'"),
    "its number changes": (program(counted(wide(8))), program(counted(wide(4))), r"'app-w-repartition' had 8 partitions and would have 4.*repartition\(partitions=8\)"),
    "its number and its name change": (program(counted(wide(8))), program(counted(wide(4, "v"))), "over 8 partitions and would come from 'app-v-repartition' by key over 4"),
    "a derived number changes with the name, because the topic grew": (program(counted(wide())), program(counted(wide(None, "v")), **{"in": 6}), "over 4 partitions.* over 6"),
    "group_by becomes group_by_key": (program(regrouped), program(counted()), "'app-c-repartition' by key.* 'in' by its 4"),
    "group_by_key becomes group_by": (program(counted()), program(regrouped), "'in' by its 4.* 'app-c-repartition' by key"),
    "another topic has another number of partitions": (program(counted()), program(counted(topic="wide")), "'in' by its 4.*'wide' by its 8"),
    "a partitioner is given": (program(counted(wide(4))), program(counted(wide(4, partitioner=by_region))), "by key and would choose them by partitioner by_region"),
    "a partitioner is taken away": (program(counted(wide(4, partitioner=by_region))), program(counted(wide(4))), "by partitioner by_region and would choose them by key"),
    "a partitioner is another": (program(counted(wide(4, partitioner=by_region))), program(counted(wide(4, partitioner=by_customer))), "by_region and .* by_customer"),
    "a partitioner is another, and the name": (program(counted(wide(4, partitioner=by_region))), program(counted(wide(4, "v", partitioner=by_customer))), "by_region over 4"),
    "both sides of a join get a repartition": (program(joined(unchanged, unchanged)), program(joined(wide(8), wide(8, "v"))), "'j-.*over 8"),
    "both sides of a join lose it": (program(joined(wide(8), wide(8, "v"))), program(joined(unchanged, unchanged)), "'j-"),
    "a store is renamed together with the routing": (program(counted()), Program(counted(wide(8), store="d"), renamed={"c": "d"}), "'d'.* over 8"),
    "a store with a repartition of its name is renamed": (program(regrouped), Program(counted(wide(8, "d"), store="d"), renamed={"c": "d"}), "'app-d-repartition' had 4 partitions and would have 8"),
    "one of two stores in a part": (program(two_counts(unchanged)), program(two_counts(wide(8))), "store 'd'"),
    "an asynchronous operator": (program(with_calls(unchanged)), program(with_calls(wide(8))), "'call-unfinished'.* the operator that keeps it, a new name"),
    "foreign keys: the partitioner of the other table": (program(foreign()), program(foreign(other_partitioner=lambda key, n: 0)), "'app-j-subscription-registration-repartition'.*by partitioner <lambda>"),
    "foreign keys: the partitioner of this table": (program(foreign()), program(foreign(partitioner=lambda key, n: 0)), "by partitioner"),
    "in front of counts beside a global table": (program(enriched()), program(enriched(wide(8))), "'c'"),
    "another grouper": (program(counted(), halves), program(counted(), parity), "partition 1 of 'in' was in task 0 .* in task 1"),
    "a grouper in place of the default": (program(counted()), program(counted(), halves), "partition 1 of 'in' was in task 1 .* in task 0"),
    "the default in place of a grouper": (program(counted(), halves), program(counted()), "partition 1 of 'in' was in task 0 .* in task 1"),
    "a topic grows under a grouper": (program(counted(), halves), program(counted(), halves, **{"in": 6}), "partition 2 of 'in' was in task 1 .* in task 0"),
    "another grouper of a repartition": (program(counted(wide(4)), halves), program(counted(wide(4)), parity), "partition 1 of 'app-w-repartition'"),
    "another grouper, and another topic": (program(counted(), halves), program(counted(topic="other"), parity), "'in' by its 4 .* 'other' by its 4"),
}  # fmt: skip

CONTINUES = {
    "nothing changes": (program(counted()), program(counted())),
    "a repartition stays": (program(counted(wide(8))), program(counted(wide(8)))),
    "a repartition gets another name": (program(counted(wide(8))), program(counted(wide(8, "v")))),
    "a repartition goes through a topic": (program(counted(wide(4))), program(through_kafka)),
    "a repartition goes through the shuffle": (program(through_kafka), program(counted(wide(4)))),
    "a derived number stays when the topic grows": (program(counted(wide())), program(counted(wide()), **{"in": 6})),
    "a derived number is written down": (program(counted(wide())), program(counted(wide(4)))),
    "a topic grows": (program(counted()), program(counted(), **{"in": 6})),
    "a topic is made again with fewer": (program(counted()), program(counted(), **{"in": 2})),
    "a topic grows under a grouper that makes new groups": (program(counted(), pairs), program(counted(), pairs, **{"in": 7})),
    "new partitions join the groups there are": (program(counted(), parity), program(counted(), parity, **{"in": 6})),
    "another topic with as many partitions": (program(counted()), program(counted(topic="other"))),
    "a topic is merged": (program(merged("in")), program(merged("in", "other"))),
    "a merged topic goes": (program(merged("in", "other")), program(merged("other"))),
    "a pattern finds other topics": (program(by_pattern, **{"y-1": 4}), program(by_pattern, **{"y-2": 8})),
    "a pattern finds its first topic": (program(by_pattern), program(by_pattern, **{"y-2": 8})),
    "one side of a join is re-keyed": (program(joined(unchanged, unchanged)), program(joined(unchanged, wide()))),
    "both topics of a join grow": (program(joined(unchanged, unchanged)), program(joined(unchanged, unchanged), **{"in": 6, "other": 6})),
    "a store gets a new name with the routing": (program(counted()), program(counted(wide(8), store="d"))),
    "a store gets a new name with the number": (program(counted(wide(8))), program(counted(wide(4), store="d"))),
    "a store is renamed": (program(regrouped), Program(lambda b: b.stream("in").group_by(lambda k, v: v).count(store="d").to_stream().to("o"), renamed={"c": "d"})),
    "foreign keys": (program(foreign()), program(foreign())),
    "a partitioner stays": (program(counted(wide(4, partitioner=by_region))), program(counted(wide(4, partitioner=by_region)))),
    "a global table grows": (program(enriched()), program(enriched(), wide=16)),
    "a global table comes": (program(counted()), program(enriched())),
    "a stateless part behind nothing": (program(stateless()), program(stateless(wide(8)))),
    "a stateless part behind a repartition": (program(stateless(wide(8))), program(stateless(wide(4)))),
    "a stateless part under another grouper": (program(stateless(), halves), program(stateless(), parity)),
    "a processor without stores": (program(quiet()), program(quiet(wide(8)))),
    "a part in front of the state": (program(counted(wide(8)), **{"in": 3}), program(counted(lambda s: wide(8)(s.filter(lambda k, v: v))), **{"in": 6})),
}  # fmt: skip


@pytest.mark.parametrize(("before", "now", "message"), REFUSED.values(), ids=REFUSED)
def test_an_edit_that_separates_records_from_their_state_is_refused(
    before: Program, now: Program, message: str
) -> None:
    checkpoint = before.checkpoint()
    with pytest.raises(IncompatibleTopologyError, match=message) as error:
        now.continuing(checkpoint)
    assert "new name" in str(error.value)
    assert "millstream reset" in str(error.value)
    before.continuing(before.checkpoint(checkpoint))  # undoing the edit is always possible


@pytest.mark.parametrize(("before", "now"), CONTINUES.values(), ids=CONTINUES)
def test_an_edit_that_keeps_records_with_their_state_continues(before: Program, now: Program) -> None:
    after = now.checkpoint(before.checkpoint())
    replace(now, renamed={}).continuing(after)  # the next start continues too


TRANSFORMS = st.sampled_from([unchanged, wide(2), wide(3), wide(4), wide(), wide(4, "v"), wide(3, "v")])
GROUPERS = st.sampled_from([default_grouper, halves, parity, pairs])
BUILDS = st.one_of(
    TRANSFORMS.map(counted),
    st.builds(counted, TRANSFORMS, st.just("other")),
    st.just(merged("in", "other")),
    st.builds(joined, TRANSFORMS, st.sampled_from([unchanged, wide(2, "x"), wide(3, "x"), wide(None, "x")])),
    TRANSFORMS.map(two_counts),
)
PROGRAMS = st.builds(
    lambda build, grouper, n, other: program(build, grouper, **{"in": n, "other": other}),
    BUILDS,
    GROUPERS,
    st.integers(2, 4),
    st.integers(2, 4),
)


def tasks_of_keys(found: Continuity, layout: Layout) -> dict[tuple[str, bool], set[tuple[int, ...]]]:
    """Return, for each store, the tasks that receive the records of some keys on each path to the store."""
    routing = found.lineage(layout, {}).routing
    keys = [str(n).encode() for n in range(40)]
    return {
        store: {
            tuple(routing.routes[topic].tasks[partition_of(key, layout.partitions[topic])] for key in keys)
            for topic in origins
        }
        for store, origins in routing.reaching.items()
    }


@given(PROGRAMS, PROGRAMS)
def test_an_accepted_edit_sends_every_key_to_its_state(before: Program, now: Program) -> None:
    now = replace(
        now, partitions={**now.partitions, "in": before.partitions["in"], "other": before.partitions["other"]}
    )
    try:
        was = tasks_of_keys(*before.continuing(None))
        found = tasks_of_keys(*now.continuing(before.checkpoint()))
    except (CoPartitioningError, IncompatibleTopologyError):
        return
    for store in was.keys() & found.keys():
        if (
            len(was[store]) == len(found[store]) == 1
        ):  # otherwise a custom grouper separates the keys of a store
            assert was[store] == found[store], store


class TestRecordsThatTasksHold:
    """They have been read, so they are not read again."""

    def manifests(self, topic: str) -> list[bytes]:
        queue = QueueId(TopicPartition(topic, 0), "")
        records = Records([b"k", b"k"], [b"v", b"v"], [7, 7], [1, 2])
        snapshot = Snapshot(buffered={queue: records}, positions={queue: 3})
        return [encode_manifest(Manifest(), {"task": snapshot_to_json(snapshot)})]

    @pytest.mark.parametrize(
        ("before", "now"),
        [
            (program(merged("in", "other")), program(merged("other"))),
            (program(quiet()), program(quiet(wide(8)))),
            (program(quiet()), program(stateless())),
            (program(quiet(), halves), program(quiet(), parity)),
            (program(counted()), program(counted(store="d"), halves)),
        ],
        ids=[
            "a topic goes",
            "a repartition comes",
            "the part runs elsewhere",
            "another grouper",
            "a new store",
        ],
    )
    def test_block_edits_that_would_leave_them_behind(self, before: Program, now: Program) -> None:
        continued = now.continuing(before.checkpoint())
        with pytest.raises(IncompatibleTopologyError, match=r"buffered 2 records of 'in'.*until='end'"):
            check_held(*continued, lambda: self.manifests("in"))
        check_held(*continued, lambda: self.manifests("another"))

    def test_of_a_repartition_block_a_change_of_its_partitions(self) -> None:
        continued = program(stateless(wide(4))).continuing(program(stateless(wide(8))).checkpoint())
        with pytest.raises(IncompatibleTopologyError, match="buffered 2 records of 'app-w-repartition'"):
            check_held(*continued, lambda: self.manifests("app-w-repartition"))

    @pytest.mark.parametrize(
        ("before", "now"),
        [
            (program(counted()), program(counted(), **{"in": 6})),
            (program(counted()), program(counted(then="p"))),
            (program(merged("in")), program(merged("in", "other"))),
            (program(by_pattern, **{"y-1": 4}), program(by_pattern, **{"y-2": 8})),
        ],
        ids=["a topic grows", "another sink", "a topic comes", "a topic of a pattern is gone for now"],
    )
    def test_are_not_looked_up_if_their_tasks_still_read_them(self, before: Program, now: Program) -> None:
        check_held(*now.continuing(before.checkpoint()), self.fail_if_read)

    @staticmethod
    def fail_if_read() -> list[bytes]:
        raise AssertionError("reading what tasks remember takes a Spark job")


def test_a_start_waits_for_equal_numbers_of_partitions_like_a_running_application() -> None:
    before = program(joined(unchanged, unchanged))
    found = continuity(before.plan(), before.checkpoint(), {}, exactly_once=False)
    grown = {**before.partitions, "in": 6}
    with pytest.raises(CoPartitioningError):
        found.laid_out(grown, default_grouper)
    assert found.laid_out_evenly(grown, default_grouper) == found.laid_out(before.partitions, default_grouper)
    both = {**grown, "other": 6}
    assert found.laid_out_evenly(both, default_grouper) == found.laid_out(both, default_grouper)
    new = continuity(before.plan(), None, {}, exactly_once=False)
    with pytest.raises(CoPartitioningError, match="'in' has 6, 'other' has 4"):
        new.laid_out_evenly(grown, default_grouper)


def apart(builder: ms.StreamsBuilder) -> None:
    builder.stream("in").to("out")
    builder.stream("other").to("out")


def together(builder: ms.StreamsBuilder) -> None:
    builder.stream("in").merge(builder.stream("other")).to("out")


class TestAnInterruptedMicroBatch:
    """Some of its transactions may be committed, and their tasks do not send those records again."""

    @pytest.mark.parametrize(
        ("before", "after", "topic"),
        [
            (counted(wide(4)), through_kafka, "app-w-repartition"),
            (apart, together, "other"),
            (together, apart, "other"),
        ],
        ids=["a repartition becomes a topic", "streams are merged", "streams are no longer merged"],
    )
    def test_is_not_repeated_by_other_tasks(self, before: Build, after: Build, topic: str) -> None:
        complete = program(before).checkpoint()
        interrupted = replace(complete, committed=False)
        now, _ = program(after).continuing(interrupted)
        with pytest.raises(IncompatibleTopologyError, match=f"'{topic}' would be sent by other tasks"):
            check_interrupted(now.plan, interrupted, exactly_once=True)
        check_interrupted(now.plan, interrupted, exactly_once=False)
        check_interrupted(now.plan, complete, exactly_once=True)
        began = {**complete.planned, "begin": Initialization().to_json()}
        check_interrupted(now.plan, replace(interrupted, planned=began), exactly_once=True)

    @pytest.mark.parametrize("build", [counted(wide(4)), through_kafka, apart, together])
    def test_is_repeated_if_its_tasks_have_not_changed(self, build: Build) -> None:
        interrupted = replace(program(build).checkpoint(), committed=False)
        now, _ = program(build).continuing(interrupted)
        check_interrupted(now.plan, interrupted, exactly_once=True)
