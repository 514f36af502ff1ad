"""`millstream record` on a real broker, and `millstream replay` of the recorded slice."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.edge.cli.commands import app as command_line
from millstream.testing.slice_file import read_slice

from .helpers import Apps, produce_with_headers

pytestmark = pytest.mark.broker

PROGRAM = """
import millstream as ms

builder = ms.StreamsBuilder()
builder.stream("{source}").group_by_key().count().to_stream().to("counts", value=ms.serdes.int64)
"""


def run_command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(command_line, [*arguments])
    return done.exit_code, done.output


def test_a_slice_is_recorded_and_replayed(
    apps_without_spark: Apps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps = apps_without_spark
    source, other = apps.topic("in", 2), apps.topic("other", 1)
    for partition in range(2):
        records = [(f"k{partition}", f"v{number}", 1_000 * number) for number in range(1, 6)]
        apps.kafka.produce(source, records, partition=partition)
    produce_with_headers(apps.kafka, other, [(b"\xff", None, 7, (("h", b"\x00\xff"),))])
    servers = ("--bootstrap-servers", apps.kafka.bootstrap_servers)
    file = tmp_path / "slice.jsonl"

    code, output = run_command("record", str(file), source, other, *servers)
    assert (code, output.splitlines()) == (0, [f"10 of {source}", f"1 of {other}"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = read_slice(file)
    assert [record.timestamp for record in found] == [7, *(1_000 * n for n in range(1, 6) for _ in range(2))]
    assert (found[0].key, found[0].value, found[0].headers) == (b"\xff", None, (("h", b"\x00\xff"),))
    code, output = run_command("record", str(file), source, *servers)
    assert (code, "already exists" in output) == (1, True)

    part = tmp_path / "part.jsonl"
    times = ("--since", "1970-01-01T00:00:02", "--until", "1970-01-01T00:00:04")
    assert run_command("record", str(part), source, "--partition", "1", *times, *servers)[0] == 0
    assert [(record.key, record.value) for record in read_slice(part)] == [(b"k1", b"v2"), (b"k1", b"v3")]
    assert (
        run_command("record", str(tmp_path / "last.jsonl"), source, "--last", "1", "--limit", "1", *servers)[
            0
        ]
        == 0
    )
    assert [record.value for record in read_slice(tmp_path / "last.jsonl")] == [b"v5"]
    code, output = run_command("record", str(tmp_path / "none.jsonl"), source, "--partition", "99", *servers)
    assert (code, f"there is no partition 99: topic {source!r} has" in output) == (1, True)
    code, output = run_command("record", str(tmp_path / "none.jsonl"), "no-such-topic", *servers)
    assert (code, "there is no such topic" in output, (tmp_path / "none.jsonl").exists()) == (1, True, False)

    (tmp_path / "counting_a_slice.py").write_text(PROGRAM.format(source=source))
    monkeypatch.syspath_prepend(str(tmp_path))
    code, output = run_command("replay", str(part), "counting_a_slice:builder")
    assert (code, output.splitlines()) == (
        0,
        [
            "2 records replayed",
            "",
            "counts:",
            "| time | key | value |",
            "|------|-----|-------|",
            "| 2000 | k1  | 1     |",
            "| 3000 | k1  | 2     |",
        ],
    )
    code, output = run_command("replay", str(file), "counting_a_slice:builder")
    assert (code, f"does not read topic '{other}'" in output) == (1, True)
