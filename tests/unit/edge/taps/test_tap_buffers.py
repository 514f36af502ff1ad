"""Taps of an application: which samples are kept and dropped, and when a tap ends."""

from __future__ import annotations

import gc
import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.core.model.errors import ControlError
from millstream.core.runtime.task_report import TaskReport
from millstream.core.taps.samples import Sample, TapReport
from millstream.drivers.private import process_directory
from millstream.drivers.spark.control import ControlServer
from millstream.edge.cli.commands import app as command_line
from millstream.edge.control.control_file import write_control_file
from millstream.edge.taps.tap import Tap
from millstream.edge.taps.tap_buffers import QUESTION, TapBuffers, TapRecord


@pytest.fixture
def buffers() -> TapBuffers:
    builder = ms.StreamsBuilder()
    builder.stream("in", name="read").to("out", name="sent")
    plan = builder.build().plan("shop")
    return TapBuffers("shop", lambda: plan)


def report(values: list[str], *, passed: int | None = None, node: str = "read") -> TaskReport:
    samples = tuple(Sample("in", 0, number, "k", value, 7) for number, value in enumerate(values))
    return TaskReport("0_0", taps=(TapReport(node, 9, passed or len(samples), samples),))


def shown(tap: Tap) -> list[str]:
    return [record.value for record in tap.records()]


def test_nodes_are_tapped_until_the_last_tap_is_closed(buffers: TapBuffers) -> None:
    assert buffers.nodes() == ()
    with Tap("read", 5, buffers.answer) as first, Tap("sent", 5, buffers.answer):
        second = Tap("read", 5, buffers.answer)
        assert buffers.nodes() == ("read", "sent")
        first.close()
        assert buffers.nodes() == ("read", "sent")
    second.close()
    assert buffers.nodes() == ()
    assert repr(second) == "<Tap 'read': closed>"


def test_records_name_their_micro_batch_and_task(buffers: TapBuffers) -> None:
    tap = Tap("read", 5, buffers.answer)
    buffers.record_batch(3, [report(["tea"]), report(["sent"], node="sent")])
    (record,) = tap.records()
    assert record == ms.TapRecord("read", "0_0", 3, 9, "in", 0, 0, "k", "tea", 7, (), False)
    assert "<td>tea</td>" in (tap._repr_html_())


def test_the_newest_samples_are_kept_and_dropped_samples_are_counted(buffers: TapBuffers) -> None:
    small, large = Tap("read", 2, buffers.answer), Tap("read", 9, buffers.answer)
    buffers.record_batch(0, [report(["a", "b", "c"], passed=50)])
    buffers.record_batch(1, [report(["d"])])
    assert (shown(small), small.counts()) == (["c", "d"], (51, 4, 2))
    assert (shown(large), large.counts()) == (["a", "b", "c", "d"], (51, 4, 0))


def test_a_repeated_micro_batch_adds_no_sample_twice(buffers: TapBuffers) -> None:
    tap = Tap("read", 9, buffers.answer)
    buffers.record_batch(4, [report(["a"])])
    buffers.record_batch(4, [report(["a"])])
    assert (shown(tap), tap.counts().passed) == (["a"], 1)


def test_a_closed_tap_keeps_its_samples(buffers: TapBuffers) -> None:
    with Tap("read", 9, buffers.answer) as tap:
        buffers.record_batch(0, [report(["a"])])
    buffers.record_batch(1, [report(["b"])])
    tap.close()
    assert (shown(tap), list(tap)) == (["a"], list(tap.records()))


def test_iteration_follows_new_samples_and_ends_with_the_application(buffers: TapBuffers) -> None:
    tap = Tap("read", 2, buffers.answer)
    buffers.record_batch(0, [report(["a", "b", "c"])])
    following = iter(tap)
    assert [record.value for record in islice(following, 2)] == ["b", "c"]
    buffers.record_batch(1, [report(["d"])])
    assert next(following).value == "d"
    buffers.end()
    assert list(following) == []
    assert shown(tap) == ["c", "d"]
    with pytest.raises(ControlError, match="'shop' has ended"):
        Tap("read", 2, buffers.answer)


def test_a_tap_with_a_lease_ends_if_it_is_not_read(buffers: TapBuffers) -> None:
    lasting, leased = Tap("sent", 2, buffers.answer), Tap("read", 2, buffers.answer, lease_s=60)
    assert buffers.nodes() == ("read", "sent")
    leased.records()
    buffers._buffers[leased._id].read_at -= 61
    assert buffers.nodes() == ("sent",)
    assert lasting.records() == ()
    with pytest.raises(ControlError, match="tap the node again"):
        leased.records()


def test_a_tap_without_references_ends(buffers: TapBuffers) -> None:
    held = Tap("sent", 2, buffers.answer)
    for _ in range(3):
        tap = Tap("read", 2, buffers.answer)  # like a notebook cell that runs again
    assert buffers.nodes() == ("read", "sent")
    assert len(buffers._buffers) == 2
    with buffers._lock:  # the garbage collector may run at any time
        del tap
        gc.collect()
    assert buffers.nodes() == ("sent",)
    held.close()
    del held
    assert (buffers.nodes(), buffers._abandoned) == ((), deque())


def test_an_impossible_tap_is_refused_with_an_explanation(buffers: TapBuffers) -> None:
    with pytest.raises(ControlError, match="'shop' has no node 'reed'; its nodes are: 'read', 'sent'"):
        Tap("reed", 2, buffers.answer)
    for limit in (0, 10_001):
        with pytest.raises(ControlError, match=f"between 1 and 10,000 records, not {limit}"):
            Tap("read", limit, buffers.answer)


def test_values_are_not_logged(buffers: TapBuffers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Tap("read", 2, buffers.answer):
        buffers.record_batch(0, [report(["secret"])])
    assert "'read' is tapped" in caplog.text
    assert "secret" not in caplog.text


class TestFromAnotherProcess:
    @pytest.fixture(autouse=True)
    def server(self, buffers: TapBuffers, tmp_path: Path) -> Iterator[None]:
        home = tmp_path / "shop"
        home.mkdir()
        batches = count()

        def answer(question: str, data: tuple[str, dict[str, object]]) -> object:
            assert question == QUESTION
            opened = buffers.answer(*data)
            if data[0] == "open":
                buffers.record_batch(next(batches), [report(["tea", "müsli"])])
            return opened

        control_server = ControlServer(answer, b"key", process_directory())
        write_control_file(home, control_server.address)
        yield
        control_server.close()

    def test_a_connection_can_tap_a_node(self, buffers: TapBuffers, tmp_path: Path) -> None:
        with ms.connect("shop", tmp_path).tap("read") as tap:
            assert buffers.nodes() == ("read",)
            assert shown(tap) == ["tea", "müsli"]
        assert buffers.nodes() == ()
        assert shown(tap) == ["tea", "müsli"]

    def test_the_command_prints_samples_as_lines(self, buffers: TapBuffers, tmp_path: Path) -> None:
        command = ["tap", "shop", "read", "--limit", "2", "--state-dir", str(tmp_path)]
        printed = CliRunner().invoke(command_line, command)
        assert printed.stdout.splitlines() == [
            "in-0-0  1970-01-01T00:00:00.007Z  k  tea",
            "in-0-1  1970-01-01T00:00:00.007Z  k  müsli",
        ]
        first, _ = map(json.loads, CliRunner().invoke(command_line, [*command, "--json"]).stdout.splitlines())
        assert first == {
            "node": "read", "task": "0_0", "batch": 1, "passed_ms": 9, "topic": "in", "partition": 0, "offset": 0,
            "key": "k", "value": "tea", "timestamp": 7, "headers": [], "cut": False,
        }  # fmt: skip
        assert buffers.nodes() == ()

    def test_the_command_explains_an_unknown_node(self, tmp_path: Path) -> None:
        printed = CliRunner().invoke(command_line, ["tap", "shop", "reed", "--state-dir", str(tmp_path)])
        assert printed.exit_code == 1
        assert printed.stderr.startswith("millstream tap: application 'shop' has no node 'reed'")


def test_a_notebook_shows_why_a_tap_cannot_be_read() -> None:
    def ended(action: str, arguments: Mapping[str, Any]) -> Any:
        if action == "open":
            return "id"
        raise ControlError("application 'shop' does not answer: <pid>")

    shown = Tap("node", 5, ended, lease_s=60)._repr_html_()
    assert shown == "<p>application &#x27;shop&#x27; does not answer: &lt;pid&gt;</p>"


@pytest.mark.parametrize("ended", [True, False])
def test_samples_of_another_process_end_with_its_application(ended: bool) -> None:
    def fail_after_open(action: str, arguments: Mapping[str, Any]) -> Any:
        if action == "open":
            return "id"
        raise ControlError("application 'shop' does not answer")

    def samples() -> list[TapRecord]:
        with Tap("node", 5, fail_after_open, lease_s=60, has_ended=lambda: ended) as tap:
            return list(tap)

    if ended:
        assert samples() == []
    else:
        with pytest.raises(ControlError, match="does not answer"):
            samples()
