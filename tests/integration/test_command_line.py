"""The commands that need a broker: ``send``, ``peek``, ``plan`` and ``run``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner, Result

import millstream as ms
from millstream.edge.cli.commands import app
from millstream.edge.preflight.preflight_check import preflight

from .helpers import Apps

pytestmark = pytest.mark.broker

PROGRAM = """
import millstream as ms

def topology(kind=ms.serdes.int64):
    builder = ms.StreamsBuilder()
    lines = builder.stream("{source}", value=ms.serdes.string).flat_map_values(str.split)
    counts = lines.group_by(lambda _, word: word, key=ms.serdes.string)
    totals = counts.aggregate(int, lambda key, value, count: count + 1, value=kind, store="counts")
    totals.to_stream().to("{sink}", value=kind)
    return builder.build()

def other():
    return topology(ms.serdes.int32)
"""


def shell(apps: Apps, *arguments: str, stdin: str | None = None) -> Result:
    servers = ["--bootstrap-servers", apps.kafka.bootstrap_servers]
    return CliRunner().invoke(app, [*arguments, *servers], input=stdin)


def test_peek_shows_the_records_of_send(apps_without_spark: Apps) -> None:
    apps = apps_without_spark
    topic = apps.topic("records", 3)
    assert shell(apps, "send", topic, "tea", "milk", "--key", "a").output == f"2 written to {topic}\n"
    lines = shell(apps, "send", topic, "--separator", "=", "--value-format", "int64", stdin="b=7\nc=-1\n")
    assert (lines.exit_code, lines.output) == (0, f"2 written to {topic}\n")
    rows = [
        json.loads(line) for line in shell(apps, "peek", topic, "--beginning", "--json").output.splitlines()
    ]
    assert sorted((row["key"], row["value"]) for row in rows) == [
        ("a", "milk"),
        ("a", "tea"),
        ("b", 7),
        ("c", -1),
    ]
    assert len({row["partition"] for row in rows if row["key"] == "a"}) == 1
    numbers = shell(apps, "peek", topic, "--last", "1", "--value-format", "int64").output
    assert "  c  -1\n" in numbers
    assert (
        shell(apps, "peek", topic, "--last", "1", "--value-format", "int64").output == numbers
    )  # nothing was committed


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("peek", "nowhere"), "there is no topic 'nowhere'"),
        (("send", "nowhere", "x"), "there is no topic 'nowhere'"),
        (("peek", "nowhere", "--value-format", "xml"), "there is no format 'xml'"),
        (("plan", "nowhere:topology"), "there is no module 'nowhere'"),
    ],
)
def test_an_unknown_topic_format_or_module_is_a_one_line_error(
    apps_without_spark: Apps, arguments: tuple[str, ...], why: str
) -> None:
    result = shell(apps_without_spark, *arguments)
    assert result.exit_code == 1
    assert why in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_text_that_does_not_fit_its_format_is_refused(apps_without_spark: Apps) -> None:
    result = shell(
        apps_without_spark, "send", apps_without_spark.topic("numbers"), "tea", "--value-format", "int64"
    )
    assert (result.exit_code, "'tea' cannot be written as int64" in result.stderr) == (1, True)


def test_a_plan_lists_the_dead_letter_topics_of_policies_and_operators(
    apps_without_spark: Apps, tmp_path: Path
) -> None:
    apps = apps_without_spark
    source, letters, other = apps.topic("in"), apps.topic("letters"), apps.topic("other")

    async def call(value: str) -> str:
        return value

    builder = ms.StreamsBuilder()
    lines = builder.stream(source, value=ms.serdes.string)
    lines.map_values_async(call, on_failure=ms.dead_letter("callfail"), name="ask").to(other)
    application = ms.Application(
        apps.id,
        builder.build(),
        bootstrap_servers=apps.kafka.bootstrap_servers,
        state_dir=tmp_path,
        on_process_error="dead_letter",
        dead_letter_topic=letters,
    )
    report = preflight(application)
    assert f"{letters}: written, 2 partitions" in report.topics
    assert "callfail: does not exist, and the brokers do not create topics automatically" in report.topics
    assert report.problems == ()
    for topic in (other, letters, "callfail"):
        assert f"Write, Describe, DescribeConfigs on topic {topic}" in report.permissions


@pytest.mark.spark
def test_a_program_can_be_planned_before_and_after_its_first_run(apps: Apps, tmp_path: Path) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 1)
    (tmp_path / "shop.py").write_text(PROGRAM.format(source=source, sink=sink))
    apps.kafka.produce(source, [(None, "tea milk tea")])
    servers = ["--bootstrap-servers", apps.kafka.bootstrap_servers, "--set", f"state_dir={tmp_path}"]

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "millstream", *arguments, "--id", apps.id, *servers]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)

    exactly_once = ("--set", "processing_guarantee=exactly_once")
    first = command("plan", "shop:topology", *exactly_once)
    assert (first.returncode, first.stderr) == (0, "")
    assert f"{source}: read, 2 partitions" in first.stdout
    assert (
        f"sub-topology 1 (2 tasks): reads {apps.id}-counts-repartition; keeps counts; writes {sink}"
        in first.stdout
    )
    assert "none: this is the first start" in first.stdout
    assert f"transactional ids with the prefix {apps.id}-" in first.stdout
    admin = AdminClient({"bootstrap.servers": apps.kafka.bootstrap_servers})
    assert f"{apps.id}-counts-repartition" not in admin.list_topics(timeout=30).topics
    ran = command("run", "shop:topology", "--until-end", *exactly_once)
    assert ran.returncode == 0, ran.stderr
    counts_by_word = {
        record.key: int.from_bytes(record.value or b"", "big") for record in apps.kafka.consume(sink)
    }
    assert counts_by_word == {b"tea": 2, b"milk": 1}
    again = command("plan", "shop:topology", *exactly_once)
    assert "keeps counts" in again.stdout
    refused = command("plan", "shop:other", *exactly_once)
    assert refused.returncode == 1
    assert "problems:\n  store 'counts' is" in refused.stdout
