"""Issued functions and callbacks that an edit of the program has renamed while calls were in flight."""

from __future__ import annotations

import asyncio
import pickle
import sys
from functools import partial
from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.asynchronous.requests import MissingFunction, Request
from millstream.core.model.errors import IncompatibleTopologyError
from millstream.testing import TopologyTestDriver as Driver

SKIP = ms.ErrorPolicies(process="skip")


async def slow(value: str) -> str:
    await asyncio.sleep(1)
    return value.upper()


class Before(ms.Processor[Any, Any, Any, Any]):
    def process(self, record: ms.Record[Any, Any]) -> None:
        self.context.issue(slow, self.done, record.value)

    def done(self, record: ms.Record[Any, Any], result: str) -> None:
        self.context.forward(record.with_value(result))


class After(ms.Processor[Any, Any, Any, Any]):
    def process(self, record: ms.Record[Any, Any]) -> None:
        self.context.issue(slow, self.finished, record.value)

    def finished(self, record: ms.Record[Any, Any], result: str) -> None:
        self.context.forward(record.with_value(result))


def topology(supplier: Any, **calls: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").process(supplier, calls=ms.Calls(**calls), name="work").to("out")
    return builder.build()


@pytest.mark.parametrize("policies", [None, SKIP])
def test_a_missing_callback_is_named_in_the_error_and_no_record_is_lost(policies: Any) -> None:
    with Driver(topology(Before), policies=policies) as driver:
        driver.pipe("in", "a", "x")
        with pytest.raises(IncompatibleTopologyError) as raised:
            driver.edited(topology(After))
        message = str(raised.value)
        assert "'work' has a call in flight for the record at topic 'in', partition 0, offset 0" in message
        assert "no longer has the method 'done' of the processor" in message
        assert "restore the name, or drain before renaming" in message
        driver.advance_wall_clock(1_000)
        assert [record.value for record in driver.read("out")] == ["X"]


@pytest.mark.parametrize("policies", [None, SKIP])
def test_a_missing_function_is_named_in_the_error(policies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Driver(topology(Before, on_failure="skip"), policies=policies) as driver:
        driver.pipe("in", "a", "x")
        snapshot = driver.snapshot()
    monkeypatch.delattr(sys.modules[__name__], "slow")
    with pytest.raises(IncompatibleTopologyError) as raised:
        Driver(topology(Before, on_failure="skip"), policies=policies, snapshot=snapshot)
    message = str(raised.value)
    assert f"no longer has the function 'slow' of module {__name__!r}" in message
    assert "at topic 'in', partition 0, offset 0" in message
    monkeypatch.undo()
    with Driver(topology(Before), snapshot=snapshot) as driver:
        driver.advance_wall_clock(1_000)
        assert [record.value for record in driver.read("out")] == ["X"]


@pytest.mark.parametrize("function", [slow, len, Before.done, partial(slow, value="x")])
def test_the_function_of_a_request_survives_pickling(function: Any) -> None:
    row = pickle.loads(pickle.dumps(Request(function, (1,), "done").row()))
    restored = Request.from_row(row)
    assert (restored.args, restored.then) == ((1,), "done")
    if isinstance(function, partial):
        assert isinstance(restored.function, partial)
        assert restored.function.func is slow
    else:
        assert restored.function == function


def test_rows_of_earlier_versions_that_contain_the_function_are_read() -> None:
    assert Request.from_row((slow, (1,), "done")) == Request(slow, (1,), "done")


@pytest.mark.parametrize("name", [("no_such_module", "slow"), (__name__, "no_such_function")])
def test_the_name_of_a_missing_function_is_kept(name: tuple[str, str]) -> None:
    assert Request.from_row((name, (), "done")).function == MissingFunction(*name)
