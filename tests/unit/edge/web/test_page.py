"""The page of an application: over HTTP, and in a real browser that looks at it and presses its keys."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import millstream as ms
from millstream.core.model.errors import ControlError
from millstream.core.model.ids import TopicPartition
from millstream.core.runtime.task_report import TaskReport
from millstream.core.topology.plan import Plan
from millstream.edge.control.flow_control import FlowLimits
from millstream.edge.settings.settings import Settings
from millstream.edge.settings.settings_loading import settings_from
from millstream.edge.status.application_status import Status
from millstream.edge.web.listeners import Listeners
from millstream.edge.web.page import address_of
from unit.edge.metrics.looking import Looked

from .chromium import BROWSER, Chromium


def plan() -> Plan:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in", name="read").group_by_key().count(store="counts")
    counts.to_stream().to("out", value=ms.serdes.int64, name="send")
    return builder.build().plan("orders")


class Steered(Looked):
    """Keeps the orders that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.orders = FlowLimits()

    def status(self) -> Status:
        from dataclasses import replace

        return replace(super().status(), paused=sorted(self.orders.paused), throttled=self.orders.rates)

    def pause(
        self,
        topics: Collection[str] | None = None,
        *,
        subtopologies: Collection[int] | None = None,
        keep: bool = False,
    ) -> None:
        self.orders = self.orders.pausing(self._known(topics))

    def resume(
        self, topics: Collection[str] | None = None, *, subtopologies: Collection[int] | None = None
    ) -> None:
        self.orders = self.orders.resuming(self._known(topics))

    def throttle(self, topic: str, records_per_second: int | None) -> None:
        self.orders = self.orders.throttling(topic, records_per_second)

    @staticmethod
    def _known(topics: Collection[str] | None) -> Collection[str]:
        if topics is not None and set(topics) - {"in"}:
            raise ControlError("the application reads 'in'")
        return ["in"]

    def process(self, records: int) -> None:
        numbers = [
            ("topic_records_consumed_total", ("0_0", "in"), records),
            ("store_bytes", ("0_0", "counts"), 7),
        ]
        self.book.committed(
            5, [TaskReport("0_0", {TopicPartition("in", 0): 20}, measured=numbers, executor="h/0")]
        )


@pytest.fixture
def steered() -> Steered:
    return Steered()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "orders").mkdir()
    return settings_from({"bootstrap_servers": "unused:1", "page_port": 0, "state_dir": tmp_path})


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def address(steered: Steered, settings: Settings, said: list[str]) -> Iterator[str]:
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


def test_state_and_topology_are_for_who_has_the_token(address: str) -> None:
    status, text, _ = ask(address, "/api/state")
    state = json.loads(text)
    assert (status, state["application"], state["status"]["lag"]) == (200, "orders", {"in": 8})
    assert state["numbers"]["store_bytes"] == [[["0_0", "counts"], 7]]
    assert 'data-node="read"' in ask(address, "/api/topology.svg")[1]


@pytest.mark.parametrize("path", ["/api/state", "/api/topology.svg", "/api/stores"])
@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer wrong", "Basic x"])
def test_without_the_token_there_is_no_data(address: str, path: str, given: str) -> None:
    assert ask(address, path, Authorization=given)[:2] == (401, "the token is missing or wrong\n")


def test_without_the_token_there_are_no_orders(address: str, steered: Steered) -> None:
    for order in ("pause", "resume", "throttle", "store"):
        assert ask(address, f"/api/{order}", {"topic": "in"}, Authorization="Bearer wrong")[0] == 401
    assert steered.orders == FlowLimits()


def test_a_page_of_another_origin_gets_nothing_even_with_the_token(address: str, steered: Steered) -> None:
    assert ask(address, "/api/pause", {}, Origin="http://evil.example")[0] == 403
    assert ask(address, "/api/state", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(address, "/api/state", Host="evil.example")[0] == 421
    assert steered.orders == FlowLimits()


def test_orders_are_carried_out(address: str, steered: Steered) -> None:
    origin = address.split("/#")[0]
    status, text, _ = ask(address, "/api/pause", {"topics": ["in"]}, Origin=origin)
    assert (status, json.loads(text)["status"]["paused"]) == (200, ["in"])
    ask(address, "/api/throttle", {"topic": "in", "records_per_second": 5})
    assert steered.orders.rates == {"in": 5}
    ask(address, "/api/throttle", {"topic": "in", "records_per_second": None})
    ask(address, "/api/resume", {})
    assert steered.orders == FlowLimits()


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
def test_an_order_that_cannot_be_is_explained(address: str, order: str, body: Any, why: str) -> None:
    status, text, _ = ask(address, f"/api/{order}", body)
    assert status == 409
    assert why in json.loads(text)["error"]


def test_a_body_that_is_no_object_is_refused(address: str) -> None:
    assert ask(address, "/api/pause", [1])[0] == 400
    assert ask(address, "/api/pause", {"topics": ["x" * 70_000]})[0] == 413


def test_the_files_of_the_page_hold_nothing_of_the_application(address: str) -> None:
    for path in ("/", "/page.js", "/page.css"):
        status, text, headers = ask(address, path, Authorization="")
        assert status == 200
        assert "orders-secret" not in text
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text


def test_the_token_is_in_a_private_file_and_nowhere_else(
    address: str, settings: Settings, said: list[str], steered: Steered
) -> None:
    file, token = settings.home("orders") / "page.url", urlsplit(address).fragment
    assert len(token) >= 32
    assert os.stat(file).st_mode & 0o077 == 0
    assert token not in " ".join(said)
    assert str(file) in said[0]
    assert token not in ask(address, "/api/state")[1]


def test_the_file_goes_with_the_page(steered: Steered, settings: Settings) -> None:
    listeners = Listeners()
    listeners.open(steered, settings, lambda event, text, **facts: None, plan)
    listeners.close()
    with pytest.raises(ControlError, match=r"no page that this user can open .*page_port=0"):
        address_of(settings.home("orders"), "orders")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    if BROWSER is None:
        pytest.skip("needs Debian's package chromium")
    made = Chromium(tmp_path / "profile")
    yield made
    made.close()


FIGURES = """Object.fromEntries([["in", "read"], ["out", "send"], ["KSTREAM", "KSTREAM-AGGREGATE-0000000001"]].map(
    ([name, node]) => [name, document.querySelector(`rect[data-node="${node}"] + text`).textContent]).concat(
    [["part", document.querySelector("rect[data-part]:not([data-node]) + rect + text").textContent]]))"""
"""What stands above the boxes and at the title; nothing above a node that is not measured by itself."""


class TestInABrowser:
    """One test with all that a person does, because a browser takes seconds to start."""

    def test_a_person_looks_pauses_throttles_and_resumes(
        self, browser: Chromium, address: str, steered: Steered, tmp_path: Path
    ) -> None:
        browser.open(address)
        browser.until("document.querySelectorAll('rect.heat').length === 5")
        assert browser.run("document.getElementById('application').textContent") == "orders"
        assert browser.run("location.href") == f"{address.split('#')[0]}"
        assert browser.run(FIGURES) == {"in": "0/s", "out": "0/s", "part": "0 records/s", "KSTREAM": ""}
        pictures = Path(os.environ.get("MILLSTREAM_TEST_PICTURES", tmp_path))
        steered.process(500)
        browser.until(
            "[...document.querySelectorAll('.figure')].some((l) => l.textContent.endsWith('/s') && l.textContent !== '0/s')"
        )
        for theme in ("light", "dark"):
            browser.send(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}]
            )
            browser.picture(pictures / f"page-{theme}.png")
        self.keys(browser, steered)
        assert browser.complaints() == []
        assert {urlsplit(url).netloc for url in browser.requested() if not url.startswith("data:")} == {
            urlsplit(address).netloc
        }

    @staticmethod
    def keys(browser: Chromium, steered: Steered) -> None:
        """Do without a mouse."""
        browser.press("2", "Digit2", "2", 50)
        assert browser.run("document.querySelector('input[name=mode]:checked').value") == "lag"
        wanted = "document.activeElement.getAttribute('aria-label')"
        for _ in range(12):
            browser.press("Tab", number=9)
            if str(browser.run(wanted)).startswith("Most records per second of in"):
                break
        browser.send("Input.insertText", text="50")
        browser.press("Enter", text="\r", number=13)
        browser.until("document.getElementById('message').textContent === 'in: 50 records per second'")
        assert steered.orders.rates == {"in": 50}
        browser.press("Tab", number=9)
        assert browser.run(wanted) == "Pause in"
        browser.press("Enter", text="\r", number=13)
        browser.until("document.activeElement.getAttribute('aria-label') === 'Resume in'")
        assert steered.orders.paused == {"in"}
        browser.press("Enter", text="\r", number=13)
        browser.until("document.activeElement.getAttribute('aria-label') === 'Pause in'")
        assert steered.orders.paused == frozenset()

    def test_without_the_token_it_says_what_to_do(self, browser: Chromium, address: str) -> None:
        browser.open(address.split("#")[0])
        browser.until("document.getElementById('message').textContent.includes('millstream page')")
