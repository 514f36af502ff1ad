"""A real Prometheus scrapes a real application and answers the queries of the dashboard and the alerts."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.edge.web.page_address import address_of

from .helpers import Apps, eventually
from .topologies import key_count

pytestmark = [pytest.mark.broker, pytest.mark.spark]

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMETHEUS = shutil.which("prometheus")


def fetch_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def get_with_token(address: str, path: str) -> str:
    url, token = address.split("/#")
    request = urllib.request.Request(f"{url}{path}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


class Prometheus:
    """Debian's Prometheus, with the alerts of the examples."""

    def __init__(self, directory: Path, scraped: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        config = (EXAMPLES / "prometheus/prometheus.yml").read_text()
        config = config.replace("localhost:9464", urllib.parse.urlsplit(scraped).netloc)
        (directory / "prometheus.yml").write_text(config.replace("15s", "1s"))
        shutil.copy(EXAMPLES / "prometheus/alerts.yml", directory)
        options = [
            "--config.file=prometheus.yml",
            f"--web.listen-address={self.address}",
            "--log.level=error",
        ]
        self._process = subprocess.Popen([PROMETHEUS or "", *options], cwd=directory)

    def ask(self, path: str, **parameters: str) -> Any:
        """Query the HTTP API; return None if the server does not listen yet."""
        try:
            url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
            answer = json.loads(fetch_text(url))
        except OSError:
            return None
        assert answer["status"] == "success", answer
        return answer["data"]

    def value(self, query: str) -> float | None:
        found = self.ask("query", query=query)
        return float(found["result"][0]["value"][1]) if found and found["result"] else None

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture
def counting(apps: Apps) -> Iterator[ms.RunningApplication]:
    source, sink = apps.topic("in"), apps.topic("out")
    apps.kafka.produce(source, [(word, "x") for word in "abcab"])
    running = apps.start(key_count(source, sink), metrics_port=0, page_port=0)
    yield running
    running.stop()
    with pytest.raises(OSError, match="refused"):
        fetch_text(f"{running.listeners.urls['metrics']}/healthz")


@pytest.mark.skipif(PROMETHEUS is None, reason="needs Debian's package prometheus")
def test_prometheus_scrapes_an_application(
    counting: ms.RunningApplication, apps: Apps, tmp_path: Path
) -> None:
    eventually(lambda: counting.metrics()["read_records"] == 5, "the records to be read")
    url = counting.listeners.urls["metrics"]
    assert fetch_text(f"{url}/readyz") == "running\n"
    drawn = get_with_token(address_of(apps.home / apps.id, apps.id), "/api/topology.svg")
    assert 'data-stores="counts"' in drawn
    prometheus = Prometheus(tmp_path, url)
    try:
        consumed = (
            f'sum(millstream_topic_records_consumed_total{{application="{apps.id}",topic="{apps.id}-in"}})'
        )
        eventually(lambda: prometheus.value(consumed) == 5, "the records to be scraped")
        label = f'{{application="{apps.id}"}}'
        assert prometheus.value(f'millstream_state{{application="{apps.id}",state="running"}}') == 1
        assert prometheus.value(f"sum(millstream_topic_records_lag{label})") == 0
        assert (prometheus.value(f"sum(millstream_store_bytes{label})") or 0) > 0
        assert prometheus.value(f'sum(millstream_topic_records_produced_total{{topic="{apps.id}-out"}})') == 5
        assert (prometheus.value(f"sum(millstream_task_process_seconds_total{label})") or 0) > 0
        (rules,) = prometheus.ask("rules")["groups"]
        assert {rule["health"] for rule in rules["rules"]} <= {"ok", "unknown"}
        assert prometheus.ask("alerts")["alerts"] == []
        for query in dashboard_queries():
            assert prometheus.ask("query", query=query.replace("$application", apps.id)) is not None, query
    finally:
        prometheus.end()


def dashboard_queries() -> list[str]:
    """Return the queries of the dashboard."""
    board = json.loads((EXAMPLES / "grafana/millstream.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [re.sub(r"\$__rate_interval", "1m", query) for query in found]
