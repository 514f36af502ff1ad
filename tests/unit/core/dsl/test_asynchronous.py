"""Asynchronous operators in the test driver: order, limits, answers, failures, batches and effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError, ProductionError, TopologyError
from millstream.testing import TopologyTestDriver as Driver

INT = ms.serdes.int64


class Journal:
    """Records when calls begin and end, in ms of the driver's clock."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, Any]] = []
        self.ended: list[tuple[int, Any]] = []
        self.running = 0
        self.max_running = 0

    async def sleep(self, key: Any, value: str) -> str:
        """Sleep for the number of ms after the colon in the value."""
        self.begun.append((_now(), value))
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            await asyncio.sleep(int(value.rpartition(":")[2]) / 1000)
        finally:
            self.running -= 1
        self.ended.append((_now(), value))
        return value.upper()


def _now() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def mapping(function: Callable[..., Any], *, with_key: bool = True, **options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values_async(function, with_key=with_key, name="call", **options).to("out")
    return builder.build()


def out(driver: Driver) -> list[Any]:
    return [record.value for record in driver.read("out")]


def pipe(driver: Driver, *rows: tuple[str | None, str]) -> None:
    for key, value in rows:
        driver.pipe("in", key, value)


class TestOrder:
    ROWS = (("a", "a1:30"), ("b", "b1:10"), ("a", "a2:5"), ("c", "c1:20"))

    @pytest.mark.parametrize(
        ("order", "expected"),
        [
            ("completion", ["A2:5", "B1:10", "C1:20", "A1:30"]),
            ("partition", ["A1:30", "B1:10", "A2:5", "C1:20"]),
            ("key", ["B1:10", "C1:20", "A1:30", "A2:5"]),
        ],
    )
    def test_results_are_forwarded_in_the_requested_order(self, order: Any, expected: list[str]) -> None:
        with Driver(mapping(Journal().sleep, order=order)) as driver:
            pipe(driver, *self.ROWS)
            assert out(driver) == []
            driver.advance_wall_clock(100)
            assert out(driver) == expected

    def test_calls_of_one_key_never_overlap(self) -> None:
        journal = Journal()
        with Driver(mapping(journal.sleep)) as driver:
            pipe(driver, ("a", "1:10"), ("a", "2:10"), ("a", "3:10"), ("b", "4:10"))
            driver.advance_wall_clock(100)
        assert journal.begun == [(0, "1:10"), (0, "4:10"), (10, "2:10"), (20, "3:10")]

    def test_records_without_a_key_have_no_order(self) -> None:
        journal = Journal()
        with Driver(mapping(journal.sleep)) as driver:
            pipe(driver, (None, "1:10"), (None, "2:5"))
            driver.advance_wall_clock(10)
            assert out(driver) == ["2:5", "1:10"]

    def test_unhashable_keys_keep_their_order(self) -> None:
        journal, builder = Journal(), ms.StreamsBuilder()
        stream = builder.stream("in", key=ms.serdes.json, value=ms.serdes.string)
        stream.map_values_async(journal.sleep, with_key=True).to("out")
        with Driver(builder.build()) as driver:
            for value in ("1:10", "2:5"):
                driver.pipe("in", {"id": 1}, value)
            driver.advance_wall_clock(15)
        assert journal.ended == [(10, "1:10"), (15, "2:5")]

    def test_key_timestamp_and_headers_are_kept(self) -> None:
        with Driver(mapping(Journal().sleep)) as driver:
            driver.pipe("in", "k", "v:7", timestamp=42, headers=(("h", b"x"),))
            driver.advance_wall_clock(7)
            assert driver.read("out") == [ms.Record("k", "V:7", 42, (("h", b"x"),))]

    def test_plain_functions_are_called_immediately(self) -> None:
        with Driver(mapping(str.upper, with_key=False)) as driver:
            pipe(driver, ("k", "v"))
            assert out(driver) == ["V"]


class TestCommittedOffset:
    def test_the_committed_offset_never_passes_an_unfinished_record(self) -> None:
        with Driver(mapping(Journal().sleep, order="completion")) as driver:
            pipe(driver, ("a", "1:10"), ("b", "2:50"), ("c", "3:20"))
            committed = []
            for _ in range(6):
                committed.append(driver.committed_offset("in"))
                driver.advance_wall_clock(10)
            assert committed == [0, 1, 1, 1, 1, 3]
            assert out(driver) == ["1:10", "3:20", "2:50"]

    def test_a_hanging_record_does_not_block_other_records(self) -> None:
        with Driver(mapping(Journal().sleep, max_in_flight=2)) as driver:
            pipe(driver, ("hang", "x:60000"), *((f"k{i}", f"{i}:1") for i in range(200)))
            driver.advance_wall_clock(200)
            assert len(out(driver)) == 200
            assert driver.committed_offset("in") == 0


class TestLimits:
    def test_max_in_flight_limits_concurrent_calls(self) -> None:
        journal = Journal()
        with Driver(mapping(journal.sleep, max_in_flight=3)) as driver:
            pipe(driver, *((f"k{i}", f"{i}:10") for i in range(10)))
            driver.advance_wall_clock(40)
            assert len(out(driver)) == 10
        assert journal.max_running == 3

    def test_max_in_flight_per_key_limits_concurrent_calls_of_a_key(self) -> None:
        journal = Journal()
        with Driver(mapping(journal.sleep, order="completion", max_in_flight_per_key=2)) as driver:
            pipe(driver, *(("hot", f"{i}:10") for i in range(4)), ("cold", "c:10"))
            driver.advance_wall_clock(20)
        assert [value for start_ms, value in journal.begun if start_ms == 0] == ["0:10", "1:10", "c:10"]

    def test_a_hot_key_does_not_block_cold_keys(self) -> None:
        journal = Journal()
        with Driver(mapping(journal.sleep, max_in_flight=5)) as driver:
            pipe(driver, *(("hot", f"{i}:10") for i in range(500)), ("cold", "c:10"))
            driver.advance_wall_clock(10)
            assert "C:10" in out(driver)

    def test_rate_limit_limits_the_calls_that_start_in_an_interval(self) -> None:
        journal = Journal()
        with Driver(mapping(journal.sleep, rate_limit=(2, timedelta(seconds=1)))) as driver:
            pipe(driver, *((f"k{i}", f"{i}:1") for i in range(5)))
            driver.advance_wall_clock(5000)
        assert [start_ms for start_ms, _ in journal.begun] == [0, 0, 1000, 1000, 2000]

    def test_the_circuit_breaker_pauses_calls_to_a_failing_endpoint_and_then_retries(self) -> None:
        tried: list[tuple[int, str]] = []
        down = {"bad"}

        async def fetch(key: str, value: str) -> str:
            tried.append((_now(), value))
            if key in down:
                raise OSError("down")
            return value

        topology = mapping(
            fetch,
            circuit_breaker=ms.CircuitBreaker(failures=2, reset_after=100),
            endpoint=lambda key, value: key,
            retry=ms.Retry(initial=10, factor=1, jitter=0),
        )
        with Driver(topology) as driver:
            pipe(driver, ("bad", "x"), ("good", "y"))
            driver.advance_wall_clock(250)
            assert [time_ms for time_ms, value in tried if value == "x"] == [0, 10, 110, 210]
            assert out(driver) == ["y"]
            down.clear()
            driver.advance_wall_clock(250)
            assert out(driver) == ["x"]


class TestAnswers:
    def test_a_delayed_record_is_called_again_when_due_as_the_same_attempt(self) -> None:
        seen: list[tuple[int, int]] = []

        async def later(record: Any, context: ms.CallContext) -> Any:
            seen.append((_now(), context.attempt))
            if len(seen) < 3:
                return ms.delay(in_=timedelta(minutes=5))
            context.forward(record)
            return None

        builder = ms.StreamsBuilder()
        builder.stream("in").process_async(later).to("out")
        with Driver(builder.build()) as driver:
            pipe(driver, ("k", "v"))
            driver.advance_wall_clock(timedelta(minutes=9))
            assert out(driver) == []
            assert driver.committed_offset("in") == 0
            driver.advance_wall_clock(timedelta(minutes=1))
            assert out(driver) == ["v"]
        assert seen == [(0, 1), (300_000, 1), (600_000, 1)]

    def test_a_time_may_be_given_as_a_datetime(self) -> None:
        time = datetime(2030, 1, 1, tzinfo=UTC)
        assert ms.delay(until=time) == ms.delay(until=int(time.timestamp() * 1000))
        assert ms.delay(until=time + timedelta(microseconds=1)) == ms.delay(
            until=int(time.timestamp() * 1000) + 1
        )
        with pytest.raises(ValueError, match="without a time zone"):
            ms.delay(until=datetime(2030, 1, 1))
        with pytest.raises(ValueError, match=r"until=\.\.\., a time, or in_="):
            ms.delay()

    def test_a_delayed_record_blocks_only_later_records_of_its_key(self) -> None:
        delayed: set[str] = set()

        def once(key: str, value: str) -> Any:
            if value == "slow" and value not in delayed:
                delayed.add(value)
                return ms.delay(in_=1000)
            return value

        with Driver(mapping(once)) as driver:
            pipe(driver, ("a", "slow"), ("a", "behind"), ("b", "other"))
            assert out(driver) == ["other"]
            driver.advance_wall_clock(1000)
            assert out(driver) == ["slow", "behind"]

    def test_skipped_records_finish_and_are_counted(self) -> None:
        with Driver(mapping(lambda value: ms.skip() if value == "x" else value, with_key=False)) as driver:
            pipe(driver, ("a", "x"), ("b", "y"))
            assert out(driver) == ["y"]
            assert driver.metrics()["dropped_records"] == 1
            assert driver.committed_offset("in") == 2

    def test_a_call_can_send_its_record_to_the_dead_letter_topic(self) -> None:
        topology = mapping(
            lambda value: ms.dead_letter("no such product"),
            with_key=False,
            on_failure=ms.dead_letter("dead"),
        )
        with Driver(topology) as driver:
            driver.pipe("in", "k", "v", timestamp=9, headers=(("h", b"x"),))
            (letter,) = driver.read("dead")
            assert (letter.key, letter.value, letter.timestamp) == (b"k", b"v", 9)
            kafka_headers = {
                name: letter_part for name, letter_part in letter.headers if name.startswith("__")
            }
            assert kafka_headers == {
                "__streams.errors.exception": b"",
                "__streams.errors.message": b"no such product",
                "__streams.errors.stacktrace": b"",
                "__streams.errors.topic": b"in",
                "__streams.errors.partition": b"0",
                "__streams.errors.offset": b"0",
            }
            assert dict(letter.headers) == {
                **kafka_headers,
                "h": b"x",
                "millstream.error.stage": b"call",
                "millstream.error.node": b"call",
                "millstream.error.topic": b"in",
                "millstream.error.partition": b"0",
                "millstream.error.offset": b"0",
                "millstream.error.record": b"operator",
                "millstream.error.error": b"no such product",
                "millstream.error.attempts": b"1",
                "millstream.error.traceback": b"",
            }

    def test_the_dead_letter_topic_of_the_application_is_the_default(self) -> None:
        topology = mapping(lambda value: ms.dead_letter("why"), with_key=False)
        with Driver(topology, policies=ms.ErrorPolicies(dead_letter_topic="all")) as driver:
            pipe(driver, ("k", "v"))
            assert len(driver.read("all")) == 1
        with Driver(topology) as driver, pytest.raises(ProductionError, match="dead_letter_topic"):
            pipe(driver, ("k", "v"))


class TestFailures:
    @staticmethod
    def failing(times: int, error: type[Exception] = OSError) -> tuple[Callable[..., Any], list[int]]:
        tried: list[int] = []

        async def call(key: str, value: str) -> str:
            tried.append(_now())
            if len(tried) <= times:
                raise error("down")
            return value

        return call, tried

    def test_waits_between_attempts_grow_up_to_the_cap(self) -> None:
        call, tried = self.failing(5)
        retry = ms.Retry(initial=10, factor=3, cap=100, jitter=0)
        with Driver(mapping(call, retry=retry)) as driver:
            pipe(driver, ("k", "v"))
            driver.advance_wall_clock(1000)
            assert out(driver) == ["v"]
        assert tried == [0, 10, 40, 130, 230, 330]

    def test_after_the_last_attempt_the_application_stops_and_says_what_to_do(self) -> None:
        call, tried = self.failing(9)
        retry = ms.Retry(initial=1, max_attempts=3, jitter=0)
        with Driver(mapping(call, retry=retry)) as driver:
            pipe(driver, ("k", "v"))
            with pytest.raises(
                ProcessingError,
                match=r"call in task 0_0 at topic 'in', partition 0, offset 0 \(key b'k', value b'v'\) failed for good after "
                r"3 attempts: OSError: down\. Correct the function, set retry=",
            ):
                driver.advance_wall_clock(100)
        assert len(tried) == 3

    def test_on_failure_skip_drops_the_record(self) -> None:
        call, _ = self.failing(1)
        with Driver(mapping(call, on_failure="skip")) as driver:
            pipe(driver, ("k", "bad"), ("k", "good"))
            assert out(driver) == ["good"]
            assert driver.metrics()["dropped_records"] == 1

    def test_a_dead_letter_has_the_cause_and_the_number_of_attempts(self) -> None:
        call, _ = self.failing(9)
        retry = ms.Retry(initial=1, max_attempts=4)
        with Driver(mapping(call, retry=retry, on_failure=ms.dead_letter("dead"))) as driver:
            pipe(driver, ("k", "v"))
            driver.advance_wall_clock(100)
            (letter,) = driver.read("dead")
            headers = dict(letter.headers)
            assert headers["millstream.error.attempts"] == b"4"
            assert headers["millstream.error.error"] == b"OSError: down"
            assert b"down" in (headers["millstream.error.traceback"] or b"")
            assert driver.committed_offset("in") == 1

    def test_only_the_listed_errors_are_retried(self) -> None:
        call, tried = self.failing(1, KeyError)
        with Driver(mapping(call, retry=ms.Retry(on=(OSError,)), on_failure="skip")) as driver:
            pipe(driver, ("k", "v"))
            driver.advance_wall_clock(10_000)
        assert tried == [0]

    def test_no_attempt_begins_after_max_elapsed(self) -> None:
        call, tried = self.failing(99)
        retry = ms.Retry(initial=40, factor=1, jitter=0, max_elapsed=100)
        with Driver(mapping(call, retry=retry, on_failure="skip")) as driver:
            pipe(driver, ("k", "v"))
            driver.advance_wall_clock(10_000)
        assert tried == [0, 40, 80]

    def test_jitter_is_bounded_and_deterministic(self) -> None:
        retry = ms.Retry(initial=1000, factor=1, jitter=0.2)
        waits = [retry.wait_ms(attempt, seed="x") for attempt in range(1, 200)]
        assert min(waits) >= 800
        assert max(waits) <= 1200
        assert len(set(waits)) > 50
        assert waits == [retry.wait_ms(attempt, seed="x") for attempt in range(1, 200)]

    def test_an_attempt_that_times_out_is_cancelled_and_retried(self) -> None:
        journal = Journal()

        async def slow_once(key: str, value: str) -> str:
            return await journal.sleep(key, value if journal.begun else "first:500")

        retry = ms.Retry(initial=5, jitter=0, max_attempts=2)
        with Driver(mapping(slow_once, timeout=50, retry=retry)) as driver:
            pipe(driver, ("k", "v:10"))
            driver.advance_wall_clock(1000)
            assert out(driver) == ["V:10"]
        assert journal.begun == [(0, "first:500"), (55, "v:10")]
        assert journal.ended == [(65, "v:10")]

    def test_total_timeout_limits_all_attempts_together(self) -> None:
        call, tried = self.failing(99)
        topology = mapping(
            call,
            retry=ms.Retry(initial=30, factor=1, jitter=0),
            total_timeout=100,
            on_failure=ms.dead_letter("dead"),
        )
        with Driver(topology) as driver:
            pipe(driver, ("k", "v"))
            driver.advance_wall_clock(1000)
            (letter,) = driver.read("dead")
        assert tried == [0, 30, 60, 90]
        assert b"total_timeout" in (dict(letter.headers)["millstream.error.error"] or b"")

    def test_an_error_downstream_of_a_call_is_handled_like_any_other_error(self) -> None:
        builder = ms.StreamsBuilder()
        called = builder.stream("in").map_values_async(lambda value: value)
        called.map_values(int, name="number").to("out", value=INT)
        with Driver(builder.build()) as driver:
            pipe(driver, ("k", "1"))
            with pytest.raises(ProcessingError, match=r"number failed .* offset 1 \(key b'k', value b'x'\)"):
                pipe(driver, ("k", "x"))


class TestBatches:
    def test_a_full_batch_is_called_at_once_and_a_partial_batch_after_max_wait(self) -> None:
        batches: list[tuple[int, list[str]]] = []

        async def upper(values: list[str]) -> list[str]:
            batches.append((_now(), values))
            return [value.upper() for value in values]

        with Driver(mapping(upper, with_key=False, batch=(3, 100))) as driver:
            pipe(driver, *((f"k{i}", f"v{i}") for i in range(4)))
            driver.advance_wall_clock(100)
            assert out(driver) == ["V0", "V1", "V2", "V3"]
        assert batches == [(0, ["v0", "v1", "v2"]), (100, ["v3"])]

    def test_a_batch_may_hold_several_records_of_a_key_in_their_order(self) -> None:
        batches: list[list[str]] = []

        def upper(values: list[str]) -> list[str]:
            batches.append(values)
            return values

        with Driver(mapping(upper, with_key=False, batch=(3, 100))) as driver:
            pipe(driver, *(("hot", f"v{i}") for i in range(6)))
            assert out(driver) == [f"v{i}" for i in range(6)]
        assert batches == [["v0", "v1", "v2"], ["v3", "v4", "v5"]]

    def test_each_record_of_a_batch_has_its_own_answer(self) -> None:
        turns: list[list[str]] = []

        def each(values: list[str]) -> list[Any]:
            turns.append(values)
            answers: dict[str, Any] = {"again": ms.retry(in_=10), "bad": ValueError("no"), "none": ms.skip()}
            return [answers.get(value, value) if len(turns) == 1 else value for value in values]

        topology = mapping(each, with_key=False, batch=(4, 50), on_failure=ms.dead_letter("dead"))
        with Driver(topology) as driver:
            pipe(driver, *((value, value) for value in ("good", "again", "bad", "none")))
            assert out(driver) == ["good"]
            driver.advance_wall_clock(60)
            assert out(driver) == ["again"]
            assert [letter.value for letter in driver.read("dead")] == [b"bad"]
        assert turns == [["good", "again", "bad", "none"], ["again"]]

    def test_foreach_receives_a_list_of_keys_and_a_list_of_values(self) -> None:
        seen: list[Any] = []

        async def insert(keys: list[str], values: list[str]) -> list[Any] | None:
            seen.append((keys, values))
            return None if len(seen) == 1 else [ms.skip(), ms.retry(in_=10)]

        builder = ms.StreamsBuilder()
        builder.stream("in").foreach_async(insert, batch=(2, 100))
        with Driver(builder.build()) as driver:
            pipe(driver, ("a", "1"), ("b", "2"))
            assert driver.committed_offset("in") == 2
            pipe(driver, ("c", "3"), ("d", "4"))
            assert driver.committed_offset("in") == 3
        assert seen == [(["a", "b"], ["1", "2"]), (["c", "d"], ["3", "4"])]

    def test_a_result_that_is_not_a_list_of_the_same_length_fails_the_batch(self) -> None:
        with (
            Driver(mapping(lambda values: values[0], with_key=False, batch=(2, 0))) as driver,
            pytest.raises(ProcessingError, match="batch of 1 records returned a str; it must return a list"),
        ):
            pipe(driver, ("k", "v"))


class TestProcess:
    @staticmethod
    def totals(function: Callable[..., Any], **options: Any) -> ms.Topology:
        builder = ms.StreamsBuilder()
        builder.add_state_store(ms.stores.key_value("totals", ms.serdes.string, INT))
        stream = builder.stream("in").process_async(function, stores=["totals"], name="sum", **options)
        stream.to("out", key=ms.serdes.string, value=INT)
        return builder.build()

    def test_a_call_reads_the_state_of_its_key_and_its_own_writes(self) -> None:
        async def add(record: Any, context: ms.CallContext) -> None:
            totals = context.state_store("totals")
            await asyncio.sleep(0.01)
            totals.put(record.key, (totals.get(record.key) or 0) + int(record.value))
            context.forward(record.with_value(totals.get(record.key)))

        with Driver(self.totals(add)) as driver:
            pipe(driver, ("a", "1"), ("a", "2"), ("b", "5"), ("a", "3"))
            assert driver.store("totals").get("a") is None
            driver.advance_wall_clock(30)
            assert [(r.key, r.value) for r in driver.read("out")] == [("a", 1), ("b", 5), ("a", 3), ("a", 6)]
            assert dict(driver.store("totals").all()) == {"a": 6, "b": 5}

    def test_effects_are_applied_in_program_order(self) -> None:
        seen: list[Any] = []

        def both(record: Any, context: ms.CallContext) -> None:
            context.state_store("totals").put("k", 1)
            context.forward(record)
            context.state_store("totals").delete("k")
            context.forward(record)

        builder = ms.StreamsBuilder()
        builder.add_state_store(ms.stores.key_value("totals", ms.serdes.string, INT))
        driver: Driver
        stream = builder.stream("in").process_async(both, stores=["totals"])
        stream.foreach(lambda key, value: seen.append(driver.store("totals").get("k")))
        with Driver(builder.build()) as driver:
            pipe(driver, ("k", "v"))
        assert seen == [1, None]

    def test_a_failed_call_has_no_effects(self) -> None:
        def write(record: Any, context: ms.CallContext) -> Any:
            context.state_store("totals").put("k", 1)
            context.forward(record.with_value(1))
            return ms.retry(in_=10) if context.attempt < 3 else ms.skip()

        with Driver(self.totals(write)) as driver:
            pipe(driver, ("k", "v"))
            driver.advance_wall_clock(100)
            assert driver.read("out") == []
            assert driver.store("totals").get("k") is None

    @pytest.mark.parametrize(
        "access",
        [
            lambda store: store.get("other"),
            lambda store: store.put("other", 1),
            lambda store: store.put("other", None),
            lambda store: store.put_if_absent("other", 1),
            lambda store: store.delete("other"),
        ],
    )
    def test_a_call_cannot_read_or_write_the_state_of_another_key(self, access: Any) -> None:
        def other(record: Any, context: ms.CallContext) -> None:
            access(context.state_store("totals"))

        with (
            Driver(self.totals(other)) as driver,
            pytest.raises(ProcessingError, match="'other', but only the entry of its record's key is sent"),
        ):
            pipe(driver, ("k", "v"))

    def test_a_store_that_is_not_connected_cannot_be_read(self) -> None:
        def unknown(record: Any, context: ms.CallContext) -> None:
            context.state_store("counts")

        with (
            Driver(self.totals(unknown)) as driver,
            pytest.raises(ProcessingError, match="connected: totals"),
        ):
            pipe(driver, ("k", "v"))

    @pytest.mark.parametrize("wrong", ["value", "child"])
    def test_no_effect_is_applied_if_one_of_them_is_invalid(self, wrong: str) -> None:
        def write(record: Any, context: ms.CallContext) -> None:
            context.state_store("totals").put("k", 1)
            context.forward(record.with_value(1))
            if wrong == "value":
                context.state_store("totals").put("k", "text")
            else:
                context.forward(record, "nobody")

        with Driver(self.totals(write), policies=ms.ErrorPolicies(process="skip")) as driver:
            pipe(driver, ("k", "v"))
            assert driver.read("out") == []
            assert driver.store("totals").get("k") is None
            assert driver.committed_offset("in") == 1

    def test_forward_to_an_unknown_child_is_rejected(self) -> None:
        with (
            Driver(self.totals(lambda record, context: context.forward(record, "nobody"))) as driver,
            pytest.raises(ProcessingError, match="'sum' has no child 'nobody'"),
        ):
            pipe(driver, ("k", "v"))

    def test_foreach_ends_the_stream(self) -> None:
        seen: list[Any] = []
        builder = ms.StreamsBuilder()
        builder.stream("in").foreach_async(lambda key, value: seen.append((key, value)))
        with Driver(builder.build()) as driver:
            pipe(driver, ("k", "v"))
            assert driver.committed_offset("in") == 1
        assert seen == [("k", "v")]


def test_asynchronous_operators_can_be_chained() -> None:
    builder = ms.StreamsBuilder()
    first, second = Journal(), Journal()
    stream = builder.stream("in").map_values_async(first.sleep, with_key=True)
    stream.map_values_async(second.sleep, with_key=True).to("out")
    with Driver(builder.build()) as driver:
        pipe(driver, ("a", "x:10"), ("a", "y:10"))
        driver.advance_wall_clock(20)
        assert out(driver) == ["X:10"]
        assert driver.committed_offset("in") == 1
        driver.advance_wall_clock(10)
        assert out(driver) == ["Y:10"]
    assert second.begun == [(10, "X:10"), (20, "Y:10")]


def test_results_can_be_aggregated() -> None:
    builder = ms.StreamsBuilder()
    called = builder.stream("in").map_values_async(Journal().sleep, with_key=True)
    called.group_by_key().count(store="counts").to_stream().to("out", value=INT)
    with Driver(builder.build()) as driver:
        pipe(driver, ("a", "x:10"), ("b", "x:5"), ("a", "y:1"))
        driver.advance_wall_clock(20)
        assert [(r.key, r.value) for r in driver.read("out")] == [("b", 1), ("a", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "time"}, "order must be 'key', 'partition' or 'completion'"),
        ({"max_in_flight": 0}, "max_in_flight must be a whole number of at least 1, not 0"),
        ({"max_in_flight": "10"}, "max_in_flight must be a whole number of at least 1, not '10'"),
        ({"max_in_flight": None}, "max_in_flight must be a whole number"),
        ({"max_in_flight": 2.5}, "max_in_flight must be a whole number"),
        ({"max_in_flight_per_key": 0}, "max_in_flight_per_key must be a whole number of at least 1"),
        ({"max_in_flight_per_key": 2}, "with order='key', the calls of a key run one after the other"),
        (
            {"retry": 3},
            r"retry must be created with ms.Retry\(...\), as in retry=ms.Retry\(max_attempts=3\), not 3",
        ),
        ({"retry": ms.Retry}, "retry must be created with"),
        ({"circuit_breaker": 5}, "circuit_breaker must be created with"),
        ({"on_failure": ms.dead_letter("")}, "on_failure must be"),
        ({"on_failure": ms.dead_letter("not a topic!")}, "'not a topic!' cannot be the name of a topic"),
        ({"batch": 50}, r"batch=\(max_records, max_wait\): it must be a pair of values, not 50"),
        ({"batch": (2.5, 10)}, "max_records of batch"),
        ({"rate_limit": 100}, r"rate_limit=\(calls, per\): it must be a pair of values, not 100"),
        ({"rate_limit": (5, 0)}, "both must be at least 1"),
        (
            {"endpoint": asyncio.sleep, "circuit_breaker": ms.CircuitBreaker()},
            "endpoint must be a plain function",
        ),
        ({"timeout": 0}, "timeout must be at least 1 ms"),
        ({"on_failure": "ignore"}, "on_failure must be 'fail', 'skip' or"),
        ({"batch": (0, 5)}, "max_records of batch"),
        ({"batch": (5, -1)}, "must not be negative"),
        ({"rate_limit": (0, 5)}, "rate_limit"),
        ({"endpoint": str}, "circuit_breaker"),
        (
            {"endpoint": str, "circuit_breaker": ms.CircuitBreaker(), "batch": (2, 5)},
            "one operator per endpoint",
        ),
    ],
)
def test_invalid_options_are_rejected(options: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        mapping(str, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ms.Retry(cap=1), "shorter than initial"),
        (lambda: ms.Retry(factor=0.5), "cannot get shorter"),
        (lambda: ms.Retry(jitter=2), "fraction of the wait"),
        (
            lambda: ms.Retry(max_attempts=0),
            r"Retry\(max_attempts=...\) must be a whole number of at least 1, not 0",
        ),
        (lambda: ms.Retry(factor=float("nan")), "it must be a number"),
        (lambda: ms.Retry(on=[ValueError]), "tuple of exception classes"),  # type: ignore[arg-type]
        (lambda: ms.Retry(on="ValueError"), "tuple of exception classes"),  # type: ignore[arg-type]
        (
            lambda: ms.Retry(on=(OSError, asyncio.CancelledError)),  # type: ignore[arg-type]
            "CancelledError is no subclass of Exception",
        ),
        (lambda: ms.Retry(on=SystemExit), "SystemExit is no subclass of Exception"),  # type: ignore[arg-type]
        (lambda: ms.CircuitBreaker(failures=0), r"CircuitBreaker\(failures=...\) must be a whole number"),
    ],
)
def test_invalid_policies_are_rejected(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


def test_functions_must_be_callable_and_stores_must_be_key_value_stores() -> None:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in")
    with pytest.raises(TopologyError, match="function must be callable, not 'text'"):
        stream.map_values_async("text")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="no key-value store with this name"):
        stream.process_async(print, stores=["nowhere"])
    with pytest.raises(TopologyError, match="use map_values_async"):
        stream.process_async(print, batch=(2, 5))  # type: ignore[call-arg]


class Resets(ms.Processor[Any, Any, Any, Any]):
    def process(self, record: ms.Record[Any, Any]) -> None:
        self.context.state_store("totals").put(record.key, 0)
        self.context.forward(record)


class TestAStoreOfProcessAsync:
    @staticmethod
    def topology(position: str) -> ms.Topology:
        builder = ms.StreamsBuilder()
        builder.add_state_store(ms.stores.key_value("totals", ms.serdes.string, INT))
        stream, other = builder.stream("in"), builder.stream("other")
        if position == "in front":
            stream = stream.process(Resets, stores=["totals"], name="resets")
        called = stream.process_async(lambda record, context: None, stores=["totals"], name="calls")
        beside = {"beside": stream, "elsewhere": other, "behind both": called.merge(other)}
        behind = beside.get(position, called.filter(lambda key, value: True))
        if position != "in front":
            behind.process(Resets, stores=["totals"], name="resets")
        return builder.build()

    @pytest.mark.parametrize("position", ["in front", "beside", "elsewhere", "behind both"])
    def test_cannot_be_used_by_an_operator_that_could_write_during_a_call(self, position: str) -> None:
        with pytest.raises(
            TopologyError, match=r"'resets' uses store 'totals' of 'calls', .* would be overwritten"
        ):
            self.topology(position)

    def test_may_be_used_downstream_of_the_call(self) -> None:
        with Driver(self.topology("behind")) as driver:
            driver.pipe("in", "k", "v")


class TestMisbehavingFunctions:
    """After any error of a function, its record finishes or waits, and later records continue."""

    @staticmethod
    async def cancelled(value: str) -> str:
        if value == "bad":
            other = asyncio.ensure_future(asyncio.sleep(1))
            other.cancel()
            await other
        return value

    @pytest.mark.parametrize("options", [{}, {"timeout": 1_000}])
    def test_a_call_that_is_cancelled_from_inside_fails(self, options: Any) -> None:
        topology = mapping(self.cancelled, with_key=False, on_failure="skip", **options)
        with Driver(topology) as driver:
            pipe(driver, ("a", "bad"), ("a", "good"))
            driver.advance_wall_clock(2_000)
            assert (out(driver), driver.metrics()["dropped_records"]) == (["good"], 1)
            assert driver.committed_offset("in") == 2

    def test_a_call_that_is_cancelled_from_inside_can_be_retried(self) -> None:
        retry = ms.Retry(initial=10, jitter=0, max_attempts=2, on=(ProcessingError,))
        with Driver(mapping(self.cancelled, with_key=False, on_failure="skip", retry=retry)) as driver:
            pipe(driver, ("a", "bad"))
            driver.advance_wall_clock(100)
            assert driver.metrics()["calls_retried"] == 1

    def test_an_error_whose_message_cannot_be_printed_fails_the_call(self) -> None:
        class SilentError(Exception):
            def __str__(self) -> str:
                raise TypeError("no text")

        def fail(value: str) -> str:
            raise SilentError

        with Driver(mapping(fail, with_key=False, on_failure=ms.dead_letter("letters"))) as driver:
            pipe(driver, ("a", "x"))
            (letter,) = driver.read("letters")
        assert (
            dict(letter.headers)["millstream.error.error"] == b"SilentError (its message cannot be printed)"
        )

    @pytest.mark.parametrize("answer", [ms.skip, ms.retry, ms.delay, ms.dead_letter])
    def test_an_answer_without_parentheses_is_reported(self, answer: Any) -> None:
        refusal = pytest.raises(ProcessingError, match=rf"returned ms.{answer.__name__} itself; call it")
        with Driver(mapping(lambda value: answer, with_key=False)) as driver, refusal:
            pipe(driver, ("a", "x"))

    def test_a_function_of_process_async_must_not_return_a_record(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").process_async(lambda record, context: record).to("out")
        refusal = pytest.raises(ProcessingError, match=r"forward records with context.forward\(...\)")
        with Driver(builder.build()) as driver, refusal:
            pipe(driver, ("a", "x"))

    def test_a_wait_of_zero_takes_a_millisecond(self) -> None:
        tried: list[str] = []

        def never(value: str) -> Any:
            tried.append(value)
            return ms.delay(in_=0) if value == "early" else ms.retry(in_=0)

        with Driver(mapping(never, with_key=False, order="completion")) as driver:
            pipe(driver, ("a", "early"), ("b", "again"))
            assert tried == ["early", "again"]
            driver.advance_wall_clock(3)
        assert (tried.count("early"), tried.count("again")) == (4, 4)

    @pytest.mark.parametrize("until", ["2030-01-01", 1.5, True])
    def test_a_time_must_be_an_int_of_ms(self, until: Any) -> None:
        with pytest.raises(TypeError, match="an int of ms since the epoch"):
            ms.delay(until=until)


def test_each_attempt_of_process_async_has_the_metadata_of_its_record() -> None:
    seen: list[Any] = []

    async def call(record: Any, context: Any) -> Any:
        seen.append((context.attempt, *context.record_metadata))
        if context.attempt == 1:
            raise OSError("down")
        context.forward(record)

    builder = ms.StreamsBuilder()
    retry = ms.Retry(initial=10, jitter=0)
    builder.stream("in").process_async(call, retry=retry).to("out")
    with Driver(builder.build()) as driver:
        pipe(driver, ("a", "x"))
        driver.advance_wall_clock(10)
        assert out(driver) == ["x"]
    assert seen == [(1, "in", 0, 0), (2, "in", 0, 0)]


def test_attempts_retries_and_dead_letters_are_counted() -> None:
    async def call(value: str) -> Any:
        if value == "bad":
            raise OSError("down")
        return value

    retry = ms.Retry(initial=10, jitter=0, max_attempts=3)
    topology = mapping(call, with_key=False, retry=retry, on_failure=ms.dead_letter("letters"))
    with Driver(topology) as driver:
        pipe(driver, ("a", "good"), ("b", "bad"))
        driver.advance_wall_clock(100)
        metrics = driver.metrics()
    assert {name: count for name, count in metrics.items() if name.startswith("calls_")} == {
        "calls_settled": 4,
        "calls_retried": 2,
        "calls_dead_lettered": 1,
    }


class TestWaits:
    def test_no_wait_exceeds_the_cap(self) -> None:
        policy = ms.Retry(initial=100, cap=1_000, jitter=0.5)
        assert max(policy.wait_ms(attempt, str(seed)) for attempt in (4, 9) for seed in range(50)) == 1_000

    def test_waits_stay_bounded_after_many_attempts(self) -> None:
        assert ms.Retry(initial=0).wait_ms(5_000, "") == 0
        assert ms.Retry(initial=1, cap=70, jitter=0).wait_ms(5_000, "") == 70

    def test_no_attempt_begins_after_the_total_timeout(self) -> None:
        tried: list[int] = []

        async def fail(value: str) -> str:
            tried.append(_now())
            raise OSError("down")

        topology = mapping(
            fail,
            with_key=False,
            retry=ms.Retry(initial=10, jitter=0),
            circuit_breaker=ms.CircuitBreaker(failures=1, reset_after=5_000),
            total_timeout=1_000,
            on_failure=ms.dead_letter("letters"),
        )
        with Driver(topology) as driver:
            pipe(driver, ("a", "x"))
            driver.advance_wall_clock(20_000)
            (letter,) = driver.read("letters")
        facts = dict(letter.headers)
        assert (tried, facts["millstream.error.attempts"]) == ([0], b"1")
        assert (
            b"total_timeout=1000 ms expired before attempt 2 could begin" in facts["millstream.error.error"]
        )

    def test_the_total_timeout_of_an_old_record_does_not_apply_to_new_records_of_its_batch(self) -> None:
        calls: list[list[str]] = []

        async def together(values: list[str]) -> list[Any]:
            calls.append(values)
            await asyncio.sleep(0.08)
            return [OSError("down") if len(calls) == 1 else value for value in values]

        topology = mapping(
            together,
            with_key=False,
            batch=(3, 0),
            retry=ms.Retry(initial=20, jitter=0),
            total_timeout=120,
            on_failure="skip",
        )
        with Driver(topology) as driver:
            pipe(driver, ("a", "old"))
            driver.advance_wall_clock(99)
            pipe(driver, ("b", "new"))
            driver.advance_wall_clock(200)
            assert "new" in out(driver)

    def test_a_retry_does_not_delay_the_batch_of_a_new_record(self) -> None:
        calls: list[tuple[int, list[str]]] = []

        async def together(values: list[str]) -> list[Any]:
            calls.append((_now(), values))
            return [OSError("down") if value == "bad" else value for value in values]

        topology = mapping(together, with_key=False, batch=(5, 100), retry=ms.Retry(initial=90, jitter=0))
        with Driver(topology) as driver:
            pipe(driver, ("a", "bad"))
            driver.advance_wall_clock(105)
            pipe(driver, ("b", "new"))
            driver.advance_wall_clock(300)
        assert calls[1] == (205, ["bad", "new"])

    def test_a_due_record_does_not_wait_for_a_later_record_of_its_key(self) -> None:
        calls: list[tuple[int, list[str]]] = []

        async def together(values: list[str]) -> list[Any]:
            calls.append((_now(), values))
            if len(calls) > 1:
                return values
            return [ms.retry(in_=10), ms.delay(in_=3_600_000)]

        with Driver(mapping(together, with_key=False, batch=(2, 100))) as driver:
            pipe(driver, ("a", "first"), ("a", "second"))
            driver.advance_wall_clock(1_000)
            assert (calls[1:], out(driver)) == ([(110, ["first"])], ["first"])
            driver.advance_wall_clock(3_600_000)
            assert out(driver) == ["second"]


def test_a_failed_batch_is_one_failure_for_the_circuit_breaker() -> None:
    calls: list[list[str]] = []

    def together(values: list[str]) -> list[str]:
        calls.append(values)
        raise OSError("down")

    topology = mapping(
        together,
        with_key=False,
        order="completion",
        batch=(5, 0),
        on_failure="skip",
        circuit_breaker=ms.CircuitBreaker(failures=2),
    )
    with Driver(topology) as driver:
        for _ in range(3):
            pipe(driver, *((f"k{n}", "x") for n in range(5)))
    assert len(calls) == 2


def test_the_driver_runs_calls_in_a_thread_with_a_running_event_loop() -> None:
    async def test() -> list[Any]:
        with Driver(mapping(Journal().sleep)) as driver:
            pipe(driver, ("a", "x:10"))
            driver.advance_wall_clock(10)
            assert asyncio.get_running_loop() is not None
            return out(driver)

    assert asyncio.run(test()) == ["X:10"]


def test_equal_keys_keep_their_order_even_if_their_pickles_differ() -> None:
    serde = ms.serdes.json

    async def call(value: str) -> Any:
        if value == "first" and _now() < 5_000:
            return ms.delay(in_=5_000)
        return value

    builder = ms.StreamsBuilder()
    stream = builder.stream("in", value=serde).map(lambda key, value: ((value[0], value[1]), value[2]))
    stream.map_values_async(call, name="call").to("out", key=ms.serdes.pickle)
    with Driver(builder.build()) as driver:
        driver.pipe("in", None, ["de", "de", "first"])
        driver.advance_wall_clock(100)
        shared = "de"
        driver.pipe("in", None, [shared, shared, "second"])
        driver.advance_wall_clock(10_000)
        assert out(driver) == ["first", "second"]


class TestFunctionsOfTheWrongKind:
    @pytest.mark.parametrize(
        ("function", "with_key", "message"),
        [
            (lambda value: value, True, r"is called with \(key, value\), but it takes \(value\)"),
            (lambda key, value: value, False, r"is called with \(value\), but it takes \(key, value\)"),
        ],
    )
    def test_are_recognised_by_their_parameters(self, function: Any, with_key: bool, message: str) -> None:
        with pytest.raises(TopologyError, match=message):
            mapping(function, with_key=with_key)

    def test_are_rejected_by_operators_that_do_not_await_them(self) -> None:
        async def is_good(key: Any, value: Any) -> bool:
            return False

        with pytest.raises(
            TopologyError, match=r"is_good' is a coroutine function, which this operator would not await"
        ):
            ms.StreamsBuilder().stream("in").filter(is_good)

    def test_two_process_async_operators_cannot_share_a_store(self) -> None:
        builder = ms.StreamsBuilder()
        builder.add_state_store(ms.stores.key_value("totals", ms.serdes.string, INT))
        stream = builder.stream("in")
        stream.process_async(print, stores=["totals"])  # type: ignore[arg-type]
        with pytest.raises(TopologyError, match=r"both use store 'totals'.*overwrite each other's writes"):
            stream.process_async(print, stores=["totals"])  # type: ignore[arg-type]

    def test_stores_are_rejected_for_orders_in_which_calls_of_a_key_overlap(self) -> None:
        builder = ms.StreamsBuilder()
        builder.add_state_store(ms.stores.key_value("totals", ms.serdes.string, INT))
        stream = builder.stream("in")
        for order in ("partition", "completion"):
            with pytest.raises(TopologyError, match="would overwrite each other's writes"):
                stream.process_async(print, stores=["totals"], order=order)  # type: ignore[arg-type]
