"""Behind Spark's shuffle: no offset of the topic in front is committed past an unfinished record (KIP-311), whichever process dies."""

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


def gated(source: str, out: str, gate: Path) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream = builder.stream(source).repartition(partitions=PARTITIONS, name="again")
    stream.map_values_async(Gate(gate), name="first").map_values_async(str.upper, name="second").to(out)
    return builder.build()


@contextmanager
def program(*cases: Case) -> Iterator[subprocess.Popen[bytes]]:
    """Run this file as a program with all the applications, and kill it with all its processes."""
    given = [[case.settings(), case.source, case.out, str(case.gate)] for case in cases]
    command = [sys.executable, "-m", "integration.test_asynchronous_origins", json.dumps(given)]
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
    """An application with a guarantee, and what it reads and writes."""

    def __init__(self, made: Apps, guarantee: str) -> None:
        self.apps = Apps(made.kafka, f"{made.id}-{guarantee.replace('_', '-')}", made.home)
        self.guarantee = guarantee
        self.source, self.out = self.apps.topic("in", 1), self.apps.topic("out", 1)
        self.gate = made.home / f"{guarantee}-gate"

    def settings(self) -> dict[str, str]:
        return {
            "id": self.apps.id,
            "bootstrap_servers": self.apps.kafka.bootstrap_servers,
            "state_dir": str(self.apps.home),
            "processing_guarantee": self.guarantee,
        }

    def results(self) -> set[bytes | None]:
        found = self.apps.kafka.consume(self.out, isolation="read_committed")
        return {record.value if isinstance(record.value, bytes) else None for record in found}

    def committed(self) -> int:
        return self.apps.kafka.committed(self.apps.id, self.source).get(0, 0)

    def await_committed(self, offset: int, *, within_s: float = 200) -> None:
        eventually(lambda: self.committed() == offset, f"offset {offset} to be committed", within_s=within_s)

    def await_results(self, count: int) -> None:
        eventually(lambda: len(self.results()) == count, f"{count} results", within_s=200)

    def produce(self, values: list[str]) -> None:
        self.apps.kafka.produce(self.source, [(f"k{value}", value) for value in values])

    def check_restarted(self) -> None:
        """Start it again; it commits past the record when that is finished, and not before."""
        topology = gated(self.source, self.out, self.gate)
        with self.apps.start(topology, processing_guarantee=self.guarantee) as running:
            self.produce(["101"])
            self.await_results(101)  # what comes behind it
            assert self.committed() == 50
            assert running.status().lag[self.source] >= 1
            self.gate.touch()
            self.await_committed(102)
            assert len(self.results()) == 102
            eventually(lambda: running.status().lag[self.source] == 0, "no lag")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_offset_of_the_topic_in_front_waits_for_what_the_shuffle_took_away(apps: Apps) -> None:
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


def main(given: str) -> None:
    started = []
    for settings, source, out, gate in json.loads(given):
        topology = gated(source, out, Path(gate))
        started.append(ms.Application(settings.pop("id"), topology, master="local[2]", **settings).start())
    for running in started:
        running.await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
