"""Invalid processors: methods that are coroutine or generator functions, wrong signatures and wrong results of callbacks."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError, TopologyError
from millstream.testing import TopologyTestDriver as Driver


def upper(value: str) -> str:
    return value.upper()


class Asking(ms.Processor[str, str, str, str]):
    def process(self, record: ms.Record[str, str]) -> None:
        self.context.issue(upper, self.answered, record.value)

    def answered(self, record: ms.Record[str, str], value: str) -> Any:
        return ms.retry()


class AsynchronousAnswer(Asking):
    async def answered(self, record: ms.Record[str, str], value: str) -> None: ...


class AsynchronousProcess(ms.Processor[str, str, str, str]):
    async def process(self, record: ms.Record[str, str]) -> None:  # type: ignore[override]
        ...


class Acknowledging(ms.Processor[str, str, str, str]):
    instances: list[Acknowledging]

    def process(self, record: ms.Record[str, str]) -> None:
        self.instances.append(self)
        self.metadata = self.context.record_metadata


def topology(processor: Any, **options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").process(processor, name="asking", **options).to("out")
    return builder.build()


def test_a_callback_cannot_request_a_retry() -> None:
    refusal = pytest.raises(ProcessingError, match=r"answered\(\) returned TryAgain")
    with Driver(topology(Asking, calls=ms.Calls())) as driver, refusal:
        driver.pipe("in", "k", "v")


def test_a_callback_cannot_be_a_coroutine_function() -> None:
    refusal = pytest.raises(ProcessingError, match=r"answered\(\) is the callback of a call and a coroutine")
    with Driver(topology(AsynchronousAnswer, calls=ms.Calls())) as driver, refusal:
        driver.pipe("in", "k", "v")


@pytest.mark.parametrize("options", [{}, {"calls": ms.Calls()}, {"acknowledges": True}])
def test_process_cannot_be_a_coroutine_function(options: Any) -> None:
    with pytest.raises(TopologyError, match=r"its process\(\) is a coroutine function"):
        Driver(topology(AsynchronousProcess, **options))


class Yielding(ms.Processor[str, str, str, str]):
    def process(self, record: ms.Record[str, str]) -> Any:
        yield record


class YieldingTransformer(ms.ValueTransformer[str, str, str]):
    def transform(self, key: str, value: str | None) -> Any:
        yield value


def test_process_cannot_be_a_generator_function() -> None:
    with pytest.raises(TopologyError, match=r"its process\(\) is a generator function.*self.context.forward"):
        Driver(topology(Yielding))


def test_transform_cannot_be_a_generator_function() -> None:
    builder = ms.StreamsBuilder()
    builder.table("in").transform_values(YieldingTransformer)
    with pytest.raises(TopologyError, match=r"its transform\(\) is a generator function.*return the value"):
        Driver(builder.build())


async def tick_later(now: int) -> None: ...


def tick_lazily(now: int) -> Any:
    yield now


class TestSchedules:
    @pytest.mark.parametrize(
        ("kind", "callback", "message"),
        [
            (
                "wall_clock",
                print,
                "the kind of a schedule is ms.stream_time or ms.wall_clock, not 'wall_clock'",
            ),
            (ms.wall_clock, None, "a schedule calls a function, not None"),
            (ms.wall_clock, tick_later, "'tick_later' is a coroutine function"),
            (ms.wall_clock, tick_lazily, "'tick_lazily' is a generator function"),
            (ms.wall_clock, lambda: None, r"is called with \(now\), but it takes \(\)"),
        ],
    )
    def test_must_call_a_plain_function_that_takes_the_time(
        self, kind: Any, callback: Any, message: str
    ) -> None:
        class Scheduling(ms.Processor[str, str, str, str]):
            def init(self, context: ms.ProcessorContext[str, str]) -> None:
                super().init(context)
                context.schedule(5, kind, callback)

            def process(self, record: ms.Record[str, str]) -> None: ...

        with pytest.raises(ProcessingError, match=message):
            Driver(topology(Scheduling))


def test_acknowledging_while_no_record_is_processed_is_refused() -> None:
    Acknowledging.instances = []
    with Driver(topology(Acknowledging, acknowledges=True)) as driver:
        driver.pipe("in", "k", "v")
        (processor,) = Acknowledging.instances
        assert processor.metadata is not None
        with pytest.raises(ProcessingError, match="acknowledges a record while no record is being processed"):
            processor.context.acknowledge(processor.metadata)


class TestMethods:
    def test_process_must_be_defined(self) -> None:
        class Misspelt(ms.Processor[str, str, str, str]):
            def proces(self, record: ms.Record[str, str]) -> None: ...

        message = r"'asking': Misspelt does not define process\(self, record\); is proces\(\) meant to be this method\?"
        for supplier in (Misspelt, lambda: Misspelt()):
            with pytest.raises(TopologyError, match=message):
                topology(supplier)

    def test_transform_must_be_defined(self) -> None:
        with pytest.raises(
            TopologyError, match=r"ValueTransformer does not define transform\(self, key, value\)$"
        ):
            ms.StreamsBuilder().table("in").transform_values(ms.ValueTransformer)

    def test_process_may_be_an_attribute(self) -> None:
        class Chosen(ms.Processor[str, str, str, str]):
            def __init__(self) -> None:
                self.process = self.forward  # type: ignore[method-assign]

            def forward(self, record: ms.Record[str, str]) -> None:
                self.context.forward(record)

        class Nothing(ms.Processor[str, str, str, str]):
            def __init__(self) -> None: ...

        with Driver(topology(Chosen)) as driver:
            driver.pipe("in", "k", "v")
            assert [record.value for record in driver.read("out")] == ["v"]
        with pytest.raises(TopologyError, match="Nothing does not define process"):
            Driver(topology(Nothing))

    def test_must_take_the_arguments_they_are_called_with(self) -> None:
        class Keyed(ms.Processor[str, str, str, str]):
            def process(self, key: str, value: str) -> None:  # type: ignore[override]
                ...

        with pytest.raises(
            TopologyError,
            match=r"'asking': .*process' is called with \(record\), but it takes \(key, value\)",
        ):
            Driver(topology(Keyed))

    def test_have_a_context_even_if_init_does_not_call_the_base_class(self) -> None:
        class Forgetting(ms.Processor[str, str, str, str]):
            def init(self, context: ms.ProcessorContext[str, str]) -> None:
                self.prefix = f"{self.context.application_id}: "

            def process(self, record: ms.Record[str, str]) -> None:
                self.context.forward(record.with_value(self.prefix + record.value))

        with Driver(topology(Forgetting), application_id="app") as driver:
            driver.pipe("in", "k", "v")
            assert [record.value for record in driver.read("out")] == ["app: v"]

    @pytest.mark.parametrize("method", ["init", "close"])
    def test_report_the_node_and_the_line_if_they_fail(self, method: str) -> None:
        def fail(self: object, *arguments: object) -> None:
            raise LookupError("no such thing")

        supplier = type("Failing", (Asking,), {method: fail})
        line = fail.__code__.co_firstlineno + 1
        message = rf"^{method}\(\) of Failing, the processor of 'asking', failed in task 0_0: LookupError: no such thing \(.*, line {line}, in fail\)$"
        with pytest.raises(ProcessingError, match=message), Driver(topology(supplier)):
            pass
