"""OpenTelemetry's SDK, set up as in a program, collects the metrics of running applications."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from millstream.edge.settings.settings_loading import settings_from
from millstream.edge.web.listeners import Listeners
from unit.edge.metrics.fake_application import FakeApplication

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))

def collected():
    data = reader.get_metrics_data()
    scopes = [] if data is None else [s for r in data.resource_metrics for s in r.scope_metrics]
    return {m.name: m.data for s in scopes for m in s.metrics if m.data.data_points}

settings = settings_from({"bootstrap_servers": "unused:1", "opentelemetry": True})
for attempt in range(2):  # an application that is started again in the same program
    running = Listeners()
    running.open(FakeApplication(), settings, print, None)
    found = collected()
    (point,) = found["millstream_store_bytes"].data_points
    print(point.value, dict(point.attributes))
    consumed = found["millstream_topic_records_consumed"]
    print(consumed.is_monotonic, [p.value for p in consumed.data_points], len(found))
    running.close()
    print(len(collected()))
"""


def printed(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd="tests", check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_the_sdk_of_the_program_collects_metrics_with_labels() -> None:
    lines = printed(PROGRAM)
    assert lines[:3] == lines[3:]
    assert lines[0] == "7 {'application': 'orders', 'task': '0_0', 'store': 'counts'}"
    monotonic, values, count = lines[1].split(" ")
    assert (monotonic, values, int(count) > 20) == ("True", "[12]", True)
    assert lines[2] == "0"


def test_an_application_runs_without_an_opentelemetry_sdk() -> None:
    program_without_sdk = (
        PROGRAM[: PROGRAM.index("reader = ")]
        + PROGRAM[PROGRAM.index("settings = ") : PROGRAM.index("    found")]
    )
    assert printed(program_without_sdk) == []


@pytest.mark.parametrize("setting", ["", "'metrics_port': 0"])
def test_opentelemetry_is_not_imported_without_its_setting(setting: str) -> None:
    program = (
        "import sys\nfrom millstream.edge.settings.settings_loading import settings_from\nfrom millstream.edge.web.listeners import Listeners\n"
        "from unit.edge.metrics.fake_application import FakeApplication\n"
        f"settings = settings_from({{'bootstrap_servers': 'unused:1', {setting}}})\n"
        "running = Listeners(); running.open(FakeApplication(), settings, lambda *told, **facts: None, None)\n"
        "print([m for m in ('opentelemetry', 'prometheus_client', 'http.server') if m in sys.modules]); running.close()"
    )
    assert printed(program) == (["[]"] if not setting else ["['prometheus_client', 'http.server']"])
