"""Overlapping calls that write, read, forward and sometimes fail have the same effects as a serial run."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import TopologyTestDriver as Driver

from .engines import Visits

KEYS = ("a", "b", "c")
STEPS = st.one_of(
    st.tuples(st.sampled_from(["put", "add", "put_if_absent"]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["forward", "delete"]), st.just(0)),
    st.tuples(st.just("sleep"), st.integers(1, 30)),
)
Step = tuple[str, int]


class Program(NamedTuple):
    """The steps of the call of a record, and the step at which its first attempt fails."""

    key: str
    steps: list[Step]
    failing_step: int | None


PROGRAMS = st.builds(
    Program, st.sampled_from(KEYS), st.lists(STEPS, max_size=8), st.one_of(st.none(), st.integers(0, 7))
)


def perform(step: Step, store: Any, key: str) -> int | None:
    """Perform a step other than a sleep; return the value to forward, or None."""
    kind, number = step
    if kind == "put":
        store.put(key, number)
    elif kind == "add":
        store.put(key, (store.get(key) or 0) + number)
    elif kind == "put_if_absent":
        store.put_if_absent(key, number)
    elif kind == "delete":
        store.delete(key)
    elif kind == "forward":
        return store.get(key) or -1
    return None


class DictStore(dict[str, int]):
    """A store that is a dict."""

    put = dict.__setitem__
    put_if_absent = dict.setdefault

    def delete(self, key: str) -> None:
        self.pop(key, None)


def serial_run(programs: list[Program]) -> tuple[dict[str, list[int]], dict[str, int]]:
    store, forwarded = DictStore(), defaultdict[str, list[int]](list)
    for program in programs:
        found = (perform(step, store, program.key) for step in program.steps)
        forwarded[program.key] += [each for each in found if each is not None]
    return {key: values for key, values in forwarded.items() if values}, dict(store)


def test_overlapping_calls_have_the_same_effects_as_a_serial_run() -> None:
    visits = Visits()

    @settings(max_examples=100, deadline=None)
    @given(st.lists(PROGRAMS, max_size=20))
    def runs(programs: list[Program]) -> None:
        running: set[str] = set()

        async def call(record: ms.Record[str, int], context: ms.CallContext) -> None:
            program, store = programs[record.value], context.state_store("store")
            assert record.key not in running
            visits["overlap"] += bool(running)
            running.add(record.key)
            try:
                for number, step in enumerate(program.steps):
                    if number == program.failing_step and context.attempt == 1:
                        visits["failed after effects"] += bool(context.effects)
                        raise ConnectionError("unreachable")
                    if step[0] == "sleep":
                        await asyncio.sleep(step[1] / 1_000)
                    elif (value := perform(step, store, record.key)) is not None:
                        context.forward(record.with_value(value))
            finally:
                running.remove(record.key)

        builder = ms.StreamsBuilder()
        builder.add_state_store(ms.stores.key_value("store", ms.serdes.string, ms.serdes.int64))
        stream = builder.stream("in", value=ms.serdes.int64)
        calls = stream.process_async(call, stores=["store"], retry=ms.Retry(initial=10, jitter=0))
        calls.to("out", key=ms.serdes.string, value=ms.serdes.int64)
        with Driver(builder.build()) as driver:
            for number, program in enumerate(programs):
                driver.pipe("in", program.key, number)
            driver.advance_wall_clock(20 * 8 * 30 + 20 * 10)
            found: dict[str, list[int]] = defaultdict(list)
            for record in driver.read("out"):
                found[record.key].append(record.value)
            assert (found, dict(driver.store("store").all())) == serial_run(programs)
            assert not programs or driver.committed_offset("in") == len(programs)

    runs()
    visits.demand(**{"overlap": 50, "failed after effects": 20})
