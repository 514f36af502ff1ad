"""Queries in Python, as text and over HTTP: an error names the argument that does not fit, and what is expected."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, cast
from uuid import UUID

import pytest
from pydantic import BaseModel

import millstream as ms
from millstream.core.model.errors import ControlError, QueryError
from millstream.core.queries.question import Answer, Question
from millstream.core.queries.text_questions import parsed
from millstream.edge.queries.store_answers import Answers
from millstream.edge.queries.store_reader import StoreReader
from millstream.edge.web.listener import Listener
from millstream.edge.web.page import Shown, query_routes

from .local_answers import NOW, answers_of

HUGE = 10**30
ORDER = UUID(int=7)


def topology() -> ms.Topology:
    builder = ms.StreamsBuilder()
    words = builder.stream("words", key=ms.serdes.string, value=ms.serdes.string).group_by_key()
    words.count(store="counts")
    words.windowed_by(ms.TumblingWindows(60_000, grace=0)).count(store="minutes")
    words.windowed_by(ms.SessionWindows(5_000, grace=0)).count(store="visits")
    rates = ms.stores.options("rates", history_retention=60_000)
    builder.table("prices", key=ms.serdes.string, value=ms.serdes.string, store=rates)
    builder.stream("numbers", key=ms.serdes.int64).group_by_key().count(store="numbers")
    builder.stream("orders", key=ms.serdes.uuid).group_by_key().count(store="orders")
    return builder.build()


FILL: Mapping[str, Any] = {
    "counts": lambda store: store.put("tea", ms.ValueAndTimestamp(3, NOW)),
    "minutes": lambda store: store.put("tea", ms.ValueAndTimestamp(3, NOW), NOW - NOW % 60_000),
    "visits": lambda store: store.put(ms.Windowed("tea", NOW, NOW), 3),
    "rates": lambda store: store.put("usd", "1.1", NOW),
    "numbers": lambda store: store.put(-7, ms.ValueAndTimestamp(1, NOW)),
    "orders": lambda store: store.put(ORDER, ms.ValueAndTimestamp(2, NOW)),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    opened_answers = answers_of(topology(), tmp_path_factory.mktemp("copies"), FILL)
    yield opened_answers
    opened_answers.close()


def reader(answers: Answers, name: str, **options: Any) -> StoreReader[Any, Any]:
    return StoreReader(name, answers.answer, **options)


@pytest.mark.parametrize(
    ("store", "key", "value"), [("numbers", "-7", 1), ("orders", str(ORDER), 2), ("counts", "tea", 3)]
)
def test_keys_can_be_written_as_text(answers: Answers, store: str, key: str, value: int) -> None:
    assert answers.answer(Question(store, "get", (key,), text=True)).value == value
    (entry,) = answers.answer(Question(store, "all", text=True)).value
    assert entry == [int(key) if store == "numbers" else key, value]


def test_a_notebook_shows_why_a_store_cannot_be_read() -> None:
    def ended(question: Question) -> Answer:
        raise ControlError("application 'shop' does not answer: <pid>")

    shown = StoreReader[Any, Any]("counts", ended)._repr_html_()
    assert shown == "<p>application &#x27;shop&#x27; does not answer: &lt;pid&gt;</p>"


@pytest.mark.parametrize(
    ("store", "method", "arguments", "limit", "message"),
    [
        ("counts", "all", (), -1, "all() of store 'counts': limit must be a whole number from 1 to"),
        ("counts", "all", (), 0, "limit must be a whole number from 1 to"),
        ("counts", "all", (), "3", "limit must be a whole number from 1 to 9223372036854775807, not str '3'"),
        ("counts", "all", (), HUGE, "limit must be a whole number from 1 to"),
        ("counts", "all", (), True, "limit must be a whole number from 1 to"),
        ("counts", "get", (7,), None, "get() of store 'counts': key must be a key of the serde 'string', not int 7"),
        ("counts", "get", (None,), None, "key must be a key of the serde 'string', not NoneType None"),
        ("counts", "get", (), None, "get() of store 'counts' takes (key), but got no arguments"),
        ("counts", "range", ("a", "b", "c"), None, "range() of store 'counts' takes ([low], [high]), but got 3"),
        ("counts", "range", (None, 7), None, "high must be a key of the serde 'string', not int 7"),
        ("counts", "prefix_scan", (7,), None, "prefix must be a key of the serde 'string', not int 7"),
        ("counts", "approximate_count", (7,), None, "takes (), but got 1 argument"),
        ("minutes", "fetch", ("k",), None, "fetch() of store 'minutes' takes (key, time_from, [time_to]), but got 1"),
        ("minutes", "fetch", ("k", {}, 3), None, "time_from must be a time in ms since the epoch, a whole number, not dict"),
        ("minutes", "fetch_all", (0, None), None, "time_to must be a time in ms since the epoch"),
        ("minutes", "fetch_range", ("a", "b", 0, "1"), None, "time_to must be a time in ms since the epoch"),
        ("visits", "fetch", ("k", 1), None, "fetch() of store 'visits' takes (key), but got 2 arguments"),
        ("visits", "fetch_session", ("k", 1, 2.5), None, "end must be a time in ms"),
        ("visits", "find_sessions", (1, 2), None, "takes (key, earliest_end, latest_start), but got 2"),
        ("rates", "get", ("usd", "yesterday"), None, "as_of must be a time in ms since the epoch, a whole number, not str"),
        ("numbers", "get", (2**70,), None, "key must be a key of the serde 'int64', not int 1180591620717411303424"),
    ],
)  # fmt: skip
def test_an_invalid_argument_is_named_in_the_error(
    answers: Answers, store: str, method: str, arguments: tuple[Any, ...], limit: Any, message: str
) -> None:
    with pytest.raises(QueryError) as raised:
        reader(answers, store).answer(method, *arguments, limit=limit)
    assert message in str(raised.value)
    assert f"{method}() of store {store!r}" in str(raised.value)
    assert "operator" not in str(raised.value)


def test_a_window_query_needs_its_earliest_start(answers: Answers) -> None:
    minutes: Any = reader(answers, "minutes")
    with pytest.raises(QueryError, match=r"time_from must be a time in ms since the epoch.*, not NoneType"):
        minutes.fetch("tea", None, NOW)


def test_too_deeply_nested_json_is_refused_as_a_key() -> None:
    spec = ms.stores.key_value("sets", ms.serdes.json, ms.serdes.int64)
    with pytest.raises(
        QueryError, match=r"get\(\) of store 'sets': key must be a key of the serde 'json' as JSON"
    ):
        parsed(Question("sets", "get", ("[" * 100_000,), text=True), spec)


@dataclass(frozen=True)
class Customer:
    shop: str
    since: date


class Account(BaseModel):
    shop: str
    since: date


REGISTRY = {"registry": "mock://keys"}


@pytest.mark.parametrize(
    ("serde", "key"),
    [
        (ms.serdes.typed(Customer), Customer("x", date(2026, 1, 31))),
        (ms.serdes.typed(Account), Account(shop="x", since=date(2026, 1, 31))),
        (ms.serdes.avro(Customer, **REGISTRY), Customer("x", date(2026, 1, 31))),
        (ms.serdes.json_schema(Account, **REGISTRY), Account(shop="x", since=date(2026, 1, 31))),
        (ms.serdes.json, {"shop": "x", "since": "2026-01-31"}),
        (
            ms.serdes.of(repr, eval, name="own", parse=lambda text: text.upper()),
            '{"SHOP": "X", "SINCE": "2026-01-31"}',
        ),
    ],
    ids=repr,
)
def test_object_keys_can_be_written_as_json(serde: Any, key: Any) -> None:
    spec = ms.stores.key_value("kept", serde, ms.serdes.int64)
    given = '{"shop": "x", "since": "2026-01-31"}'
    for argument in (given, json.loads(given)):
        assert parsed(Question("kept", "get", (argument,), text=True), spec).arguments == (key,)


@pytest.mark.parametrize(
    "serde", [ms.serdes.typed(Customer), ms.serdes.avro(Customer, **REGISTRY), ms.serdes.typed(Account)]
)
@pytest.mark.parametrize("given", ['{"shop":', '{"shop": "x", "since": 7.5}'])
def test_json_that_does_not_fit_the_key_type_is_refused(serde: Any, given: str) -> None:
    spec = ms.stores.key_value("kept", serde, ms.serdes.int64)
    with pytest.raises(QueryError, match=r"get\(\) of store 'kept': key must be a key of the serde '"):
        parsed(Question("kept", "get", (given,), text=True), spec)


@pytest.mark.parametrize("lag", ["x", -1, HUGE])
def test_max_lag_must_be_a_number_of_records(answers: Answers, lag: Any) -> None:
    with pytest.raises(QueryError, match=r"get\(\) of store 'counts': max_lag must be a whole number from 0"):
        reader(answers, "counts", max_lag=lag).get("tea")


def test_valid_queries_are_answered(answers: Answers) -> None:
    counts, minutes, visits = (reader(answers, name) for name in ("counts", "minutes", "visits"))
    start = NOW - NOW % 60_000
    assert (counts.get("tea"), counts.range(), counts.prefix_scan(b"te")) == (3, [("tea", 3)], [("tea", 3)])
    assert (minutes.fetch("tea", start), minutes.fetch("tea", 0, start)) == (3, [(start, 3)])
    assert [count for _, count in minutes.fetch_range(None, "z", 0, NOW)] == [3]
    assert visits.find_sessions("tea", NOW, NOW) == visits.fetch("tea") == visits.fetch_range(None, None)
    assert reader(answers, "rates").get("usd", NOW).value == "1.1"
    assert reader(answers, "rates").all() == [("usd", ms.VersionedRecord("1.1", NOW))]


@pytest.fixture(scope="module")
def url(answers: Answers) -> Iterator[str]:
    class FakeApplication:
        def stores(self) -> Mapping[str, str]:
            return answers.stores()

        def ask(self, question: Question) -> Answer:
            return answers.answer(question)

    listener = Listener("127.0.0.1", 0, query_routes(cast(Shown, FakeApplication())))
    yield f"{listener.url}/api/store"
    listener.close()


def post(url: str, body: Mapping[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"store": "counts", "method": "range", "limit": -2}, "range() of store 'counts': limit must be"),
        ({"store": "counts", "method": "range", "limit": HUGE}, "limit must be a whole number from 1 to"),
        ({"store": "counts", "max_lag": "x"}, "all() of store 'counts': max_lag must be a whole number from 0"),
        ({"store": "counts", "timestamps": "yes"}, "timestamps must be true or false, not str 'yes'"),
        ({"store": "counts", "method": "get", "arguments": [["tea"]]}, "key must be a key of the serde 'string'"),
        ({"store": "counts", "method": "fetch"}, "store 'counts' has no method 'fetch'; a store of the kind"),
        ({"store": "minutes", "method": "fetch", "arguments": ["milk", {}, 3]}, "time_from must be a time in ms"),
        ({"store": "minutes", "method": "fetch", "arguments": ["milk", "noon"]}, "time_from must be a time in ms"),
        ({"store": "numbers", "method": "get", "arguments": ["tea"]}, "key must be a key of the serde 'int64'"),
        ({"store": 7}, "a query needs the name of a store"),
    ],
)  # fmt: skip
def test_a_bad_http_request_is_explained(url: str, body: Mapping[str, Any], message: str) -> None:
    status, error = post(url, body)
    assert (status, message in error) == (400, True), error


def test_a_valid_http_request_is_answered(url: str) -> None:
    status, answer = post(url, {"store": "numbers", "method": "get", "arguments": ["-7"], "limit": 1})
    assert (status, answer["value"], answer["batch"]) == (200, 1, 7)
