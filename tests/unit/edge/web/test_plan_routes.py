"""What the page shows of a plan: the methods of its stores, and the policies for failed records."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

import millstream as ms
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.executor.measures import StepFacts, measured
from millstream.edge.web.listener import HttpResponse
from millstream.edge.web.page import methods_of, policies_of, policy_text
from unit.helpers import Host


def handler(password: str, context: ms.ErrorContext, error: Exception) -> str:
    return "skip"


async def call(value: str) -> str:
    return value


def plan() -> Plan:
    builder = ms.StreamsBuilder()
    lines = builder.stream("lines", key=ms.serdes.string, value=ms.serdes.string)
    lines.map_values_async(call, name="ask", on_failure=ms.dead_letter("unanswered"))
    grouped = lines.group_by_key()
    grouped.count(store="counts")
    grouped.windowed_by(ms.SessionWindows(5_000, grace=0)).count(store="visits")
    countries = builder.global_table("countries", key=ms.serdes.string, store="countries")
    lines.join(countries, lambda key, line: line, lambda line, country: country).to("joined")
    return builder.build().plan("shop")


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("skip", "skip"),
        ("fail", "fail, with a dead letter to 'failed'"),
        ("dead_letter", "dead letter to 'failed'"),
        (ms.dead_letter("late"), "dead letter to 'late'"),
        (ms.Retrying(3, then=ms.dead_letter("late")), "3 attempts, then dead letter to 'late'"),
        (handler, "error handler handler"),
        (partial(handler, "s3cret"), "error handler partial"),
    ],
)
def test_a_policy_is_described_as_text(policy: Any, text: str) -> None:
    assert policy_text(policy, "failed") == text


def test_policies_are_listed_for_stages_operators_and_calls() -> None:
    policies = ms.ErrorPolicies(process="skip", operators={"lines": ms.dead_letter("unreadable")})
    assert policies_of(plan(), policies) == {
        "stages": {"deserialize": "fail", "process": "skip", "produce": "fail"},
        "operators": {"lines": "dead letter to 'unreadable'"},
        "calls": {"ask": "dead letter to 'unanswered'"},
        "topics": ["unanswered", "unreadable"],
    }


def test_each_store_has_the_methods_of_its_kind() -> None:
    methods = methods_of(plan())
    assert set(methods) >= {"counts", "visits", "countries"}
    assert {name for name in methods["visits"] if name.startswith("f")} == {
        "fetch",
        "fetch_session",
        "fetch_range",
        "find_sessions",
    }
    assert methods["countries"] == methods["counts"]
    assert methods["counts"]["range"]["keys"] == ("low", "high")


def test_dead_letters_count_as_records_sent_to_their_topic() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values(lambda value: 1 / 0).to("out")
    host = Host(builder.build(), policies=ms.ErrorPolicies(process="dead_letter", dead_letter_topic="dead"))
    numbers = measured(StepFacts("0_0", host.run("in", ("k", "v", 1))))
    assert ("topic_records_produced_total", ("0_0", "dead"), 1) in numbers


@pytest.mark.parametrize(
    ("number", "text"), [(float("nan"), '"NaN"'), (float("-inf"), '"-Infinity"'), (1.5, "1.5")]
)
def test_numbers_that_json_lacks_are_sent_as_text(number: float, text: str) -> None:
    content = HttpResponse.json({"value": [["k", number]]}).body.decode()
    assert content == f'{{"value": [["k", {text}]]}}'
    json.loads(content, parse_constant=pytest.fail)
