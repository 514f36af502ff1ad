"""Stream time in a key range is that of the whole partition, whichever of its records the range has received."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import TopologyTestDriver

ROWS = st.lists(
    st.tuples(st.none() | st.sampled_from("abcdefgh"), st.none() | st.just("x"), st.integers(0, 60)),
    max_size=40,
)


class StreamTimeWatcher(ms.Processor[str, str, str, Any]):
    """Forwards stream time for each record, and a record for each stored key at each stream-time punctuation."""

    def init(self, context: ms.ProcessorContext[str, Any]) -> None:
        self._context = context
        self._last = context.state_store("last")
        context.schedule(10, ms.PunctuationType.STREAM_TIME, self._punctuate)

    def process(self, record: ms.Record[str, str]) -> None:
        if record.key is not None:
            self._last.put(record.key, record.timestamp)
        self._context.forward(record.with_value(str(self._context.stream_time_ms)))

    def _punctuate(self, time: int) -> None:
        for key, _ in list(self._last.all()):
            self._context.forward(ms.Record(key, f"punctuated at {time}", 0))


def topology() -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.key_value("last", ms.serdes.string, ms.serdes.int64))
    words = builder.stream("words")
    words.process(StreamTimeWatcher, stores=["last"], key_local=True).to("watched")
    for name, windows in (
        ("tumbling", ms.TumblingWindows(10, grace=5)),
        ("hopping", ms.HoppingWindows(10, 4, grace=0)),
    ):
        counts = words.group_by_key().windowed_by(windows).count(store=name)
        counts.to_stream().to(name, value=ms.serdes.int64)
        counts.suppress(ms.Suppressed.until_window_closes()).to_stream().to(
            f"{name}-closed", value=ms.serdes.int64
        )
    sessions = words.group_by_key().windowed_by(ms.SessionWindows(5, grace=3)).count(store="sessions")
    sessions.to_stream().to("sessions", value=ms.serdes.int64)
    table = words.filter(lambda key, value: key is not None).to_table(store="table")
    words.left_join(table, lambda word, row: f"{word}-{row}").to("joined")
    return builder.build()


TOPICS = ("watched", "tumbling", "tumbling-closed", "hopping", "hopping-closed", "sessions", "joined")


def outputs(rows: list[tuple[str | None, str | None, int]], commit_every: int, parallelism: int) -> Any:
    settings = {"statestore_cache_max_bytes": 0, "commit_every": commit_every, "parallelism": parallelism}
    with TopologyTestDriver(topology(), **settings) as driver:
        for key, value, time in rows:
            driver.pipe("words", key, value, timestamp=time)
        driver.commit()
        received: dict[Any, list[Any]] = defaultdict(list)
        for topic in TOPICS:
            for record in driver.read(topic):
                key = record.key.key if isinstance(record.key, ms.Windowed) else record.key
                received[topic, key].append((record.key, record.value, record.timestamp))
        return dict(received), driver.dropped()


@given(ROWS, st.sampled_from([1, 3, 50]))
def test_each_key_gets_the_results_of_the_undivided_task(
    rows: list[tuple[str | None, str | None, int]], commit_every: int
) -> None:
    assert outputs(rows, commit_every, 2) == outputs(rows, commit_every, 1)


@pytest.mark.parametrize("parallelism", [1, 2, 17])
@pytest.mark.parametrize("commit_every", [1, 2, 3])
def test_a_cached_update_is_part_of_the_row_that_it_makes_due(parallelism: int, commit_every: int) -> None:
    """A regression: the row was due before its newest update had left the cache, so it was forwarded twice."""
    builder = ms.StreamsBuilder()
    windowed = builder.stream("words").group_by_key().windowed_by(ms.TumblingWindows(50, grace=20))
    delayed = windowed.count(store="counts").suppress(ms.Suppressed.until_time_limit(40))
    delayed.to_stream(lambda window, count: window.key).to("out", value=ms.serdes.int64)
    with TopologyTestDriver(builder.build(), parallelism=parallelism, commit_every=commit_every) as driver:
        for key, time in (("a", 150), ("a", 190), ("b", 300)):
            driver.pipe("words", key, "x", timestamp=time)
        driver.commit()
        assert [(record.key, record.value, record.timestamp) for record in driver.read("out")] == [
            ("a", 2, 190)
        ]
