"""Commands escape control characters in records, because they could change the terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from millstream.core.model.ids import TopicPartition
from millstream.edge.cli import record_commands, store_commands, top_table
from millstream.edge.cli.commands import app
from millstream.edge.cli.dlq import dead_letter_text
from millstream.edge.dead_letters.envelope import Envelope
from millstream.edge.records import text_records
from millstream.edge.records.text_records import PeekedRecord
from millstream.edge.status.application_status import Status
from millstream.edge.taps.tap_buffers import TapRecord

HOSTILE = "a\x1b]0;owned\x07\x9b31m\x7f\u202eb"
ESCAPED = r"a\x1b]0;owned\x07\x9b31m\x7f\u202eb"


@pytest.mark.parametrize("value", [HOSTILE, [HOSTILE], {HOSTILE: HOSTILE}])
def test_records_and_store_entries_are_printed_without_control_characters(value: Any) -> None:
    tapped = TapRecord("node", "0_0", 1, 0, "in", 0, 0, HOSTILE, value, 0, (), cut=False)
    lines = [
        record_commands._line(PeekedRecord(0, 0, 0, HOSTILE, value, [])),
        record_commands._tapped_line(tapped),
        *store_commands._lines([[HOSTILE, value], value], described=False),
    ]
    assert all(line.isprintable() for line in lines)
    assert all(ESCAPED in line for line in lines[:3])


def test_top_shows_errors_without_control_characters() -> None:
    status = replace(Status("failed", 1, {}, 0.0, 0), error=f"ValueError\n{HOSTILE}")
    console = Console(file=StringIO(), width=200)
    with console.capture() as shown:
        console.print(top_table.drawn("app", status))
    assert f"error  {ESCAPED}" in shown.get()
    assert "\x1b]" not in shown.get()


@pytest.mark.parametrize(
    ("timestamp", "shown"),
    [
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_700_000_000_123_456, "1700000000123456 ms"),  # from a producer that writes microseconds
        (-(2**63), f"{-(2**63)} ms"),
    ],
)
def test_every_timestamp_can_be_shown(timestamp: int, shown: str) -> None:
    tapped = TapRecord("node", "0_0", 1, 0, "in", 0, 0, "k", "v", timestamp, (), cut=False)
    assert record_commands._line(PeekedRecord(0, 0, timestamp, "k", "v", [])) == f"0-0  {shown}  k  v"
    assert record_commands._tapped_line(tapped) == f"in-0-0  {shown}  k  v"
    letter = Envelope(TopicPartition("dead", 0), 9, b"k", b"v", timestamp, ())
    assert dead_letter_text._row(letter, False)[2] == shown


def test_json_output_contains_only_standard_json(monkeypatch: pytest.MonkeyPatch) -> None:
    row = PeekedRecord(0, 0, 0, "k", [float("nan"), float("-inf")], [])
    monkeypatch.setattr(text_records, "peeked", lambda *_: [row])
    shown = CliRunner().invoke(app, ["peek", "in", "--json", "--bootstrap-servers", "nowhere:1"]).stdout

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(shown, parse_constant=refuse)["value"] == ["NaN", "-Infinity"]
