"""Processors with coroutine methods that would not be awaited, or with invalid results of callbacks."""

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
    made: list[Acknowledging]

    def process(self, record: ms.Record[str, str]) -> None:
        self.made.append(self)
        self.metadata = self.context.record_metadata


def topology(processor: Any, **options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").process(processor, name="asking", **options).to("out")
    return builder.build()


def test_the_method_that_gets_a_result_cannot_ask_for_another_attempt() -> None:
    refusal = pytest.raises(ProcessingError, match=r"answered\(\) returned TryAgain")
    with Driver(topology(Asking, calls=ms.Calls())) as driver, refusal:
        driver.pipe("in", "k", "v")


def test_nor_can_it_be_a_coroutine_function() -> None:
    refusal = pytest.raises(ProcessingError, match=r"answered\(\) is the callback of a call and a coroutine")
    with Driver(topology(AsynchronousAnswer, calls=ms.Calls())) as driver, refusal:
        driver.pipe("in", "k", "v")


@pytest.mark.parametrize("options", [{}, {"calls": ms.Calls()}, {"acknowledges": True}])
def test_nor_can_process(options: Any) -> None:
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


def test_nor_can_transform() -> None:
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
    def test_call_a_plain_function_with_the_time(self, kind: Any, callback: Any, message: str) -> None:
        class Scheduling(ms.Processor[str, str, str, str]):
            def init(self, context: ms.ProcessorContext[str, str]) -> None:
                super().init(context)
                context.schedule(5, kind, callback)

            def process(self, record: ms.Record[str, str]) -> None: ...

        with pytest.raises(ProcessingError, match=message):
            Driver(topology(Scheduling))


def test_nothing_is_acknowledged_in_between() -> None:
    Acknowledging.made = []
    with Driver(topology(Acknowledging, acknowledges=True)) as driver:
        driver.pipe("in", "k", "v")
        (processor,) = Acknowledging.made
        assert processor.metadata is not None
        with pytest.raises(ProcessingError, match="acknowledges a record while no record is being processed"):
            processor.context.acknowledge(processor.metadata)
