"""Behind Spark's shuffle: no offset of the topic in front is committed past an unfinished record (KIP-311), whoever dies."""

from __future__ import annotations

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
    """A call of the world outside, which answers one value only when somebody opens a gate."""

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
def program(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run this file as an application of its own, and kill it with all its processes."""
    command = [sys.executable, "-m", "integration.test_asynchronous_origins", *arguments]
    home = str(Path(__file__).parents[1])
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        command, cwd=home, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_the_offset_of_the_topic_in_front_waits_for_what_the_shuffle_took_away(
    apps: Apps, tmp_path: Path, guarantee: str
) -> None:
    source, out, gate = apps.topic("in", 1), apps.topic("out", 1), tmp_path / "gate"

    def results() -> set[bytes | None]:
        found = apps.kafka.consume(out, isolation="read_committed")
        return {record.value if isinstance(record.value, bytes) else None for record in found}

    def committed() -> int:
        return apps.kafka.committed(apps.id, source).get(0, 0)

    def produce(values: list[str]) -> None:
        apps.kafka.produce(source, [(f"k{value}", value) for value in values])

    here = [apps.id, apps.kafka.bootstrap_servers, str(apps.home), source, out, str(gate), guarantee]
    with program(*here):
        produce([str(n) for n in range(50)])
        eventually(lambda: committed() == 50, "what is finished to be committed", within_s=400)
        produce([GATED])
        produce([str(n) for n in range(51, 101)])
        eventually(lambda: len(results()) == 100, "all but one to be finished", within_s=200)
        assert committed() == 50
    running = apps.start(gated(source, out, gate), processing_guarantee=guarantee)
    produce(["101"])
    eventually(lambda: len(results()) == 101, "what comes behind it", within_s=200)
    assert committed() == 50
    assert running.status().lag[source] >= 1
    gate.touch()
    eventually(lambda: committed() == 102, "the last offset to be committed", within_s=200)
    assert len(results()) == 102
    eventually(lambda: running.status().lag[source] == 0, "no lag")


def main(name: str, servers: str, home: str, source: str, out: str, gate: str, guarantee: str) -> None:
    ms.Application(
        name,
        gated(source, out, Path(gate)),
        bootstrap_servers=servers,
        state_dir=home,
        master="local[2]",
        processing_guarantee=guarantee,
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
