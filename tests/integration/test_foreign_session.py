"""An application and an operator on the user's Spark session: missing settings are logged, changed settings are restored."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from typing import Any, Final

import pytest

from millstream.testing import EmbeddedKafka

from .helpers import Apps

pytestmark = [pytest.mark.broker, pytest.mark.spark]

_PROGRAM: Final = """
import json, logging, sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
import millstream as ms
from millstream.core.model.errors import SparkRuntimeError

servers, name, home, source, sink = sys.argv[1:]

def session_with(conf):
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for setting, value in {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", **conf}.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()

def levels(spark):
    root = spark._jvm.org.apache.logging.log4j.LogManager.getRootLogger()
    loggers = [logging.getLogger(name) for name in (None, "py4j", "millstream.librdkafka", "millstream")]
    return [str(root.getLevel()), *(logger.level for logger in loggers)]

def topology(source, sink):
    builder = ms.StreamsBuilder()
    counts = builder.stream(source).group_by_key().count(store="counts")
    counts.to_stream().to(sink, value=ms.serdes.int64)
    return builder.build()

def application(session, number, **settings):
    before, quiet = session.conf.getAll, levels(session)
    app = ms.Application(
        f"{name}-{number}", topology(source, f"{sink}-{number}"), bootstrap_servers=servers, state_dir=home, **settings
    )
    done = app.run(until="end")
    state = Path(home, f"{name}-{number}", "checkpoint/state/0/0")
    return {
        "lacking": done.status().lacking,
        "same": session.conf.getAll == before,
        "levels": levels(session) == quiet,
        "changelogs": sorted(path.name for path in state.glob("*.changelog")),
    }

def operator(spark):
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    frame = rows.select(
        F.lit(None).cast("binary").alias("key"), F.lit(None).cast("binary").alias("value"),
        F.lit(0).alias("partition"), F.col("value").alias("offset"), F.col("timestamp"),
    )
    before = spark.conf.getAll
    ms.spark.transform(topology("lines", "counts"), {"lines": frame}, name="own", state_dir=home, partitions=1)
    return {name: value for name, value in spark.conf.getAll.items() if before.get(name) != value}

def refusal(spark):
    try:
        operator(spark)
    except SparkRuntimeError as error:
        return str(error)

STATE = "spark.sql.streaming.stateStore."
logging.getLogger("millstream").setLevel(logging.WARNING)
reports = {}
spark = session_with({"spark.log.level": "WARN"})
reports["bare"] = application(spark, 0, output="quiet", spark={"spark.driver.memory": "3g", "spark.sql.ansi.enabled": "false"})
spark.conf.set(STATE + "rocksdb.trackTotalNumberOfRows", "true")
reports["operator"] = operator(spark)
spark.conf.set(STATE + "providerClass", "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
reports["refusal"] = refusal(spark)
spark.stop()
print("SECOND", file=sys.stderr, flush=True)
spark = session_with(json.loads(Path(home, "wanted.json").read_text()))
reports["full"] = application(spark, 1)
reports["full operator"] = operator(spark)
spark.stop()
print("REPORTS " + json.dumps(reports))
"""

_REQUIRED: Final = {
    "spark.python.daemon.module": "millstream.edge.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.shuffle.compress": "false",
    "spark.authenticate": "true",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "3153600000000",
}
_STATE: Final = "spark.sql.streaming.stateStore."


@pytest.fixture(scope="module")
def ended(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, str]:
    """Run the program on two sessions in succession; return its reports, and its stderr for each session."""
    apps = Apps(kafka, f"foreign-{secrets.token_hex(3)}", tmp_path_factory.mktemp("foreign"))
    source = apps.topic("in")
    topics = [apps.topic(f"out-{number}") for number in (0, 1)]
    apps.kafka.produce(source, [("k", "v")] * 10)
    apps.home.joinpath("wanted.json").write_text(json.dumps(_REQUIRED))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    servers, sink = apps.kafka.bootstrap_servers, topics[0].removesuffix("-0")
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, servers, apps.id, str(apps.home), source, sink],
        cwd=apps.home,
        env={**inherited, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("REPORTS ")]
    assert lines, run.stderr[-4000:]
    bare, _, full = run.stderr.partition("SECOND\n")
    return json.loads(lines[0].removeprefix("REPORTS ")), bare, full


def test_missing_settings_of_a_session_are_logged_in_one_warning_with_a_line_each(
    ended: tuple[Any, str, str],
) -> None:
    reports, errors, _ = ended
    lacking = reports["bare"]["lacking"]
    assert [line.split(":")[0] for line in lacking] == [
        *(f"{name}={value}" for name, value in _REQUIRED.items()),
        "spark.driver.memory=3g",
    ]
    assert all(": without it " in line for line in lacking[:-1])
    warnings = re.findall(r"lacks settings .*:\n((?:  .*\n)+)", errors)
    assert [block.splitlines() for block in warnings] == [
        [f"  {line}" for line in lacking],
        *[[f"  {line}" for line in lacking[:-1]]],  # logged by the operator
    ]


def test_a_session_that_has_all_settings_causes_no_warning(ended: tuple[Any, str, str]) -> None:
    reports, _, errors = ended
    assert reports["full"]["lacking"] == []
    assert "lacks" not in errors


@pytest.mark.parametrize("session", ["bare", "full"])
def test_the_query_has_its_settings_and_those_of_the_session_are_restored(
    ended: tuple[Any, str, str], session: str
) -> None:
    reports = ended[0][session]
    assert reports["changelogs"]
    assert reports["same"]


@pytest.mark.parametrize("session", ["bare", "full"])
def test_the_log_levels_of_the_user_do_not_change(ended: tuple[Any, str, str], session: str) -> None:
    assert ended[0][session]["levels"]


def test_an_operator_sets_missing_settings_and_rejects_another_store_provider(
    ended: tuple[Any, str, str],
) -> None:
    reports = ended[0]
    changelog = {f"{_STATE}rocksdb.changelogCheckpointing.enabled": "true"}
    provider = {
        f"{_STATE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    }
    assert reports["operator"] == {**provider, **changelog}
    assert reports["full operator"] == {
        **provider,
        **changelog,
        f"{_STATE}rocksdb.trackTotalNumberOfRows": "false",
    }
    assert re.search(r"HDFSBacked.*spark\.conf\.unset\('spark\.sql.*providerClass'\)", reports["refusal"])
