"""The page of an application, tested over HTTP and in a real browser."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import millstream as ms
from millstream.core.model.errors import ControlError
from millstream.core.model.ids import TopicPartition
from millstream.core.queries.question import Answer, Question
from millstream.core.runtime.task_report import TaskReport
from millstream.core.topology.plan import Plan
from millstream.edge.control.flow_control import FlowLimits
from millstream.edge.queries.store_answers import Answers
from millstream.edge.settings.settings import Settings
from millstream.edge.settings.settings_loading import settings_from
from millstream.edge.status.application_status import RangeStatus, SplitStatus, Status
from millstream.edge.web.listeners import Listeners
from millstream.edge.web.page_address import address_of, announce
from unit.edge.metrics.fake_application import FakeApplication
from unit.edge.queries.local_answers import NOW, answers_of

from .chromium import BROWSER, Chromium

MARKUP = "<img src=x onerror=document.title='run'>"
MORE_THAN_JAVASCRIPT_COUNTS = 2**53 + 1
MINUTE = NOW - NOW % 60_000


def topology() -> ms.Topology:
    builder = ms.StreamsBuilder()
    grouped = builder.stream("in", name="read", key=ms.serdes.string).group_by_key()
    grouped.count(store="counts").to_stream().to("out", value=ms.serdes.int64, name="send")
    grouped.windowed_by(ms.TumblingWindows(60_000, grace=0)).count(store="minutes")
    return builder.build()


def plan() -> Plan:
    return topology().plan("orders")


def fill(counts: Any) -> None:
    for key, count in (("milk", 2), ("tea", MORE_THAN_JAVASCRIPT_COUNTS), (MARKUP, 1)):
        counts.put(key, ms.ValueAndTimestamp(count, NOW))


def fill_windows(minutes: Any) -> None:
    minutes.put("tea", ms.ValueAndTimestamp(3, NOW), MINUTE)


class ControlledApplication(FakeApplication):
    """A fake application with stores, which keeps the limits that it receives."""

    def __init__(self, copies: Path) -> None:
        super().__init__()
        self.flow_limits = FlowLimits()
        self.ranges: Mapping[str, RangeStatus] = {}
        self.splits: Mapping[str, SplitStatus] = {}
        self._copies = copies

    @cached_property
    def answers(self) -> Answers:
        return answers_of(topology(), self._copies, {"counts": fill, "minutes": fill_windows})

    def close(self) -> None:
        if "answers" in vars(self):
            self.answers.close()

    def status(self) -> Status:
        limits = {"paused": sorted(self.flow_limits.paused), "throttled": self.flow_limits.rates}
        return replace(super().status(), **limits, ranges=self.ranges, splits=self.splits)

    def stores(self) -> Mapping[str, str]:
        return self.answers.stores()

    def ask(self, question: Question) -> Answer:
        return self.answers.answer(question)

    def pause(
        self,
        topics: Collection[str] | None = None,
        *,
        subtopologies: Collection[int] | None = None,
        keep: bool = False,
    ) -> None:
        self.flow_limits = self.flow_limits.pausing(self._known(topics))

    def resume(
        self, topics: Collection[str] | None = None, *, subtopologies: Collection[int] | None = None
    ) -> None:
        self.flow_limits = self.flow_limits.resuming(self._known(topics))

    def throttle(self, topic: str, records_per_second: int | None) -> None:
        self.flow_limits = self.flow_limits.throttling(topic, records_per_second)

    @staticmethod
    def _known(topics: Collection[str] | None) -> Collection[str]:
        if topics is not None and set(topics) - {"in"}:
            raise ControlError("the application reads 'in'")
        return ["in"]

    def process(self, records: int) -> None:
        numbers = [
            ("topic_records_consumed_total", ("0_0", "in"), records),
            ("store_bytes", ("0_0", "counts"), 7),
            ("task_dropped_records_total", ("0_0", "process error"), 3),
            ("operator_failed_records_total", ("0_0", "read"), 3),
            ("topic_records_produced_total", ("0_0", "failed"), 3),
        ]
        self.book.record_batch(
            5, [TaskReport("0_0", {TopicPartition("in", 0): 20}, measured=numbers, executor="h/0")]
        )


@pytest.fixture
def steered(tmp_path: Path) -> Iterator[ControlledApplication]:
    resource = ControlledApplication(tmp_path / "copies")
    yield resource
    resource.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "orders").mkdir()
    policies = {
        "on_process_error": "dead_letter",
        "on_operator_error": {"read": "skip"},
        "dead_letter_topic": "failed",
    }
    given = {"bootstrap_servers": "unused:1", "page_port": 0, "state_dir": tmp_path}
    return settings_from({**given, **policies})


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def address(steered: ControlledApplication, settings: Settings, said: list[str]) -> Iterator[str]:
    """The address of the page, with its token."""
    listeners = Listeners()
    listeners.open(steered, settings, lambda event, text, **facts: said.append(text + repr(facts)), plan)
    yield address_of(settings.home("orders"), "orders")
    listeners.close()


def ask(address: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, dict[str, str]]:
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
    given = {
        "Authorization": f"Bearer {url.fragment}",
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    try:
        content = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, content, given)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()}
    finally:
        connection.close()


def test_state_and_topology_are_served_with_the_token(address: str) -> None:
    status, text, _ = ask(address, "/api/state")
    state = json.loads(text)
    assert (status, state["application"], state["status"]["lag"]) == (200, "orders", {"in": 8})
    assert state["numbers"]["store_bytes"] == [[["0_0", "counts"], 7]]
    assert 'data-node="read"' in ask(address, "/api/topology.svg")[1]


@pytest.mark.parametrize(
    "path", ["/api/state", "/api/topology.svg", "/api/stores", "/api/methods", "/api/policies"]
)
@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer wrong", "Basic x"])
def test_data_is_refused_without_the_token(address: str, path: str, given: str) -> None:
    status, text, _ = ask(address, path, Authorization=given)
    assert (status, json.loads(text)) == (401, {"error": "the token is missing or wrong"})


def test_commands_are_refused_without_the_token(address: str, steered: ControlledApplication) -> None:
    for order in ("pause", "resume", "throttle", "store"):
        assert ask(address, f"/api/{order}", {"topic": "in"}, Authorization="Bearer wrong")[0] == 401
    assert steered.flow_limits == FlowLimits()


def test_a_page_of_another_origin_is_refused_even_with_the_token(
    address: str, steered: ControlledApplication
) -> None:
    assert ask(address, "/api/pause", {}, Origin="http://evil.example")[0] == 403
    assert ask(address, "/api/store", {"store": "counts"}, Origin="http://evil.example")[0] == 403
    for path in ("state", "methods", "policies"):
        assert ask(address, f"/api/{path}", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(address, "/api/state", Host="evil.example")[0] == 421
    assert steered.flow_limits == FlowLimits()


def test_pause_throttle_and_resume_are_applied(address: str, steered: ControlledApplication) -> None:
    origin = address.split("/#")[0]
    status, text, _ = ask(address, "/api/pause", {"topics": ["in"]}, Origin=origin)
    assert (status, json.loads(text)["status"]["paused"]) == (200, ["in"])
    ask(address, "/api/throttle", {"topic": "in", "records_per_second": 5})
    assert steered.flow_limits.rates == {"in": 5}
    ask(address, "/api/throttle", {"topic": "in", "records_per_second": None})
    ask(address, "/api/resume", {})
    assert steered.flow_limits == FlowLimits()


@pytest.mark.parametrize(
    ("order", "body", "why"),
    [
        ("pause", {"topics": ["other"]}, "reads 'in'"),
        ("pause", {"topics": "in"}, "a list of names"),
        ("throttle", {"topic": "in", "records_per_second": 0}, "at least 1"),
        ("throttle", {"topic": "in", "records_per_second": True}, "a whole number"),
        ("throttle", {"records_per_second": 3}, "needs a topic"),
    ],
)
def test_an_impossible_command_is_explained(address: str, order: str, body: Any, why: str) -> None:
    status, text, _ = ask(address, f"/api/{order}", body)
    assert status == 409
    assert why in json.loads(text)["error"]


@pytest.mark.parametrize(
    ("content", "headers", "status", "why"),
    [
        ("[1]", {}, 400, "not a JSON object"),
        ("pause it", {}, 400, "not a JSON object"),
        ("[" * 60_000, {}, 400, "not a JSON object"),
        ("x" * 70_000, {}, 413, "more than 65,536 bytes"),
        ("", {"Content-Length": "9" * 5_000}, 413, "more than 65,536 bytes"),
        ("", {"Content-Length": "\N{SUPERSCRIPT TWO}"}, 411, "needs a Content-Length"),
        ("2\r\n{}\r\n0\r\n\r\n", {"Transfer-Encoding": "chunked"}, 411, "needs a Content-Length"),
    ],
)
def test_an_invalid_request_body_is_refused(
    address: str, content: str, headers: Mapping[str, str], status: int, why: str
) -> None:
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
    given = {"Authorization": f"Bearer {url.fragment}", **headers}
    connection.request("POST", "/api/pause", content, given)
    answer = connection.getresponse()
    assert answer.status == status
    assert why in json.loads(answer.read())["error"]
    connection.close()


def test_an_unknown_path_is_named_in_the_error(address: str) -> None:
    status, text, _ = ask(address, "/api/nowhere")
    assert (status, json.loads(text)) == (404, {"error": "there is no GET /api/nowhere"})


def test_the_static_files_contain_nothing_of_the_application(address: str) -> None:
    for path in ("/", "/page.js", "/queries.js", "/page.css"):
        status, text, headers = ask(address, path, Authorization="")
        assert status == 200
        assert "orders-secret" not in text
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text


def test_the_policies_for_failed_records_are_listed(address: str) -> None:
    policies = json.loads(ask(address, "/api/policies")[1])
    stops = "fail, with a dead letter to 'failed'"
    assert policies == {
        "stages": {"deserialize": stops, "process": "dead letter to 'failed'", "produce": stops},
        "operators": {"read": "skip"},
        "calls": {},
        "topics": ["failed"],
    }


def test_the_methods_of_each_store_are_listed(address: str) -> None:
    methods = json.loads(ask(address, "/api/methods")[1])
    assert methods["counts"]["get"] == {
        "scope": "key",
        "keys": ["key"],
        "times": [],
        "optional": 0,
        "unbounded": False,
    }
    assert "fetch" not in methods["counts"]


@pytest.mark.parametrize("path", ["/api/topology.svg", "/api/methods", "/api/policies"])
def test_routes_that_describe_the_plan_are_unavailable_before_it_exists(
    address: str, steered: ControlledApplication, path: str
) -> None:
    steered.state = "starting"
    status, text, _ = ask(address, path)
    assert (status, json.loads(text)) == (503, {"error": "not planned yet"})


def test_the_token_is_in_a_private_file_and_nowhere_else(
    address: str, settings: Settings, said: list[str], steered: ControlledApplication
) -> None:
    file, token = settings.home("orders") / "page.url", urlsplit(address).fragment
    assert len(token) >= 32
    assert os.stat(file).st_mode & 0o077 == 0
    assert token not in " ".join(said)
    assert str(file) in said[0]
    assert token not in ask(address, "/api/state")[1]


def test_the_address_file_is_deleted_when_the_page_is_closed(
    steered: ControlledApplication, settings: Settings
) -> None:
    listeners = Listeners()
    listeners.open(steered, settings, lambda event, text, **facts: None, plan)
    listeners.close()
    with pytest.raises(ControlError, match=r"no page that this user can open .*page_port=0"):
        address_of(settings.home("orders"), "orders")


def test_a_start_without_a_page_deletes_the_address_file_of_a_killed_run(
    steered: ControlledApplication, settings: Settings
) -> None:
    announce(settings.home("orders"), "http://127.0.0.1:9465", "token-of-the-killed-run")
    listeners = Listeners()
    listeners.open(
        steered, settings.model_copy(update={"page_port": None}), lambda event, text, **facts: None, plan
    )
    listeners.close()
    with pytest.raises(ControlError, match="no page that this user can open"):
        address_of(settings.home("orders"), "orders")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    if BROWSER is None:
        pytest.skip("needs Debian's package chromium")
    resource = Chromium(tmp_path / "profile")
    yield resource
    resource.close()


def cells(browser: Chromium, table: str) -> list[str]:
    """Return the text of the cells of a table."""
    found = browser.run(f"[...document.querySelectorAll('#{table} td')].map((cell) => cell.textContent)")
    return list(found)


def choose(browser: Chromium, field: str, value: str) -> None:
    browser.run(
        f"field = document.getElementById('{field}'), field.value = '{value}', field.dispatchEvent(new Event('change')), 0"
    )


def answer_of(browser: Chromium, method: str, **arguments: str) -> list[str]:
    """Query the chosen store, and return the cells of the entries."""
    choose(browser, "method", method)
    for name, value in arguments.items():
        browser.run(f"document.querySelector('#arguments [name={name}]').value = '{value}'")
    browser.run("document.getElementById('query').requestSubmit()")
    browser.until(f"!asking && {ASKED} !== ''")
    return [] if browser.run("document.getElementById('answer').hidden") else cells(browser, "answers")


ASKED = "document.getElementById('asked').textContent"
FIGURES = """Object.fromEntries([["in", "read"], ["out", "send"], ["KSTREAM", "KSTREAM-AGGREGATE-0000000001"]].map(
    ([name, node]) => [name, document.querySelector(`rect[data-node="${node}"] + text`).textContent]).concat(
    [["part", document.querySelector("rect[data-part]:not([data-node]) + rect + text").textContent]]))"""
"""The figures above the boxes and at the title. A node without its own metric has none."""


class TestInABrowser:
    """One test covers all actions of a user, because a browser takes seconds to start."""

    def test_a_user_can_query_throttle_pause_and_resume(
        self, browser: Chromium, address: str, steered: ControlledApplication, tmp_path: Path
    ) -> None:
        browser.open(address)
        browser.until("document.querySelectorAll('rect.heat').length === 6")
        assert browser.run("document.getElementById('application').textContent") == "orders"
        assert browser.run("location.href") == f"{address.split('#')[0]}"
        assert browser.run(FIGURES) == {"in": "0/s", "out": "0/s", "part": "0 records/s", "KSTREAM": ""}
        steered.process(500)
        browser.until(
            "[...document.querySelectorAll('.figure')].some((label) => /^[1-9][0-9]*[/]s$/.test(label.textContent))"
        )
        self.tables(browser, steered)
        self.answers(browser)
        pictures = Path(os.environ.get("MILLSTREAM_TEST_PICTURES", tmp_path))
        for theme in ("light", "dark"):
            browser.send(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}]
            )
            browser.picture(pictures / f"page-{theme}.png")
        self.keys(browser, steered)
        self.query_by_keyboard(browser)
        refused = "Failed to load resource: the server responded with a status of 400 (Bad Request)"
        assert browser.complaints() == [refused]
        assert {urlsplit(url).netloc for url in browser.requested() if not url.startswith("data:")} == {
            urlsplit(address).netloc
        }

    @staticmethod
    def tables(browser: Chromium, steered: ControlledApplication) -> None:
        """Check the tables of failed records, and those of key ranges and split partitions, which are visible only if there are any."""
        assert cells(browser, "failures")[4:7] == ["process", "dead letter to 'failed'", "3"]
        assert cells(browser, "failures")[12:15] == ["read", "skip", "3"]
        assert cells(browser, "letters")[:2] == ["failed", "3"]
        visible = "document.getElementById('key-ranges').checkVisibility()"
        assert browser.run(visible) is False
        steered.ranges = {
            "0_0": RangeStatus(0, 16, 0, 1 << 28, {"in-0": 20}, 8, 120.0, 0.25, 70_000, "worker-1/3"),
            "0_1": RangeStatus(1, 16, 1 << 28, 2 << 28, {"in-0": 17}, 11, 90.0, 0.2, 60_000, "worker-2/1"),
        }
        browser.until(visible)
        first = ["0_0", "0 of 16", "00000000-0fffffff", "in-0 20", "8", "120", "25 %", "70 kB", "worker-1/3"]
        assert cells(browser, "ranges")[:9] == first
        visible = "document.getElementById('split-partitions').checkVisibility()"
        assert browser.run(visible) is False
        steered.splits = {"in-0": SplitStatus(1, 2, 4, 12_345, 67)}
        browser.until(visible)
        assert cells(browser, "splits") == ["in-0", "1 of 2", "4", "12,345", "67"]

    @staticmethod
    def answers(browser: Chromium) -> None:
        """Query stores: entries are shown as text, even if they contain markup, and errors are shown."""
        choose(browser, "store", "minutes")
        fetch = {"key": "tea", "time_from": str(MINUTE)}
        assert answer_of(browser, "fetch", **fetch) == ["tea", "3"]
        assert answer_of(browser, "fetch", **fetch, time_to=str(MINUTE)) == [str(MINUTE), "3"]
        assert answer_of(browser, "fetch", key="milk", time_from="0") == []
        window = f'{{"key":"tea","start":{MINUTE},"end":{MINUTE + 60_000}}}'
        assert answer_of(browser, "fetch_range", key_from="", time_from="0", time_to=str(NOW)) == [
            window,
            "3",
        ]
        choose(browser, "store", "counts")
        choose(browser, "limit", "0")
        assert answer_of(browser, "all") == []
        assert "all() of store 'counts': limit must be a whole number from 1 to" in browser.run(ASKED)
        choose(browser, "limit", "100")
        counts = [MARKUP, "1", "milk", "2", "tea", str(MORE_THAN_JAVASCRIPT_COUNTS)]
        assert answer_of(browser, "all") == counts
        assert browser.run(ASKED) == "3 entries: micro-batch 7, offsets in/0: 3, lag 0"
        assert browser.run("document.querySelectorAll('#answers img').length") == 0

    @staticmethod
    def query_by_keyboard(browser: Chromium) -> None:
        browser.run("document.getElementById('store').focus()")
        browser.press("Tab", number=9)
        browser.press("g", "KeyG", "g", 71)
        assert browser.run("document.getElementById('method').value") == "get"
        browser.press("Tab", number=9)
        browser.press("1", "Digit1", "1", 49)
        assert browser.run("document.querySelector('input[name=mode]:checked').value") == "lag"
        browser.run("document.activeElement.value = ''")
        browser.send("Input.insertText", text="milk")
        browser.press("Enter", text="\r", number=13)
        browser.until(f"{ASKED}.startsWith('1 entry')")
        assert cells(browser, "answers") == ["milk", "2"]

    @staticmethod
    def keys(browser: Chromium, steered: ControlledApplication) -> None:
        """Use the page with the keyboard only."""
        browser.press("2", "Digit2", "2", 50)
        assert browser.run("document.querySelector('input[name=mode]:checked').value") == "lag"
        focused_label = "document.activeElement.getAttribute('aria-label')"
        for _ in range(20):
            browser.press("Tab", number=9)
            if str(browser.run(focused_label)).startswith("Most records per second of in"):
                break
        browser.send("Input.insertText", text="50")
        browser.press("Enter", text="\r", number=13)
        browser.until("document.getElementById('message').textContent === 'in: 50 records per second'")
        assert steered.flow_limits.rates == {"in": 50}
        browser.press("Tab", number=9)
        assert browser.run(focused_label) == "Pause in"
        browser.press("Enter", text="\r", number=13)
        browser.until("document.activeElement.getAttribute('aria-label') === 'Resume in'")
        assert steered.flow_limits.paused == {"in"}
        browser.press("Enter", text="\r", number=13)
        browser.until("document.activeElement.getAttribute('aria-label') === 'Pause in'")
        assert steered.flow_limits.paused == frozenset()

    def test_the_page_without_the_token_names_the_command_that_opens_it(
        self, browser: Chromium, address: str
    ) -> None:
        browser.open(address.split("#")[0])
        browser.until("document.getElementById('message').textContent.includes('millstream page')")
