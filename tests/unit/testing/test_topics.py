"""Input and output topics of the test driver: serdes, automatic timestamps, ways to read, and cycles of topics."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import SerdeError, TopicNotFoundError, TopologyError
from millstream.core.topology.plan import SubTopology
from millstream.testing._topics import MOST_DERIVED, DerivedRecords

Driver = ms.testing.TopologyTestDriver
INT = ms.serdes.int64


def echo(**source: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in", **source).to("out")
    return builder.build()


def timestamps(driver: Driver) -> list[int]:
    return [record.timestamp for record in driver.read("out")]


def labelled(label: str) -> ms.Serde[Any]:
    """Return a serde that appends a header with the topic, the side and the headers that it receives."""

    def write(text: str, context: ms.serdes.SerdeContext) -> bytes:
        context.headers.append((label, f"{context.topic} {context.side} {len(context.headers)}".encode()))
        return text.encode()

    return ms.serdes.in_context(write, lambda data, context: data.decode())


class TestInput:
    @pytest.mark.parametrize("own_key", [True, False])
    @pytest.mark.parametrize("own_value", [True, False])
    def test_serdes_receive_the_topic_and_headers_and_the_key_is_serialized_first(
        self, own_key: bool, own_value: bool
    ) -> None:
        with Driver(echo(key=labelled("source"), value=labelled("source"))) as driver:
            topic = driver.input_topic(
                "in", key=labelled("own") if own_key else None, value=labelled("own") if own_value else None
            )
            topic.pipe("k", "v", headers=(("h", b""),))
            ((_, data),) = [(each.key, each.headers) for each in driver._runner.sent["out"]]
        key, value = ("own" if own else "source" for own in (own_key, own_value))
        assert data[:3] == (("h", b""), (key, b"in key 1"), (value, b"in value 2"))

    def test_bytes_are_piped_unchanged_without_a_serde(self) -> None:
        with Driver(echo()) as driver:
            driver.input_topic("in", value=ms.serdes.bytes).pipe(b"k", b"v")
            assert [(record.key, record.value) for record in driver.read("out")] == [("k", "v")]

    def test_times_start_at_the_wall_clock_and_do_not_advance(self) -> None:
        with Driver(echo(), wall_clock_ms=7) as driver:
            driver.input_topic("in").pipe_values(["a", "b"])
            assert timestamps(driver) == [7, 7]

    @pytest.mark.parametrize("start", [1_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)])
    @pytest.mark.parametrize("advance", [500, timedelta(milliseconds=500)])
    def test_times_advance_automatically(self, start: Any, advance: Any) -> None:
        with Driver(echo()) as driver:
            topic = driver.input_topic("in", start=start, advance=advance)
            topic.pipe_all([("k", "a"), ("k", "b")])
            topic.pipe("k", "of its own time", 3)
            topic.advance_time(timedelta(seconds=1))
            topic.pipe_value("c")
            topic.pipe_value("of its own time", timestamp=4)
            assert (timestamps(driver), topic.time_ms) == ([1_000, 1_500, 3, 3_000, 4], 3_500)

    def test_a_start_is_rounded_down_as_in_settings(self) -> None:
        with Driver(echo()) as driver:
            start = datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=UTC)
            assert driver.input_topic("in", start=start).time_ms == 1_999

    @pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone of the process cannot be changed")
    def test_a_start_without_a_time_zone_is_utc_on_every_machine(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TZ", "America/New_York")
        time.tzset()
        try:
            with Driver(echo()) as driver:
                assert driver.input_topic("in", start=datetime(1970, 1, 1, 0, 0, 1)).time_ms == 1_000
        finally:
            monkeypatch.undo()
            time.tzset()

    @pytest.mark.parametrize("back", [-1, timedelta(seconds=-1)])
    def test_times_cannot_go_back(self, back: Any) -> None:
        with Driver(echo()) as driver:
            with pytest.raises(ValueError, match=r"^advance\(.* cannot go back"):
                driver.input_topic("in", advance=back)
            with pytest.raises(ValueError, match=r"^advance_time\(.* cannot go back"):
                driver.input_topic("in").advance_time(back)

    def test_serdes_may_differ_from_those_of_the_source(self) -> None:
        with Driver(echo(value=INT)) as driver:
            topic = driver.input_topic("in", key=INT, value=ms.serdes.bytes)
            topic.pipe(1, (5).to_bytes(8, "big"))
            out = driver.output_topic("out", key=INT, value=INT)
            assert out.read_one() == ms.Record(1, 5, 0)

    def test_serdes_default_to_those_of_the_source(self) -> None:
        with Driver(echo(value=INT)) as driver:
            driver.input_topic("in").pipe("k", 5)
            assert driver.output_topic("out", value=INT).read_pairs() == [("k", 5)]

    def test_a_value_that_does_not_fit_its_serde_is_refused(self) -> None:
        with Driver(echo()) as driver, pytest.raises(SerdeError, match=r"serdes\.int64 takes an int"):
            driver.input_topic("in", value=INT).pipe("k", "five")  # type: ignore[arg-type]

    def test_headers_are_passed_on(self) -> None:
        with Driver(echo()) as driver:
            driver.input_topic("in").pipe("k", None, headers=[("h", b"1")])
            assert driver.read("out") == [ms.Record("k", None, 0, (("h", b"1"),))]

    @pytest.mark.parametrize("name", ["im", None])
    def test_a_topic_that_is_not_read_is_refused(self, name: Any) -> None:
        with (
            Driver(echo()) as driver,
            pytest.raises(TopicNotFoundError, match=f"does not read topic {name!r}; it reads: in"),
        ):
            driver.input_topic(name)


class TestOutput:
    def piped(self, *pairs: tuple[str | None, str | None]) -> ms.testing.OutputTopic[str, str]:
        driver = Driver(echo())
        driver.input_topic("in").pipe_all(pairs)
        return driver.output_topic("out")

    def test_records_are_read_in_order(self) -> None:
        out = self.piped(("a", "1"), ("b", "2"), ("c", "3"))
        assert (len(out), out.is_empty) == (3, False)
        assert out.read_one() == ms.Record("a", "1", 0)
        assert out.read_values() == ["2", "3"]
        assert (len(out), out.is_empty, out.read_all()) == (0, True, [])

    def test_reading_an_empty_topic_is_an_error(self) -> None:
        with pytest.raises(LookupError, match="topic 'out' has no record to read"):
            self.piped().read_one()

    def test_two_objects_of_a_topic_share_its_records(self) -> None:
        with Driver(echo()) as driver:
            first, second = driver.output_topic("out"), driver.output_topic("out")
            driver.input_topic("in").pipe_values(["1", "2", "3"])
            assert (first.read_one().value, second.read_one().value) == ("1", "2")
            assert [record.value for record in driver.read("out")] == ["3"]
            driver.pipe("in", None, "4")
            assert (len(first), second.read_values()) == (1, ["4"])

    def test_read_as_table_returns_the_last_value_of_each_key(self) -> None:
        out = self.piped(("a", "1"), ("b", "2"), ("a", "3"), ("b", None))
        assert out.read_as_table() == {"a": "3"}

    def test_read_as_table_refuses_a_record_without_a_key(self) -> None:
        with pytest.raises(ValueError, match=r"topic 'out' has a record without a key, .* value='1'"):
            self.piped((None, "1")).read_as_table()


def cyclic(growing: bool) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(lambda value: f"{value}x" if growing else value).to("middle")
    builder.stream("middle").filter(lambda key, value: len(value) < 5).to("in")
    return builder.build()


def test_a_cycle_that_ends_is_processed_to_its_end() -> None:
    with ms.testing.TopologyTestDriver(cyclic(growing=True)) as driver:
        driver.pipe("in", "k", "v")
        assert [record.value for record in driver.read("middle")] == ["vx", "vxx", "vxxx", "vxxxx"]


def test_a_cycle_that_does_not_end_is_stopped() -> None:
    with ms.testing.TopologyTestDriver(cyclic(growing=False)) as driver:
        message = "it reads: ('in' -> 'middle' -> 'in'|'middle' -> 'in' -> 'middle'). After 100,000 records"
        with pytest.raises(TopologyError, match=message):
            driver.pipe("in", "k", "v")


def reader(topic: str) -> SubTopology | None:
    numbers = {"in": 0, "middle": 1}
    return SubTopology(numbers[topic], {}, {}) if topic in numbers else None


def test_many_records_without_a_cycle_are_accepted() -> None:
    derived = DerivedRecords(reader)
    derived.begin(1)
    derived.sent(0, "middle")
    derived.sent(1, "out")
    for _ in range(10):
        derived.add("middle", MOST_DERIVED)


def test_a_large_micro_batch_may_have_more_results() -> None:
    derived = DerivedRecords(reader)
    derived.sent(0, "in")
    derived.begin(MOST_DERIVED)
    derived.add("in", MOST_DERIVED)
    derived.begin(1)
    with pytest.raises(TopologyError, match="it reads: 'in' -> 'in'"):
        derived.add("in", MOST_DERIVED)
