"""``ms.Retrying``: the number of attempts, the exceptions that are retried, and the result after the last attempt."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import MillstreamError, SettingsError

Driver = ms.testing.TopologyTestDriver


class Failing:
    """Raises an error the given number of times, then returns the value."""

    def __init__(self, times: int, error: type[Exception] = OSError) -> None:
        self.times, self.error, self.calls = times, error, 0

    def __call__(self, value: str) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error("busy")
        return value


def mapping(function: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(function, name="work").to("out")
    return builder.build()


@pytest.mark.parametrize(
    ("function", "policy", "calls", "topics"),
    [
        (Failing(2), ms.Retrying(3, then="skip"), 3, ["out"]),
        (Failing(3), ms.Retrying(3, then="skip"), 3, []),
        (Failing(3), ms.Retrying(3, then="dead_letter", on=OSError), 3, ["dead"]),
        (Failing(3), ms.Retrying(3, then=ms.dead_letter("own"), on=(OSError, KeyError)), 3, ["own"]),
        (Failing(3, KeyError), ms.Retrying(3, then="skip", on=OSError), 1, []),
        (Failing(9), ms.Retrying(10), 10, ["out"]),
    ],
)
def test_a_function_is_called_up_to_the_number_of_attempts(
    function: Failing, policy: ms.Retrying, calls: int, topics: list[str]
) -> None:
    policies = ms.ErrorPolicies(operators={"work": policy}, dead_letter_topic="dead")
    with Driver(mapping(function), policies=policies) as driver:
        driver.pipe("in", "k", "v")
        assert function.calls == calls
        assert [topic for topic in ("out", "dead", "own") if driver.read(topic)] == topics


def test_the_record_fails_when_no_attempt_is_left() -> None:
    with (
        Driver(mapping(Failing(3)), policies=ms.ErrorPolicies(process=ms.Retrying(2))) as driver,
        pytest.raises(MillstreamError, match="busy"),
    ):
        driver.pipe("in", "k", "v")


def test_a_stateful_operator_is_not_retried_but_handled_as_after_the_last_attempt() -> None:
    """When a reducer fails, the operator may already have done part of its work."""

    def add(old: str, new: str) -> str:
        raise OSError("busy")

    builder = ms.StreamsBuilder()
    builder.stream("in").group_by_key().reduce(add)
    policies = ms.ErrorPolicies(process=ms.Retrying(3, then="dead_letter"), dead_letter_topic="dead")
    with Driver(builder.build(), policies=policies) as driver:
        driver.pipe("in", "k", "1")
        driver.pipe("in", "k", "2")
        (letter,) = driver.read("dead")
        assert letter.value == b"2"


def test_a_global_store_drops_a_record_instead_of_sending_a_dead_letter() -> None:
    builder = ms.StreamsBuilder()
    builder.global_table("products", value=ms.serdes.int64, store="products")
    builder.stream("in").to("out")
    policies = ms.ErrorPolicies(deserialize=ms.Retrying(2, then=ms.dead_letter("own")))
    assert policies.topics == {"own"}
    with Driver(builder.build(), policies=policies) as driver:
        driver.pipe("products", "a", b"x")
        assert (driver.read("own"), driver.metrics()["dropped_records"]) == ([], 1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"attempts": 1}, "from 2 to 10"),
        ({"attempts": 11}, "from 2 to 10"),
        ({"attempts": True}, "from 2 to 10"),
        ({"attempts": 3, "then": "retry"}, "must be one of 'fail', 'skip', 'dead_letter'"),
        ({"attempts": 3, "on": "OSError"}, "must be an exception class"),
        ({"attempts": 3, "on": ()}, "must be an exception class"),
        ({"attempts": 3, "on": (OSError, 5)}, "must be an exception class"),
    ],
)
def test_invalid_arguments_are_refused(given: Any, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        ms.Retrying(**given)
