"""Several threads of one task (KIP-408): what they run concurrently, and what happens when one of them ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.step_outcome import Outcome
from millstream.drivers.threads import TaskThreads
from unit.helpers import Host, Row, ShuffledThreads, processing, sent, values

TIMEOUT_S = 30


def threaded(
    build: Callable[[ms.KStream[Any, Any]], object], threads: Any, policy: Any = "fail", **more: Any
) -> Host:
    builder = ms.StreamsBuilder()
    build(builder.stream("in"))
    policies = ms.ErrorPolicies("fail", policy, "fail", "dead")
    return Host(builder.build(), threads=threads, policies=policies, **more)


def rows(count: int, keys: int | None = None) -> list[Row]:
    """Return records without a key, or with ``keys`` keys in turn."""
    return [(None if keys is None else f"k{n % keys}", str(n), n) for n in range(count)]


def executed(outcome: Outcome) -> tuple[int, ...]:
    assert outcome.threads is not None
    return outcome.threads.executed


@pytest.mark.parametrize("count", [2, 5])
def test_as_many_functions_run_at_once_as_there_are_threads(count: int) -> None:
    together = threading.Barrier(count, timeout=TIMEOUT_S)

    def call(value: str) -> str:
        together.wait()
        return f"{value}!"

    host = threaded(lambda s: s.map_values(call).to("out"), TaskThreads(count))
    outcome = host.run("in", *rows(3 * count))
    assert values(outcome) == [f"{n}!" for n in range(3 * count)]
    assert executed(outcome) == (3,) * count


def test_results_keep_the_order_of_the_records_whichever_is_executed_first() -> None:
    last_is_done = threading.Event()

    def call(value: str) -> str:
        if value == "1":
            last_is_done.set()
        else:
            assert last_is_done.wait(TIMEOUT_S)
        return value

    host = threaded(lambda s: s.map_values(call).to("out"), TaskThreads(2))
    assert values(host.run("in", *rows(2))) == ["0", "1"]


def test_records_of_one_key_never_run_at_once_and_do_not_block_other_keys() -> None:
    other_was_called = threading.Event()
    called: list[str] = []

    def call(value: str) -> None:
        called.append(f"begin {value}")
        if value == "other":
            other_was_called.set()
        assert other_was_called.wait(TIMEOUT_S)
        called.append(f"end {value}")

    host = threaded(lambda s: s.foreach(lambda key, value: call(value)), TaskThreads(2))
    host.run("in", ("k", "first", 0), ("k", "second", 1), ("l", "other", 2))
    assert called[:2] == ["begin first", "begin other"]
    assert called.index("end first") < called.index("begin second")


def test_stream_time_advances_as_records_are_applied_not_as_they_are_executed() -> None:
    def init(context: ms.ProcessorContext[Any, Any]) -> None:
        def forward_time(now_ms: int) -> None:
            context.forward(ms.Record(None, f"time {now_ms}", now_ms))

        context.schedule(10, ms.stream_time, forward_time)

    def process(context: ms.ProcessorContext[Any, Any], record: ms.Record[Any, Any]) -> None:
        metadata = context.record_metadata
        assert metadata is not None
        context.forward(record.with_value(f"{record.value} {metadata.offset} {context.stream_time_ms}"))

    def build(stream: ms.KStream[Any, Any]) -> None:
        stream.map_values(str.upper).process(processing(process, init=init)).to("out")

    times = [(None, name, timestamp) for name, timestamp in zip("abcde", (5, 3, 12, 11, 25), strict=True)]
    assert values(threaded(build, ShuffledThreads(3)).run("in", *times)) == [
        *("A 0 5", "time 5", "B 1 5", "C 2 12", "time 12", "D 3 12", "E 4 25", "time 25")
    ]


def test_records_of_partitions_with_alternating_times_run_at_once() -> None:
    together = threading.Barrier(2, timeout=TIMEOUT_S)

    def call(value: str) -> str:
        together.wait()
        return value

    host = threaded(lambda s: s.map_values(call).to("out"), TaskThreads(2))
    host.feed("in", [(None, "a", 1), (None, "c", 3)], partition=0)
    host.feed("in", [(None, "b", 2), (None, "d", 4)], partition=1)
    assert values(host.step()) == ["a", "b", "c", "d"]


def test_partitions_with_alternating_times_fill_blocks_record_by_record() -> None:
    host = threaded(lambda s: s.map_values(str.upper).to("out"), ShuffledThreads(2))
    for partition in (0, 1):
        host.feed("in", [(None, f"v{n}", 2 * n + partition) for n in range(200)], partition=partition)
    outcome = host.step()
    assert values(outcome) == [f"V{n // 2}" for n in range(400)]
    assert sum(executed(outcome)) == 400


def test_a_block_is_not_held_back_for_the_next_step() -> None:
    host = threaded(lambda s: s.map_values(str.upper).to("out"), ShuffledThreads(3))
    host.feed("in", [(None, "a", 1), (None, "b", 2)])
    assert values(host.step(budget=1)) == ["A"]
    assert values(host.step()) == ["B"]


def test_an_object_that_one_path_changes_is_unchanged_on_earlier_paths() -> None:
    def spoil(value: list[int]) -> list[int]:
        value.append(0)
        return value

    def build(stream: ms.KStream[Any, Any]) -> None:
        lists = stream.map_values(lambda value: [int(value)])
        lists.to("raw", value=ms.serdes.json)
        lists.process(processing(lambda context, record: context.forward(record))).to(
            "seen", value=ms.serdes.json
        )
        lists.map_values(spoil).to("spoilt", value=ms.serdes.json)

    outcome = threaded(build, ShuffledThreads(2)).run("in", *rows(2))
    assert values(outcome, "raw") == values(outcome, "seen") == ["[0]", "[1]"]
    assert values(outcome, "spoilt") == ["[0,0]", "[1,0]"]


def test_the_first_of_several_failing_records_is_named_and_much_later_ones_are_not_called() -> None:
    called: list[int] = []

    def call(value: str) -> str:
        called.append(int(value))
        if int(value) >= 5:
            raise LookupError(value)
        return value

    host = threaded(lambda s: s.map_values(call).to("out"), ShuffledThreads(2, seed=3))
    with pytest.raises(
        ms.errors.ProcessingError, match=r"topic 'in', partition 0, offset 5 .*LookupError: 5"
    ):
        host.run("in", *rows(200))
    assert sorted(called)[:6] == [0, 1, 2, 3, 4, 5]
    assert len(called) < 20


class EndsThreads:
    """A function that ends its thread for some values, as many times as given for each value."""

    def __init__(self, times: dict[str, int], error: type[BaseException] = SystemExit) -> None:
        self.left = Counter(times)
        self.error = error
        self.threads: dict[str, list[threading.Thread]] = {}

    def __call__(self, value: str) -> str:
        self.threads.setdefault(value, []).append(threading.current_thread())
        if self.left[value] > 0:
            self.left[value] -= 1
            raise self.error("enough")
        return f"{value}!"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("keys", [None, 1, 3])
def test_other_threads_take_over_the_records_of_a_thread_that_ended(
    keys: int | None, error: type[BaseException]
) -> None:
    call = EndsThreads({"4": 1}, error)
    host = threaded(lambda s: s.map_values(call).to("out"), TaskThreads(3))
    outcome = host.run("in", *rows(30, keys))
    assert values(outcome) == [f"{n}!" for n in range(30)]
    first, second = call.threads["4"]
    assert first != second
    assert outcome.threads is not None
    assert (sum(outcome.threads.executed), outcome.threads.ended) == (30, 1)
    (notice,) = outcome.notices
    assert notice.startswith(f"a function raised {error.__name__}: enough (")
    assert "ended a thread of task 0_0" in notice


def test_the_next_step_has_all_threads_again() -> None:
    together = threading.Barrier(3, timeout=TIMEOUT_S)
    ends = EndsThreads({"0": 1})

    def call(value: str) -> str:
        if value != "0":
            together.wait()
        return ends(value)

    host = threaded(lambda s: s.map_values(call).to("out"), TaskThreads(3))
    assert values(host.run("in", (None, "0", 0))) == ["0!"]
    outcome = host.run("in", *((None, str(n), n) for n in (1, 2, 3)))
    assert values(outcome) == ["1!", "2!", "3!"]
    assert executed(outcome) == (1, 1, 1)


@pytest.mark.parametrize("policy", ["fail", "skip", "dead_letter"])
def test_a_record_that_ends_two_threads_fails(policy: str) -> None:
    call = EndsThreads({"7": 9})
    host = threaded(lambda s: s.map_values(call).to("out"), TaskThreads(4), policy)
    message = r"MAPVALUES.* at topic 'in', partition 0, offset 7 .*it ended the thread that executed it: SystemExit: enough"
    if policy == "fail":
        with pytest.raises(ms.errors.ProcessingError, match=message):
            host.run("in", *rows(20))
        assert len(call.threads["7"]) == 2
        return
    outcome = host.run("in", *rows(20))
    assert values(outcome) == [f"{n}!" for n in range(20) if n != 7]
    assert values(outcome, "dead") == (["7"] if policy == "dead_letter" else [])
    assert len(set(call.threads["7"])) == len(call.threads["7"]) == 2
    assert outcome.metrics.dropped == {"process error": 1}
    assert outcome.threads is not None
    assert (sum(outcome.threads.executed), outcome.threads.ended) == (20, 2)


@pytest.mark.parametrize("keys", [None, 1, 3])
def test_records_that_end_all_threads_fail_and_the_others_are_processed(keys: int | None) -> None:
    call = EndsThreads({str(n): 9 for n in range(0, 40, 4)})
    host = threaded(lambda s: s.map_values(call).to("out"), TaskThreads(2), "skip")
    outcome = host.run("in", *rows(40, keys))
    assert sorted(sent(outcome), key=lambda row: row[2]) == sent(outcome)
    assert values(outcome) == [f"{n}!" for n in range(40) if n % 4]
    assert outcome.metrics.dropped == {"process error": 10}


def test_records_that_end_the_last_threads_fail_without_a_retry() -> None:
    both = threading.Barrier(2, timeout=TIMEOUT_S)
    ends = EndsThreads({"0": 1, "1": 1})

    def call(value: str) -> str:
        if value in ("0", "1"):
            both.wait()
        return ends(value)

    host = threaded(lambda s: s.map_values(call).to("out"), TaskThreads(2), "skip")
    outcome = host.run("in", *rows(4))
    assert values(outcome) == ["2!", "3!"]
    assert outcome.metrics.dropped == {"process error": 2}


def test_a_single_record_that_ends_every_thread_is_named_in_the_error() -> None:
    host = threaded(lambda s: s.map_values(EndsThreads({"0": 9})).to("out"), TaskThreads(2))
    with pytest.raises(ms.errors.ProcessingError, match=r"offset 0 .*SystemExit"):
        host.run("in", (None, "0", 0))


def test_a_single_thread_and_sources_without_functions_start_no_threads() -> None:
    single = threaded(lambda s: s.map_values(str.upper).to("out"), TaskThreads(1))
    without_functions = threaded(lambda s: s.group_by_key().count(), TaskThreads(4))
    assert single.run("in", *rows(3)).threads is None
    assert without_functions.run("in", *rows(3, keys=1)).threads is None
