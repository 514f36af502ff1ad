"""No source offset is committed past a record that is unfinished after Spark's shuffle (KIP-311), whichever process dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream as ms

from .helpers import Apps, eventually

pytestmark = [pytest.mark.broker, pytest.mark.spark]

GATED = "gated"
PARTITIONS = 4


class Gate:
    """A call of an external system, which answers for one value only when a gate is open."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self, value: str) -> str:
        while value == GATED and not os.path.exists(self.path):
            time.sleep(0.05)
        return f"{value}!"


def gated_topology(source: str, out: str, gate: Path) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream = builder.stream(source).repartition(partitions=PARTITIONS, name="again")
    stream.map_values_async(Gate(gate), name="first").map_values_async(str.upper, name="second").to(out)
    return builder.build()


@contextmanager
def program(*cases: Case) -> Iterator[subprocess.Popen[bytes]]:
    """Run this file as a program with all the applications, and kill it with its child processes at the end."""
    arguments = [[case.settings(), case.source, case.out, str(case.gate)] for case in cases]
    command = [sys.executable, "-m", "integration.test_asynchronous_origins", json.dumps(arguments)]
    home = str(Path(__file__).parents[1])
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        command, cwd=home, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


class Case:
    """An application with a processing guarantee, and its topics."""

    def __init__(self, parent: Apps, guarantee: str) -> None:
        self.apps = Apps(parent.kafka, f"{parent.id}-{guarantee.replace('_', '-')}", parent.home)
        self.guarantee = guarantee
        self.source, self.out = self.apps.topic("in", 1), self.apps.topic("out", 1)
        self.gate = parent.home / f"{guarantee}-gate"

    def settings(self) -> dict[str, str]:
        return {
            "id": self.apps.id,
            "bootstrap_servers": self.apps.kafka.bootstrap_servers,
            "state_dir": str(self.apps.home),
            "processing_guarantee": self.guarantee,
        }

    def results(self) -> set[bytes | None]:
        records = self.apps.kafka.consume(self.out, isolation="read_committed")
        return {record.value if isinstance(record.value, bytes) else None for record in records}

    def committed(self) -> int:
        return self.apps.kafka.committed(self.apps.id, self.source).get(0, 0)

    def await_committed(self, offset: int, *, within_s: float = 200) -> None:
        eventually(lambda: self.committed() == offset, f"offset {offset} to be committed", within_s=within_s)

    def await_results(self, count: int) -> None:
        eventually(lambda: len(self.results()) == count, f"{count} results", within_s=200)

    def produce(self, values: list[str]) -> None:
        self.apps.kafka.produce(self.source, [(f"k{value}", value) for value in values])

    def check_restarted(self) -> None:
        """Start the application again, and check that it commits past the gated record only after that is finished."""
        topology = gated_topology(self.source, self.out, self.gate)
        with self.apps.start(topology, processing_guarantee=self.guarantee) as running:
            self.produce(["101"])
            self.await_results(101)  # the records after it
            assert self.committed() == 50
            assert running.status().lag[self.source] >= 1
            self.gate.touch()
            self.await_committed(102)
            assert len(self.results()) == 102
            eventually(lambda: running.status().lag[self.source] == 0, "no lag")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_source_offset_waits_for_unfinished_records_after_the_shuffle(apps: Apps) -> None:
    cases = [Case(apps, guarantee) for guarantee in ("at_least_once", "exactly_once")]
    with program(*cases):
        for case in cases:
            case.produce([str(n) for n in range(50)])
        for case in cases:
            case.await_committed(50, within_s=400)
            case.produce([GATED])
            case.produce([str(n) for n in range(51, 101)])
        for case in cases:
            case.await_results(100)
            assert case.committed() == 50
    for case in cases:
        case.check_restarted()


def main(arguments: str) -> None:
    started = []
    for settings, source, out, gate in json.loads(arguments):
        topology = gated_topology(source, out, Path(gate))
        started.append(ms.Application(settings.pop("id"), topology, master="local[2]", **settings).start())
    for running in started:
        running.await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
