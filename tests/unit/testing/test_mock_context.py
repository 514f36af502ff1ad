"""A processor without a driver, with a mock context that captures its requests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import StoreError


class CountingProcessor(ms.Processor[str, str, str, int]):
    """Uses a store, a punctuation, a counter, commits and forwards of its context."""

    stores = (ms.stores.key_value("seen", ms.serdes.string, ms.serdes.int64),)

    def init(self, context: ms.ProcessorContext[str, int]) -> None:
        super().init(context)
        self.seen = context.state_store("seen")
        self.flush = context.schedule(timedelta(seconds=1), ms.stream_time, self.forward_counts, start_time=5)

    def process(self, record: ms.Record[str, str]) -> None:
        self.seen.put(record.key, (self.seen.get(record.key) or 0) + 1)
        self.context.count("seen")
        self.context.commit()
        if record.value == "stop":
            self.flush.cancel()

    def forward_counts(self, now_ms: int) -> None:
        for key, count in self.seen.all():
            self.context.forward(ms.Record(key, count, now_ms), "counts")


@pytest.fixture
def context() -> ms.testing.MockProcessorContext:
    return ms.testing.MockProcessorContext(stores=CountingProcessor.stores)


def test_requests_of_a_processor_are_captured(context: ms.testing.MockProcessorContext) -> None:
    processor = CountingProcessor()
    processor.init(context)
    assert not context.commit_requested
    for key in "aba":
        processor.process(ms.Record(key, "v", 0))
    assert (context.commit_requested, context.counted["seen"], context.forwarded) == (True, 3, [])
    (punctuator,) = context.punctuators
    assert (punctuator.interval_ms, punctuator.kind, punctuator.start_time) == (1_000, ms.stream_time, 5)
    punctuator.callback(7)
    assert context.forwarded == [(ms.Record("a", 2, 7), "counts"), (ms.Record("b", 1, 7), "counts")]
    assert context.scheduled(processor.forward_counts) == (punctuator,)
    processor.process(ms.Record("a", "stop", 0))
    assert (punctuator.cancelled, context.scheduled(processor.forward_counts)) == (True, ())


def test_the_mock_has_all_members_of_a_processor_context(context: Any) -> None:
    protocol: Any = ms.ProcessorContext
    names = {name for name in vars(protocol) if not name.startswith("_")}
    assert {name for name in names if not hasattr(context, name)} == set()


def test_calls_and_acknowledgements_are_captured(context: ms.testing.MockProcessorContext) -> None:
    metadata = ms.RecordMetadata("in", 0, 3)
    context.issue(print, repr, 1, 2)
    context.acknowledge(metadata)
    assert (context.issued, context.acknowledged) == ([(print, repr, (1, 2))], [metadata])


def test_a_store_is_returned_for_its_name_or_its_specification(
    context: ms.testing.MockProcessorContext,
) -> None:
    assert context.state_store(CountingProcessor.stores[0]) is context.state_store("seen")


def test_an_unknown_store_is_reported_with_the_known_ones(context: ms.testing.MockProcessorContext) -> None:
    with pytest.raises(StoreError, match=r"no store 'else' \(it has: seen\)"):
        context.state_store("else")


def test_an_interval_must_be_at_least_a_millisecond(context: ms.testing.MockProcessorContext) -> None:
    with pytest.raises(ValueError, match="at least 1 ms, not 0"):
        context.schedule(0, ms.wall_clock, lambda now: None)
