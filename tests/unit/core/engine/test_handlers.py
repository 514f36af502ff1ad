"""Error handlers: functions of the user that decide what happens to a failed record, in every processing mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.policy import MOST_ATTEMPTS
from millstream.core.model.errors import (
    DeserializationError,
    MillstreamError,
    ProcessingError,
    ProductionError,
    SettingsError,
)
from unit.helpers import Host, ShuffledThreads, columnar, processing, processor_topology, sent, values

ROWS = [("a", "1", 1), ("b", "x", 2), ("c", "3", 3)]
Handler = Callable[[ms.ErrorContext, Exception], Any]


class Flaky:
    """Parses numbers; any other text fails until it was tried ``needed`` times."""

    def __init__(self, needed: int = 1 << 30) -> None:
        self.needed = needed
        self.calls: list[str] = []

    def __call__(self, value: str) -> str:
        self.calls.append(value)
        if not value.isdigit() and self.calls.count(value) < self.needed:
            raise LookupError(f"no number: {value}")
        return f"{value}!"


class Asked:
    """A handler that records its contexts and returns the passed answers in turn."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.contexts: list[ms.ErrorContext] = []

    def __call__(self, context: ms.ErrorContext, error: Exception) -> Any:
        self.contexts.append(context)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def rows_path(function: Any) -> ms.Topology:
    """Return a topology that processes record by record, because a downstream processor prevents columns."""
    builder = ms.StreamsBuilder()
    parsed = builder.stream("in").map_values(function, name="parse")
    parsed.process(processing(lambda context, record: context.forward(record)), name="on").to(
        "out", name="sink"
    )
    topology = builder.build()
    assert not columnar(topology)
    return topology


def columns_path(function: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(function, name="parse").to("out", name="sink")
    topology = builder.build()
    assert columnar(topology)
    return topology


WAYS: dict[str, tuple[Callable[[Any], ms.Topology], dict[str, Any]]] = {
    "rows": (rows_path, {}),
    "columns": (columns_path, {}),
    "threads": (columns_path, {"threads": ShuffledThreads(3)}),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Callable[..., Host]:
    build, options = WAYS[request.param]

    def host(function: Any, handler: Any, topic: str | None = "dead", **policies: Any) -> Host:
        stage_policies = {"process": handler, **policies} if handler is not None else policies
        return Host(
            build(function), policies=ms.ErrorPolicies(dead_letter_topic=topic, **stage_policies), **options
        )

    return host


class TestDecisions:
    def test_skip_drops_the_record(self, way: Callable[..., Host]) -> None:
        handler = Asked("skip")
        outcome = way(Flaky(), handler).run("in", *ROWS)
        assert values(outcome) == ["1!", "3!"]
        assert outcome.metrics.dropped == {"process error": 1}
        assert outcome.notices[0].endswith("Its error handler 'Asked' decided: skip")
        (context,) = handler.contexts
        assert context == ms.ErrorContext(
            "process", "parse", "0_0", "in", 0, 1, b"b", b"x", 2, (), ms.Record("b", "x", 2), 1
        )

    @pytest.mark.parametrize(("answer", "topic"), [("dead_letter", "dead"), (ms.dead_letter("own"), "own")])
    def test_dead_letter_sends_the_record_to_the_topic(
        self, way: Callable[..., Host], answer: Any, topic: str
    ) -> None:
        outcome = way(Flaky(), Asked(answer)).run("in", *ROWS)
        assert values(outcome) == ["1!", "3!"]
        assert sent(outcome, topic) == [("b", "x", 2)]

    def test_fail_raises_an_error_with_the_dead_letter(self, way: Callable[..., Host]) -> None:
        with pytest.raises(
            ProcessingError, match=r"no number: x.*Its error handler 'Asked' decided: fail$"
        ) as caught:
            way(Flaky(), Asked("fail")).run("in", *ROWS)
        assert caught.value.letter is not None
        topic, records = caught.value.letter
        assert (topic, records.keys, records.values) == ("dead", [b"b"], [b"x"])

    def test_retry_calls_the_function_again_with_the_same_record(self, way: Callable[..., Host]) -> None:
        flaky, handler = Flaky(needed=3), Asked("retry")
        outcome = way(flaky, handler).run("in", *ROWS)
        assert sorted(values(outcome), key=str) == ["1!", "3!", "x!"]
        assert sent(outcome)[1] == ("b", "x!", 2)
        assert (flaky.calls.count("x"), flaky.calls.count("1")) == (3, 1)
        assert [context.attempt for context in handler.contexts] == [1, 2]
        assert outcome.metrics.dropped == {}

    def test_retry_can_be_followed_by_another_decision(self, way: Callable[..., Host]) -> None:
        flaky = Flaky()
        outcome = way(flaky, Asked("retry", "retry", "skip")).run("in", *ROWS)
        assert (values(outcome), flaky.calls.count("x")) == (["1!", "3!"], 3)
        assert outcome.metrics.dropped == {"process error": 1}

    def test_retries_are_bounded(self, way: Callable[..., Host]) -> None:
        flaky = Flaky()
        with pytest.raises(ProcessingError, match=f"requested more than {MOST_ATTEMPTS} attempts"):
            way(flaky, Asked("retry")).run("in", *ROWS)
        assert flaky.calls.count("x") == MOST_ATTEMPTS

    def test_attempts_are_counted_for_each_record(self, way: Callable[..., Host]) -> None:
        handler = Asked("retry", "skip", "retry", "skip")
        way(Flaky(), handler).run("in", ("a", "x", 1), ("a", "y", 2))
        assert [context.attempt for context in handler.contexts] == [1, 2, 1, 2]


class TestHandlersThatFail:
    def test_a_handler_that_raises_counts_as_fail_and_both_errors_are_reported(
        self, way: Callable[..., Host]
    ) -> None:
        def handler(context: ms.ErrorContext, error: Exception) -> Any:
            raise OSError("the pager is down")

        message = (
            r"no number: x.*Its error handler '.*handler' itself failed: OSError: the pager is down \(.*line"
        )
        with pytest.raises(ProcessingError, match=message):
            way(Flaky(), handler).run("in", *ROWS)

    @pytest.mark.parametrize("answer", [None, "Skip", "continue", 5, ms.skip()])
    def test_an_invalid_decision_counts_as_fail(self, way: Callable[..., Host], answer: Any) -> None:
        with pytest.raises(ProcessingError, match=r"no number: x.*which is not a valid decision"):
            way(Flaky(), Asked(answer)).run("in", *ROWS)

    def test_a_dead_letter_without_a_topic_counts_as_fail(self, way: Callable[..., Host]) -> None:
        with pytest.raises(ProcessingError, match=r"no number: x.*no topic is set") as caught:
            way(Flaky(), Asked("dead_letter"), topic=None).run("in", *ROWS)
        assert caught.value.letter is None


class TestOperators:
    def test_the_policy_of_an_operator_overrides_the_policy_of_its_stage(
        self, way: Callable[..., Host]
    ) -> None:
        for own in ("skip", Asked("skip"), ms.dead_letter("own")):
            outcome = way(Flaky(), "fail", operators={"parse": own}).run("in", *ROWS)
            assert values(outcome) == ["1!", "3!"]

    def test_the_handler_of_an_operator_is_not_called_for_other_operators(
        self, way: Callable[..., Host]
    ) -> None:
        handler = Asked("skip")
        with pytest.raises(ProcessingError):
            way(Flaky(), "fail", operators={"sink": handler}).run("in", *ROWS)
        assert not handler.contexts

    def test_an_unknown_name_of_an_operator_is_refused(self) -> None:
        policies = ms.ErrorPolicies(operators={"prase": "skip"})
        with pytest.raises(
            SettingsError, match=r"node 'prase', which the topology does not have.*The nodes are: .*parse"
        ):
            ms.testing.TopologyTestDriver(columns_path(str), policies=policies)


class TestStages:
    def test_a_source_can_be_retried(self) -> None:
        calls: list[bytes] = []

        def read(data: bytes) -> str:
            calls.append(data)
            if data == b"x" and calls.count(b"x") < 4:
                raise OSError("the registry is busy")
            return data.decode()

        serde = ms.serdes.of(str.encode, read)
        handler = Asked("retry")
        builder = ms.StreamsBuilder()
        builder.stream("in", value=serde, name="source").to("out", value=ms.serdes.string)
        host = Host(builder.build(), policies=ms.ErrorPolicies(deserialize=handler))
        assert values(host.run("in", *ROWS)) == ["1", "x", "3"]
        assert [(c.stage, c.node, c.record, c.value) for c in handler.contexts] == [
            ("deserialize", "source", None, b"x")
        ] * len(handler.contexts)

    @pytest.mark.parametrize("side", ["key", "value"])
    @pytest.mark.parametrize("chosen", [False, True])
    def test_the_context_of_a_sink_has_the_topic_and_the_side(self, side: str, chosen: bool) -> None:
        builder = ms.StreamsBuilder()
        mapped = builder.stream("in").map(lambda k, v: (5, v) if side == "key" else (k, 5))
        mapped.to(
            (lambda k, v, context: "out") if chosen else "out",
            name="sink",
            key=ms.serdes.string,
            value=ms.serdes.string,
        )
        handler = Asked("skip")
        outcome = Host(builder.build(), policies=ms.ErrorPolicies(produce=handler)).run("in", ROWS[0])
        assert outcome.metrics.dropped == {"produce error": 1}
        assert [(c.stage, c.node, c.target, c.side) for c in handler.contexts] == [
            ("produce", "sink", "out", side)
        ]
        with pytest.raises(
            ProductionError,
            match=rf"at topic 'in', .*: the {side} does not fit its serde, sending to topic 'out': serdes\.string takes str",
        ):
            Host(builder.build()).run("in", ROWS[0])

    def test_a_topic_function_or_partitioner_that_raises_has_no_side(self) -> None:
        def choose(*_: Any) -> Any:
            raise LookupError("nowhere")

        for more, target in (({"topic": choose}, None), ({"topic": "out", "partitioner": choose}, "out")):
            builder = ms.StreamsBuilder()
            builder.stream("in").to(**more)  # type: ignore[arg-type]
            handler = Asked("skip")
            Host(builder.build(), policies=ms.ErrorPolicies(produce=handler)).run("in", ROWS[0])
            assert [(c.target, c.side) for c in handler.contexts] == [(target, None)]

    def test_a_sink_can_be_retried(self) -> None:
        handler, tried = Asked("retry"), Flaky(needed=2)
        serde = ms.serdes.of(lambda value: tried(value).encode(), bytes.decode)
        builder = ms.StreamsBuilder()
        builder.stream("in").to("out", value=serde)
        host = Host(builder.build(), policies=ms.ErrorPolicies(produce=handler))
        assert values(host.run("in", *ROWS)) == ["1!", "x!", "3!"]

    def test_a_processor_can_be_retried(self) -> None:
        tried: list[str] = []

        def step(context: ms.ProcessorContext, record: ms.Record) -> None:
            tried.append(record.value)
            if record.value == "x" and len(tried) < 4:
                raise OSError("busy")
            context.forward(record)

        host = Host(processor_topology(processing(step)), policies=ms.ErrorPolicies(process=Asked("retry")))
        assert (values(host.run("in", *ROWS)), tried) == (["1", "x", "3"], ["1", "x", "x", "x", "3"])

    def test_operators_with_state_are_never_retried(self) -> None:
        def add(key: str, value: str, total: str) -> str:
            if value == "x":
                raise LookupError(value)
            return total + value

        builder = ms.StreamsBuilder()
        windows = builder.stream("in").group_by_key().windowed_by(ms.HoppingWindows(10, advance=5, grace=0))
        windows.aggregate(str, add, store="all")
        host = Host(builder.build(), policies=ms.ErrorPolicies(process=Asked("retry")))
        with pytest.raises(ProcessingError, match="is never retried here"):
            host.run("in", *ROWS)

    def test_the_context_of_a_table_operator_has_the_change_of_the_row(self) -> None:
        builder = ms.StreamsBuilder()
        builder.table("in", store="t").map_values(Flaky(), name="parse").to_stream().to("out")
        handler = Asked("skip")
        Host(builder.build(), policies=ms.ErrorPolicies(process=handler)).run("in", ("a", "x", 1))
        (context,) = handler.contexts
        assert context.record is not None
        assert (context.record.key, context.record.value.new) == ("a", "x")

    def test_the_context_of_a_punctuator_has_no_record(self) -> None:
        def tick(now_ms: int) -> None:
            raise LookupError("late")

        handler = Asked("skip")
        topology = processor_topology(
            processing(lambda c, r: None, init=lambda c: c.schedule(5, ms.wall_clock, tick))
        )
        outcome = Host(topology, policies=ms.ErrorPolicies(process=handler)).step(now_ms=5)
        assert outcome.metrics.dropped == {"process error": 1}
        (context,) = handler.contexts
        assert (context.topic, context.offset, context.record) == (None, -1, None)
        with pytest.raises(ProcessingError, match="never retried"):
            Host(topology, policies=ms.ErrorPolicies(process=Asked("retry"))).step(now_ms=5)

    def test_the_handler_is_not_called_for_the_parents_of_a_node_that_stops(self) -> None:
        handler = Asked("fail")
        builder = ms.StreamsBuilder()
        outer = builder.stream("in").process(
            processing(lambda context, record: context.forward(record)), name="outer"
        )
        outer.map_values(Flaky(), name="inner").to("out")
        host = Host(builder.build(), policies=ms.ErrorPolicies(process=handler))
        with pytest.raises(ProcessingError):
            host.run("in", ("a", "x", 1))
        assert [context.node for context in handler.contexts] == ["inner"]


class TestInvalidPolicies:
    @pytest.mark.parametrize("parameter", ["deserialize", "process", "produce"])
    @pytest.mark.parametrize("policy", ["Fail", "continue", "retry", "", None, 5, ms.Retry, ["skip"]])
    def test_an_invalid_policy_is_refused(self, parameter: str, policy: Any) -> None:
        with pytest.raises(SettingsError, match=rf"^{parameter}=.*use one of 'fail', 'skip', 'dead_letter'"):
            ms.ErrorPolicies(**{parameter: policy})
        with pytest.raises(SettingsError, match=r"^operators\['x'\]="):
            ms.ErrorPolicies(operators={"x": policy})

    def test_operators_must_be_a_dict(self) -> None:
        with pytest.raises(SettingsError, match="operators must be a dict from names of nodes to policies"):
            ms.ErrorPolicies(operators=["skip"])  # type: ignore[arg-type]

    def test_a_coroutine_function_is_refused(self) -> None:
        async def handler(context: ms.ErrorContext, error: Exception) -> str:
            return "skip"

        with pytest.raises(SettingsError, match="process: an error handler must be a plain function"):
            ms.ErrorPolicies(process=handler)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["fail", Asked("fail")])
@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        ("deserialize", DeserializationError),
        ("process", ProcessingError),
        ("produce", ProductionError),
    ],
)
def test_under_fail_the_dead_letter_is_sent_before_the_topology_stops(
    stage: str, kind: type[MillstreamError], policy: Any
) -> None:
    builder = ms.StreamsBuilder()
    value = ms.serdes.int64 if stage == "deserialize" else ms.serdes.string
    stream = builder.stream("in", value=value)
    if stage == "process":
        stream = stream.map_values(Flaky())
    stream.to("out", value=ms.serdes.int64)
    policies = ms.ErrorPolicies(**{stage: policy}, dead_letter_topic="dead")
    with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
        with pytest.raises(kind):
            driver.pipe("in", "a", b"x", timestamp=7)
        (letter,) = driver.read("dead")
        assert (letter.key, letter.value, letter.timestamp) == (b"a", b"x", 7)
        assert dict(letter.headers)["millstream.error.stage"] == stage.encode()
        assert not driver.read("out")


def test_a_global_store_never_sends_dead_letters() -> None:
    builder = ms.StreamsBuilder()
    builder.global_table("products", value=ms.serdes.int64, store="products")
    builder.stream("in").to("out")
    for answer in ("dead_letter", ms.dead_letter("own"), "skip"):
        policies = ms.ErrorPolicies(deserialize=Asked(answer), dead_letter_topic="dead")
        with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
            driver.pipe("products", "a", b"x")
            assert (driver.read("dead"), driver.read("own"), driver.metrics()["dropped_records"]) == (
                [],
                [],
                1,
            )


def test_the_policy_of_an_operator_applies_to_a_function_that_raises_system_exit() -> None:
    def end(value: str) -> str:
        if value == "x":
            raise SystemExit
        return value

    for own in ("skip", Asked("skip")):
        policies = ms.ErrorPolicies(operators={"parse": own})
        host = Host(columns_path(end), policies=policies, threads=ShuffledThreads(2))
        assert values(host.run("in", *ROWS)) == ["1", "3"]


def test_the_dead_letter_of_a_call_that_stops_the_topology_is_sent() -> None:
    async def call(value: str) -> str:
        raise ConnectionError("down")

    builder = ms.StreamsBuilder()
    builder.stream("in").map_values_async(call).to("out")
    policies = ms.ErrorPolicies(dead_letter_topic="dead")
    with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
        with pytest.raises(ProcessingError, match="failed for good"):
            driver.pipe("in", "a", "x", timestamp=7)
        (letter,) = driver.read("dead")
        headers_by_name = dict(letter.headers)
        assert (letter.key, letter.value, headers_by_name["millstream.error.stage"]) == (b"a", b"x", b"call")
        assert headers_by_name["millstream.error.error"] == b"ConnectionError: down"
