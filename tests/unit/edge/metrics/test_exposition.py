"""What Prometheus scrapes: every declared metric with its labels, in a format that Prometheus' own tools accept."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream.edge.metrics.application_metrics import EXPORTED, View
from millstream.edge.metrics.exposition import exposition

from .fake_application import FakeApplication

EXAMPLES = Path(__file__).parents[4] / "examples"
PROMTOOL = shutil.which("promtool")


def scraped(application: FakeApplication) -> dict[tuple[str, ...], float]:
    """Return the values of all samples by name and label values."""
    text = exposition(View.of(application))[0].decode()
    return {
        (sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_have_their_labels() -> None:
    found = scraped(FakeApplication())
    app = "application=orders"
    assert found["millstream_topic_records_consumed_total", app, "task=0_0", "topic=in"] == 12
    assert found["millstream_store_bytes", app, "store=counts", "task=0_0"] == 7
    assert found["millstream_operator_calls_total", app, "operator=ask", "task=0_0"] == 3
    assert found["millstream_topic_records_lag", app, "topic=in"] == 8
    assert found["millstream_task_restore_remaining_records", app, "store=counts", "task=0_0"] == 60
    assert found["millstream_throttled_seconds_total", app] == 1.5
    assert found["millstream_commit_total", app] == 5
    assert found["millstream_operator_records_per_second_ceiling", app, "operator=ask", "task=0_0"] == 200


def test_labels_may_contain_any_text() -> None:
    key = (
        "millstream_task_dropped_records_total",
        "application=orders",
        'reason=late "quoted"\n\\',
        "task=0_0",
    )
    assert scraped(FakeApplication())[key] == 2


def test_only_the_current_state_has_the_value_1() -> None:
    states = {
        key[2]: value
        for key, value in scraped(FakeApplication("draining")).items()
        if key[0] == "millstream_state"
    }
    assert [state for state, value in states.items() if value] == ["state=draining"]
    assert len(states) == 8  # including the state of a standby


def test_counters_of_a_task_are_exported_before_their_first_increment() -> None:
    assert (
        scraped(FakeApplication())["millstream_task_punctuate_total", "application=orders", "task=0_0"] == 0
    )


def test_each_metric_name_is_declared_once() -> None:
    names = [metric.exported for metric in EXPORTED]
    assert len(set(names)) == len(names)


@pytest.mark.skipif(PROMTOOL is None, reason="needs Debian's package prometheus")
def test_promtool_accepts_the_metrics() -> None:
    assert PROMTOOL is not None
    text = exposition(View.of(FakeApplication()))[0]
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()


@pytest.mark.skipif(PROMTOOL is None, reason="needs Debian's package prometheus")
def test_promtool_accepts_the_configuration_and_the_tests_of_the_alerts_pass() -> None:
    assert PROMTOOL is not None
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(
            [PROMTOOL, *command], cwd=EXAMPLES / "prometheus", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_query_existing_metrics() -> None:
    named = set(re.findall(r"\bmillstream_[a-z_]+", (EXAMPLES / "prometheus/alerts.yml").read_text()))
    assert named
    assert named <= {metric.exported for metric in EXPORTED}
