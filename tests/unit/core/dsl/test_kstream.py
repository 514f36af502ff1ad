"""KStream: what each operator does, which serdes its result has, and where it repartitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.core.topology.nodes import Repartition, Sink

Stream = ms.KStream[Any, Any]


def built(define: Callable[[Stream], object], **source: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    define(builder.stream("in", **source))
    return builder.build()


def run(define: Callable[[Stream], Stream], *rows: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    with ms.testing.TopologyTestDriver(built(lambda stream: define(stream).to("out"))) as driver:
        for key, value in rows:
            driver.pipe("in", key, value)
        return [(record.key, record.value) for record in driver.read("out")]


def repartitions(topology: ms.Topology) -> list[str]:
    return [node.topic_name for node in topology.nodes.values() if isinstance(node, Repartition)]


def sink(topology: ms.Topology) -> Sink:
    (node,) = (node for node in topology.nodes.values() if isinstance(node, Sink))
    return node


class PassThrough(ms.Processor):
    def process(self, record: ms.Record) -> None:
        self.context.forward(record)


ROWS = [("a", "1"), ("b", "22"), ("c", "333")]


@pytest.mark.parametrize(
    ("define", "expected"),
    [
        (lambda s: s.filter(lambda k, v: len(v) > 1), [("b", "22"), ("c", "333")]),
        (lambda s: s.filter_not(lambda k, v: len(v) > 1), [("a", "1")]),
        (lambda s: s.filter(lambda k, v: v), ROWS),  # a predicate may return any truthy object
        (lambda s: s.map(lambda k, v: (v, k)), [("1", "a"), ("22", "b"), ("333", "c")]),
        (lambda s: s.map_values(lambda v: v + "!"), [("a", "1!"), ("b", "22!"), ("c", "333!")]),
        (lambda s: s.map_values(lambda k, v: k + v, with_key=True), [("a", "a1"), ("b", "b22"), ("c", "c333")]),
        (lambda s: s.flat_map(lambda k, v: [(d, k) for d in v[1:]]), [("2", "b"), ("3", "c"), ("3", "c")]),
        (lambda s: s.flat_map_values(lambda v: v[2:] * 2), [("c", "3"), ("c", "3")]),
        (lambda s: s.flat_map_values(lambda k, v: [k] * (len(v) - 1), with_key=True), [("b", "b"), ("c", "c"), ("c", "c")]),
        (lambda s: s.flat_map_values(lambda v: iter(v)), [("a", "1"), *[("b", "2")] * 2, *[("c", "3")] * 3]),
        (lambda s: s.select_key(lambda k, v: v), [("1", "1"), ("22", "22"), ("333", "333")]),
        (lambda s: s.peek(lambda k, v: None), ROWS),
        (lambda s: s.process(PassThrough), ROWS),
        (lambda s: s.process_values(PassThrough), ROWS),
        (lambda s: s.repartition(), ROWS),
        (lambda s: s.merge(s.map_values(lambda v: "m")), [x for k, v in ROWS for x in ((k, "m"), (k, v))]),
    ],
)  # fmt: skip
def test_each_operator_returns_the_expected_records(
    define: Callable[[Stream], Stream], expected: list[tuple[Any, Any]]
) -> None:
    assert run(define, *ROWS) == expected


def test_streams_of_two_builders_cannot_be_merged() -> None:
    with pytest.raises(TopologyError, match="the streams of a merge belong to different builders"):
        ms.StreamsBuilder().stream("a").merge(ms.StreamsBuilder().stream("b"))


def test_nulls_reach_functions_as_none() -> None:
    seen: list[Any] = []
    run(lambda s: s.peek(lambda k, v: seen.append((k, v))), (None, "x"), ("k", None))
    assert seen == [(None, "x"), ("k", None)]


def test_foreach_ends_the_stream() -> None:
    seen: list[Any] = []
    with ms.testing.TopologyTestDriver(built(lambda s: s.foreach(lambda k, v: seen.append(v)))) as driver:
        driver.pipe("in", "k", "v")
    assert seen == ["v"]


def test_a_generator_that_fails_midway_sends_nothing() -> None:
    def half(value: str) -> Any:
        yield value
        raise LookupError

    topology = built(lambda s: s.flat_map_values(half).to("out"))
    with ms.testing.TopologyTestDriver(topology, policies=ms.ErrorPolicies(process="skip")) as driver:
        driver.pipe("in", "k", "v")
        assert driver.read("out") == []


def test_a_stream_can_be_used_many_times() -> None:
    def define(stream: Stream) -> None:
        for number in range(4):
            stream.map_values(lambda v, n=number: f"{v}{n}").to("out")

    with ms.testing.TopologyTestDriver(built(define)) as driver:
        driver.pipe("in", "k", "v")
        assert [record.value for record in driver.read("out")] == ["v0", "v1", "v2", "v3"]


class TestSerdes:
    @pytest.mark.parametrize(
        ("define", "key", "value"),
        [
            (lambda s: s, "int64", "json"),
            (lambda s: s.filter(bool), "int64", "json"),
            (lambda s: s.peek(print), "int64", "json"),
            (lambda s: s.map(print), "string", "string"),
            (lambda s: s.flat_map(print), "string", "string"),
            (lambda s: s.select_key(print), "string", "json"),
            (lambda s: s.map_values(print), "int64", "string"),
            (lambda s: s.flat_map_values(print), "int64", "string"),
            (lambda s: s.process(PassThrough), "string", "string"),
            (lambda s: s.process_values(PassThrough), "int64", "string"),
            (lambda s: s.merge(s.filter(bool)), "int64", "json"),
            (lambda s: s.merge(s.map_values(print)), "int64", "string"),
            (lambda s: s.repartition(key=ms.serdes.bytes), "bytes", "json"),
            (lambda s: s.split().branch(bool).no_default()["1"], "int64", "json"),
        ],
    )
    def test_are_kept_by_an_operator_or_become_the_default(
        self, define: Callable[[Stream], Stream], key: str, value: str
    ) -> None:
        topology = built(lambda s: define(s).to("out"), key=ms.serdes.int64, value=ms.serdes.json)
        assert (sink(topology).key.name, sink(topology).value.name) == (key, value)

    def test_passed_to_a_sink_take_precedence(self) -> None:
        topology = built(lambda s: s.to("out", key=ms.serdes.bytes, value=ms.serdes.pickle))
        assert (sink(topology).key.name, sink(topology).value.name) == ("bytes", "pickle")

    def test_of_groups_and_tables_are_known_downstream(self) -> None:
        topology = built(
            lambda s: s.group_by_key().count(store="counts").to_stream().to("out"), key=ms.serdes.int64
        )
        assert (sink(topology).key.name, sink(topology).value.name) == ("int64", "int64")


class TestRepartition:
    @pytest.mark.parametrize(
        "define",
        [
            lambda s: s,
            lambda s: s.filter(bool),
            lambda s: s.map_values(str),
            lambda s: s.flat_map_values(str),
            lambda s: s.peek(print),
            lambda s: s.merge(s.filter(bool)),
            lambda s: s.process_values(PassThrough),
            lambda s: s.split().branch(bool).no_default()["1"],
        ],
    )
    def test_is_not_needed_while_keys_are_unchanged(self, define: Callable[[Stream], Stream]) -> None:
        assert repartitions(built(lambda s: define(s).group_by_key().count(store="counts"))) == []

    @pytest.mark.parametrize(
        "define",
        [
            lambda s: s.map(print),
            lambda s: s.flat_map(print),
            lambda s: s.select_key(print),
            lambda s: s.process(PassThrough),
            lambda s: s.select_key(print).filter(bool),
            lambda s: s.select_key(print).map_values(str),
            lambda s: s.select_key(print).process_values(PassThrough),
            lambda s: s.merge(s.select_key(print)),
            lambda s: s.select_key(print).split().branch(bool).no_default()["1"],
        ],
    )
    def test_is_needed_when_a_key_may_have_changed(self, define: Callable[[Stream], Stream]) -> None:
        assert repartitions(built(lambda s: define(s).group_by_key().count(store="counts"))) == ["counts"]

    def test_is_always_needed_after_group_by(self) -> None:
        assert repartitions(built(lambda s: s.group_by(print).count(store="counts"))) == ["counts"]

    def test_is_shared_by_all_aggregations_of_a_group(self) -> None:
        def define(stream: Stream) -> None:
            grouped = stream.group_by(print, name="by-color")
            grouped.count(store="counts")
            grouped.reduce(min, store="smallest")
            grouped.aggregate(str, lambda k, v, a: a + v, store="all")

        assert repartitions(built(define)) == ["by-color"]

    def test_is_not_needed_again_after_an_aggregation(self) -> None:
        def define(stream: Stream) -> None:
            counts = stream.group_by(print).count(store="counts").to_stream()
            counts.group_by_key().reduce(max, store="largest")

        assert repartitions(built(define)) == ["counts"]

    def test_called_explicitly_serves_all_later_groupings(self) -> None:
        def define(stream: Stream) -> None:
            moved = stream.select_key(print).repartition(name="moved", partitions=3)
            moved.group_by_key().count(store="one")
            moved.filter(bool).group_by_key().count(store="two")
            moved.to_table(store="three")

        topology = built(define)
        assert repartitions(topology) == ["moved"]
        assert topology.nodes["moved-repartition"].partitions == 3  # type: ignore[attr-defined]

    def test_is_needed_for_a_table_of_a_rekeyed_stream(self) -> None:
        assert repartitions(built(lambda s: s.to_table(store="rows"))) == []
        assert repartitions(built(lambda s: s.select_key(print).to_table(store="rows"))) == ["rows"]

    def test_takes_the_serdes_of_its_group(self) -> None:
        topology = built(
            lambda s: s.group_by(print, key=ms.serdes.int64, value=ms.serdes.json, name="moved").count(
                store="counts"
            )
        )
        node = topology.nodes["moved-repartition"]
        assert isinstance(node, Repartition)
        assert (node.key.name, node.value.name, node.drop_null_keys) == ("int64", "json", True)

    def test_needs_at_least_one_partition(self) -> None:
        with pytest.raises(
            TopologyError, match=r"repartition\(partitions=0\): a topic has at least one partition"
        ):
            built(lambda s: s.repartition(partitions=0))

    def test_drops_null_keys(self) -> None:
        assert run(lambda s: s.repartition(name="moved"), (None, "x"), ("k", "y")) == [("k", "y")]

    @pytest.mark.parametrize(("null_keys", "dropped"), [("counted", 2), ("silent", 0)])
    @pytest.mark.parametrize("moves", ["repartition", "group_by", "to_table", "join"])
    def test_counts_null_keys_unless_null_keys_is_silent(
        self, moves: str, null_keys: Any, dropped: int
    ) -> None:
        builder = ms.StreamsBuilder(null_keys=null_keys)
        stream = builder.stream("in").select_key(lambda _, v: v if len(v) > 1 else None)
        match moves:
            case "repartition":
                stream.repartition().foreach(print)
            case "group_by":
                stream.group_by_key().count()
            case "to_table":
                stream.to_table()
            case _:
                stream.join(builder.table("rows"), lambda v, row: v)
        with ms.testing.TopologyTestDriver(builder.build()) as driver:
            for value in ("a", "long", "b"):
                driver.pipe("in", "k", value)
            assert driver.metrics()["dropped_records"] == dropped

    def test_rejects_another_value_of_null_keys(self) -> None:
        with pytest.raises(TopologyError, match="null_keys must be 'counted' or 'silent', not 'kept'"):
            ms.StreamsBuilder(null_keys="kept")  # type: ignore[arg-type]

    def test_may_have_a_partitioner(self) -> None:
        def last(topic: str, key: str, value: str, partitions: int) -> int:
            return partitions - 1

        plan = built(lambda s: s.repartition(name="moved", partitioner=last)).plan("app")
        sink = plan.subtopologies[0].nodes["moved-repartition-sink"]
        assert isinstance(sink, Sink)
        assert sink.partitioner is last


class TestSplit:
    def test_a_record_goes_to_the_first_branch_whose_predicate_holds(self) -> None:
        def define(stream: Stream) -> None:
            branches = (
                stream.split(name="to-")
                .branch(lambda k, v: len(v) > 2, name="long")
                .branch(lambda k, v: len(v) > 1)
                .default(name="short")
            )
            assert list(branches) == ["to-long", "to-2", "to-short"]
            for name, branch in branches.items():
                branch.to(name)

        with ms.testing.TopologyTestDriver(built(define)) as driver:
            for key, value in ROWS:
                driver.pipe("in", key, value)
            assert [[r.key for r in driver.read(t)] for t in ("to-long", "to-2", "to-short")] == [
                ["c"],
                ["b"],
                ["a"],
            ]

    def test_without_a_default_branch_unmatched_records_are_dropped(self) -> None:
        assert run(lambda s: s.split().branch(lambda k, v: v == "22").no_default()["1"], *ROWS) == [
            ("b", "22")
        ]

    def test_an_unused_branch_still_takes_its_records(self) -> None:
        def define(stream: Stream) -> Stream:
            return stream.split().branch(lambda k, v: v == "1").default(name="rest")["rest"]

        assert run(define, *ROWS) == ROWS[1:]

    def test_two_branches_of_one_name_are_refused(self) -> None:
        with pytest.raises(TopologyError, match="two branches of a split have the name 'x'"):
            built(lambda s: s.split().branch(bool, name="x").branch(bool, name="x"))

    def test_the_same_stream_can_be_split_twice(self) -> None:
        def define(stream: Stream) -> None:
            stream.split(name="a-").branch(bool).no_default()
            stream.split(name="b-").branch(bool).no_default()

        assert len(built(define).nodes) == 5


class TestNames:
    @pytest.mark.parametrize(
        "operator",
        ["filter", "filter_not", "map", "map_values", "flat_map", "flat_map_values", "select_key", "peek"],
    )
    def test_can_be_given(self, operator: str) -> None:
        assert "mine" in built(lambda s: getattr(s, operator)(print, name="mine")).nodes

    def test_can_be_given_to_all_other_operators(self) -> None:
        def define(stream: Stream) -> None:
            stream.process(PassThrough, name="p").process_values(PassThrough, name="pv").to("out", name="end")
            stream.merge(stream, name="both").foreach(print, name="each")
            stream.repartition(name="moved")

        assert list(built(define).nodes)[1:] == ["p", "pv", "end", "both", "each", "moved-repartition"]

    def test_a_named_node_still_increments_the_number_in_generated_names(self) -> None:
        """As in Kafka Streams, so that naming one node does not rename the others."""
        topology = built(lambda s: s.filter(bool, name="mine").filter(bool))
        assert list(topology.nodes) == ["KSTREAM-SOURCE-0000000000", "mine", "KSTREAM-FILTER-0000000002"]

    def test_are_unique(self) -> None:
        with pytest.raises(TopologyError, match="two nodes have the name 'mine'"):
            built(lambda s: s.filter(bool, name="mine").filter(bool, name="mine"))

    def test_must_be_valid_in_names_of_topics(self) -> None:
        with pytest.raises(TopologyError, match="'my filter' cannot be the name of a node"):
            built(lambda s: s.filter(bool, name="my filter"))

    def test_of_stores_are_unique(self) -> None:
        def define(stream: Stream) -> None:
            stream.group_by_key().count(store="same")
            stream.group_by_key().reduce(min, store="same")

        with pytest.raises(TopologyError, match="store 'same' belongs to 'KSTREAM-AGGREGATE-"):
            built(define)


def test_merging_a_stream_with_itself_forwards_each_record_once() -> None:
    """As in Kafka Streams, whose merge node has a set of parents."""
    assert run(lambda s: s.merge(s), ("k", "v")) == [("k", "v")]


class TestBranchesWithAFunction:
    def test_the_result_of_the_function_replaces_the_branch(self) -> None:
        def define(stream: Stream) -> None:
            split = stream.split(name="to-").branch(
                lambda k, v: len(v) > 2, name="long", then=lambda s: s.map_values(str.upper)
            )
            split = split.branch(lambda k, v: len(v) > 1, name="two", then=lambda s: s.to("two"))
            branches = split.default(name="rest", then=lambda s: s.map_values(lambda v: v + "!"))
            assert list(branches) == ["to-long", "to-rest"]
            branches["to-long"].merge(branches["to-rest"]).to("out")

        with ms.testing.TopologyTestDriver(built(define)) as driver:
            for value in ("long", "ab", "c"):
                driver.pipe("in", "k", value)
            assert [record.value for record in driver.read("out")] == ["LONG", "c!"]
            assert [record.value for record in driver.read("two")] == ["ab"]

    def test_the_function_is_called_when_the_branch_is_added(self) -> None:
        calls: list[str] = []
        split = ms.StreamsBuilder().stream("in").split()
        for name in ("one", "two"):
            split.branch(lambda k, v: True, name=name, then=lambda s, name=name: calls.append(name))
            assert calls[-1] == name
        assert list(split.default(then=lambda s: calls.append("rest"))) == []
        assert calls == ["one", "two", "rest"]


class TestASplitWithoutAFinalCall:
    def test_still_has_its_branches(self) -> None:
        def define(stream: Stream) -> None:
            split = stream.split()
            split.branch(lambda k, v: v == "a", then=lambda s: s.to("a"))
            split.branch(lambda k, v: v == "b", then=lambda s: s.to("b"))

        with ms.testing.TopologyTestDriver(built(define)) as driver:
            for value in "abc":
                driver.pipe("in", "k", value)
            assert [[r.value for r in driver.read(topic)] for topic in "ab"] == [["a"], ["b"]]

    def test_may_have_no_branch(self) -> None:
        with ms.testing.TopologyTestDriver(built(lambda stream: stream.split())) as driver:
            driver.pipe("in", "k", "v")
            assert driver.metrics()["processed_records"] == 1

    def test_may_be_extended_after_no_default(self) -> None:
        split = ms.StreamsBuilder().stream("in").split()
        first = split.branch(lambda k, v: True).no_default()
        assert list(first) == ["1"]
        assert list(split.branch(lambda k, v: True).default()) == ["1", "2", "0"]

    @pytest.mark.parametrize("again", [lambda s: s.default(name="x"), lambda s: s.branch(lambda k, v: True)])
    def test_cannot_be_extended_after_its_default_branch(self, again: Callable[[Any], object]) -> None:
        split = ms.StreamsBuilder().stream("in").split()
        split.default()
        with pytest.raises(TopologyError, match="already has a default branch"):
            again(split)


class TestBranch:
    def test_each_record_goes_to_the_first_stream_whose_predicate_holds(self) -> None:
        def define(stream: Stream) -> None:
            long, short = stream.branch(lambda k, v: len(v) > 2, lambda k, v: len(v) > 1)
            long.to("long")
            short.to("short")

        with ms.testing.TopologyTestDriver(built(define)) as driver:
            for key, value in ROWS:
                driver.pipe("in", key, value)
            assert [record.key for record in driver.read("long")] == ["c"]
            assert [record.key for record in driver.read("short")] == ["b"]

    def test_the_streams_are_in_the_order_of_their_predicates(self) -> None:
        numbers = [str(number) for number in range(12)]

        def define(stream: Stream) -> None:
            branches = stream.branch(*(lambda k, v, number=number: v == number for number in numbers))
            for number, branch in zip(numbers, branches):
                branch.to(f"out-{number}")

        with ms.testing.TopologyTestDriver(built(define)) as driver:
            for number in numbers:
                driver.pipe("in", None, number)
            assert [[r.value for r in driver.read(f"out-{number}")] for number in numbers] == [
                [number] for number in numbers
            ]

    def test_at_least_one_predicate_is_required(self) -> None:
        with pytest.raises(TopologyError, match="pass at least one predicate"):
            built(lambda stream: stream.branch())


class TestThrough:
    def test_records_are_written_to_the_topic_and_read_from_it(self) -> None:
        topology = built(lambda s: s.through("between").map_values(lambda v: v + "!").to("out"))
        with ms.testing.TopologyTestDriver(topology) as driver:
            driver.pipe("in", "a", "1", 7, [("h", b"x")])
            driver.pipe("between", "b", "2", 8)
            assert driver.read("between") == [ms.Record("a", "1", 7, (("h", b"x"),))]
            assert [(r.key, r.value, r.timestamp, r.headers) for r in driver.read("out")] == [
                ("a", "1!", 7, (("h", b"x"),)),
                ("b", "2!", 8, ()),
            ]

    def test_keys_changed_before_it_need_no_repartition_after_it(self) -> None:
        topology = built(
            lambda s: s.select_key(lambda k, v: v).through("between").group_by_key().count(store="counts")
        )
        assert repartitions(topology) == []
        assert (
            topology.plan("app").subtopology_of["between"].id != topology.plan("app").subtopology_of["in"].id
        )

    def test_its_serdes_apply_to_the_topic(self) -> None:
        topology = built(lambda s: s.map_values(len).through("between", value=ms.serdes.int64).to("out"))
        with ms.testing.TopologyTestDriver(topology) as driver:
            driver.pipe("in", "a", "four")
            assert [record.value for record in driver.read("out")] == [4]

    def test_its_nodes_are_named_after_it(self) -> None:
        topology = built(lambda s: s.through("between", name="middle").to("out", name="end"))
        assert {"middle", "middle-sink"} < topology.nodes.keys()

    def test_its_topic_cannot_be_that_of_a_table(self) -> None:
        builder = ms.StreamsBuilder()
        builder.table("prices")
        with pytest.raises(TopologyError, match="topic 'prices' has two sources"):
            builder.stream("in").through("prices")


class TestPrint:
    def test_a_line_has_label_key_and_value(self, capsys: pytest.CaptureFixture[str]) -> None:
        def define(stream: Stream) -> None:
            stream.print(label="seen")
            stream.print(text=lambda k, v: f"{k}={v}", label="text")
            stream.filter(lambda k, v: k == "b", name="bees").print()

        with ms.testing.TopologyTestDriver(built(define)) as driver:
            for key, value in ROWS[:2]:
                driver.pipe("in", key, value)
        assert capsys.readouterr().out.splitlines() == [
            "[seen]: a, 1",
            "[text]: a=1",
            "[seen]: b, 22",
            "[text]: b=22",
            "[bees]: b, 22",
        ]

    def test_to_a_file_appends_lines(self, tmp_path: Path) -> None:
        file = tmp_path / "lines"
        file.write_text("before\n")
        with ms.testing.TopologyTestDriver(built(lambda s: s.print(label="in", file=file))) as driver:
            driver.pipe("in", "a", "1")
            driver.pipe("in", None, None)
        assert file.read_text() == "before\n[in]: a, 1\n[in]: None, None\n"
