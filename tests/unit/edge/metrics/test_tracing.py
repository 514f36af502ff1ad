"""The context of a trace follows records from input to output, through a processor that starts its own span."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import millstream as ms
from millstream import tracing

PARENT = ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
EXPORTED = InMemorySpanExporter()


@pytest.fixture
def tracer() -> Iterator[trace.Tracer]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTED))
    yield provider.get_tracer("test")
    EXPORTED.clear()
    provider.shutdown()


def test_operators_preserve_the_trace_context() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(str.upper).to("out")
    with ms.testing.TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "k", "v", headers=(PARENT,))
        (record,) = driver.read("out")
    assert record.headers == (PARENT,)


def test_results_of_a_processor_belong_to_its_span(tracer: trace.Tracer) -> None:
    class Spanning(ms.Processor[str, str, str, str]):
        def process(self, record: ms.Record[str, str]) -> None:
            with tracer.start_as_current_span("price", context=tracing.extract(record.headers)):
                self.context.forward(record.with_headers(tracing.inject(record.headers)))

    topology = ms.Topology().add_source("s", "in").add_processor("p", Spanning, "s").add_sink("k", "out", "p")
    with ms.testing.TopologyTestDriver(topology) as driver:
        driver.pipe("in", "k", "v", headers=(PARENT, ("tenant", b"a")))
        (record,) = driver.read("out")
    (span,) = EXPORTED.get_finished_spans()
    assert (span.context.trace_id, span.parent and span.parent.span_id) == (TRACE, 0x00F067AA0BA902B7)
    assert record.headers[0] == ("tenant", b"a")
    parent = trace.get_current_span(tracing.extract(record.headers)).get_span_context()
    assert (parent.trace_id, parent.span_id) == (TRACE, span.context.span_id)


@pytest.mark.parametrize(
    "headers", [(), (("traceparent", None),), (("traceparent", b"\xff"),), (("other", b"x"),)]
)
def test_a_record_without_a_valid_trace_has_no_trace_context(
    headers: tuple[tuple[str, bytes | None], ...],
) -> None:
    assert not trace.get_current_span(tracing.extract(headers)).get_span_context().is_valid
    assert tracing.inject((("other", b"x"),)) == (("other", b"x"),)
