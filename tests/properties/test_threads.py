"""Several threads have the same outputs, stores, drops, notices, offsets and snapshots as one thread (KIP-408).

Random graphs of operators process good and bad records, cut into random steps, once with one thread and once with several, whose
order a seed decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.core.engine import threaded_nodes
from unit.helpers import Host, ShuffledThreads

from .test_columns import INT, JSON, OPERATORS, SINKS, SOURCES, STEPS, TEXT, fails, run, without_traces

Stream = ms.KStream[Any, Any]


class Sums(ms.Processor[Any, Any, Any, Any]):
    """Forwards all that a record can see of earlier records: their sum, stream time and metadata."""

    stores = (ms.stores.key_value("sums", TEXT, INT),)

    def init(self, context: ms.ProcessorContext[Any, Any]) -> None:
        super().init(context)
        self.sums = context.state_store("sums")
        context.schedule(2, ms.PunctuationType.STREAM_TIME, self.forward_total)

    def process(self, record: ms.Record[Any, Any]) -> None:
        total = (self.sums.get("all") or 0) + len(str(fails(record.value)))
        self.sums.put("all", total)
        metadata = self.context.record_metadata
        self.context.forward(record.with_value(f"{total} {self.context.stream_time_ms} {metadata}"))

    def forward_total(self, now_ms: int) -> None:
        self.context.forward(ms.Record("tell", f"{now_ms}: {self.sums.get('all')}", now_ms))


def with_sums(stream: Stream) -> Stream:
    return stream.process(Sums)


def split(stream: Stream) -> Stream:
    first, second = stream.split().branch(lambda key, value: fails(value) == "a").default().values()
    return first.map_values(lambda value: f"{value}1").merge(second.peek(lambda key, value: fails(key)))


def twice(stream: Stream) -> Stream:
    """Send each record to a stateful operator, and then to the next operator of the graph."""
    stream.group_by_key(key=TEXT, value=JSON).count().to_stream().to("counted", key=TEXT, value=JSON)
    return stream.map_values(lambda value: f"{fails(value)}!")


def to_chosen_topics(stream: Stream) -> Stream:
    stream.to(lambda key, value, metadata: f"out-{metadata.offset % 2}-{fails(value)}", key=TEXT, value=JSON)
    stream.to(
        "placed", key=TEXT, value=JSON, partitioner=lambda topic, key, value, count: len(str(value)) % 3
    )
    return stream


ALL_OPERATORS: dict[str, Callable[[Stream], Stream]] = {
    **OPERATORS,
    "processor": with_sums,
    "split": split,
    "twice": twice,
    "chosen": to_chosen_topics,
    "flat_map": lambda s: s.flat_map(lambda key, value: [(value, key), (key, fails(value))]),
    "peek": lambda s: s.peek(lambda key, value: fails(key)),
}


def built(source: tuple[Any, Any], operators: list[str], sink: str) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream: Stream = builder.stream("in", key=source[0], value=source[1])
    for operator in operators:
        stream = ALL_OPERATORS[operator](stream)
    key, value = SINKS[sink]
    stream.to("out", key=key, value=value)
    return builder.build()


BLOCKS = st.sampled_from([1, 2, 128])


@settings(max_examples=400)
@given(
    source=SOURCES,
    operators=st.lists(st.sampled_from(sorted(ALL_OPERATORS)), max_size=4),
    last=st.sampled_from([[], ["processor"]]),
    sink=st.sampled_from(sorted(SINKS)),
    steps=STEPS,
    policy=st.sampled_from(["fail", "skip", "dead_letter"]),
    cache_bytes=st.sampled_from([0, 1 << 20]),
    count=st.integers(2, 5),
    seed=st.integers(0, 1 << 16),
    per_thread=BLOCKS,
)
def test_several_threads_have_the_same_results_as_one(
    source: Any,
    operators: list[str],
    last: list[str],
    sink: str,
    steps: Any,
    policy: str,
    cache_bytes: int,
    count: int,
    seed: int,
    per_thread: int,
) -> None:
    topology = built(source, [*operators, *last], sink)
    on_one_thread = run(topology, steps, policy, cache_bytes)
    with patch.object(threaded_nodes, "_RECORDS_PER_THREAD", per_thread):
        on_several_threads = run(topology, steps, policy, cache_bytes, ShuffledThreads(count, seed))
    assert without_traces(on_several_threads) == without_traces(on_one_thread)


KEYED = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 9)), max_size=40)


@settings(max_examples=100)
@given(rows=KEYED, count=st.integers(2, 5), seed=st.integers(0, 1 << 16), per_thread=BLOCKS)
def test_functions_see_the_records_of_a_key_in_order(
    rows: list[tuple[str | None, int]], count: int, seed: int, per_thread: int
) -> None:
    seen: dict[str | None, list[str]] = defaultdict(list)
    builder = ms.StreamsBuilder()
    builder.stream("in").foreach(lambda key, value: seen[key].append(value))
    with patch.object(threaded_nodes, "_RECORDS_PER_THREAD", per_thread):
        host = Host(builder.build(), threads=ShuffledThreads(count, seed))
        host.run("in", *((key, str(number), timestamp) for number, (key, timestamp) in enumerate(rows)))
    expected: dict[str | None, list[str]] = defaultdict(list)
    for number, (key, _) in enumerate(rows):
        expected[key].append(str(number))
    assert sorted(seen.pop(None, [])) == sorted(expected.pop(None, []))
    assert seen == expected


@settings(max_examples=200)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from(["x", "good", "bad"])), max_size=30
    ),
    steps=st.integers(1, 3),
    policy=st.sampled_from(["fail", "skip", "dead_letter"]),
    count=st.integers(2, 5),
    seed=st.integers(0, 1 << 16),
    per_thread=BLOCKS,
)
def test_a_record_that_raises_system_exit_in_a_thread_is_a_failed_record(
    rows: list[tuple[str | None, str]], steps: int, policy: Any, count: int, seed: int, per_thread: int
) -> None:
    def sent(error: type[BaseException], used: ShuffledThreads | None) -> Any:
        def call(value: str) -> str:
            if value == "bad":
                raise error
            return f"{value}!"

        builder = ms.StreamsBuilder()
        builder.stream("in").map_values(call).to("out")
        policies = ms.ErrorPolicies("fail", policy, "fail", "dead")
        host, outcomes = Host(builder.build(), policies=policies, threads=used), []
        try:
            for start in range(steps):
                outcome = host.run("in", *((key, value, 0) for key, value in rows[start::steps]))
                facts = [(topic, out.keys, out.values) for topic, out in outcome.sends]
                outcomes.append((facts, outcome.metrics, outcome.committable))
        except ms.errors.ProcessingError as failed:
            outcomes.append(str(failed).partition(": ")[0])
        return outcomes

    with patch.object(threaded_nodes, "_RECORDS_PER_THREAD", per_thread):
        with_exits = sent(SystemExit, ShuffledThreads(count, seed))
    assert with_exits == sent(LookupError, None)
