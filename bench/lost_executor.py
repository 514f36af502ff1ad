"""``python -m bench.lost_executor``: what it costs when an executor and its local copies are lost.

An application counts keys on two executors of one core each. Each round sends a record to every partition and waits until both are
processed. Then the executor of one task is killed, the local copies of its tasks are deleted, as if they had been on its host, and the next
round is timed. Spark starts another executor meanwhile, as a cluster does that has room.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from confluent_kafka import Producer

import millstream as ms
from bench.jobs import topology
from bench.load import key_bytes, produce
from bench.ours import await_processed
from millstream.testing import EmbeddedKafka

_APP, _SOURCE, _SINK = "lost-executor", "lost-source", "lost-sink"
_PARTITIONS = _EXECUTORS = 2
_BLOCK = 100_000
_BACKEND = "CoarseGrainedExecutorBackend"
_COME_S = 300.0


@dataclass(frozen=True)
class Loss:
    """What one loss cost.

    Attributes:
        seconds: From the kill until every task had processed a new record.
        restored: Changes that were read from the log for it.
        lost: Tasks that were on the executor.
        moved: Tasks that ran on another executor afterwards.
    """

    seconds: float
    restored: int
    lost: int
    moved: int


class Counting:
    """The application and what feeds it."""

    def __init__(self, running: ms.RunningApplication, servers: str, copies: Path, processed: int) -> None:
        self.running = running
        self._copies = copies
        self._sent = processed
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})

    def round(self) -> float:
        """Send a record to every partition; return the seconds until all are processed."""
        began = time.monotonic()
        for partition in range(_PARTITIONS):
            self._producer.produce(_SOURCE, b"x", b"%d" % partition, partition)
        assert self._producer.flush(60) == 0
        self._sent += _PARTITIONS
        await_processed(self.running, self._sent)
        return time.monotonic() - began

    def lose(self) -> Loss:
        """Kill the executor of a task, delete its copies, and go on."""
        placed, before = self.running.status().placed, self.running.metrics()
        where = next(iter(placed.values()))
        lost = [task for task, executor in placed.items() if executor == where]
        began = time.monotonic()
        executors()[where.rpartition("/")[2]].kill()
        for task in lost:
            shutil.rmtree(self._copies / task)
        self.round()
        seconds, after = time.monotonic() - began, self.running.metrics()
        restored = int(after["restored_changes"] - before["restored_changes"])
        return Loss(seconds, restored, len(lost), int(after["moved_tasks"] - before["moved_tasks"]))


def executors() -> dict[str, psutil.Process]:
    """Return the executors that this process has started, by their ids."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            if any(_BACKEND in word for word in command) and "--executor-id" in command:
                found[command[command.index("--executor-id") + 1]] = process
    return found


def _await_executors() -> None:
    deadline = time.monotonic() + _COME_S
    while len(executors()) < _EXECUTORS:
        if time.monotonic() > deadline:
            raise TimeoutError("no other executor came")
        time.sleep(0.2)  # Spark has no event for it


def measured(servers: str, keys: int, rounds: int, losses: int) -> Iterator[str]:
    """Fill the store, then lose executors; yield what was found, line by line."""
    blocks = np.array_split(np.arange(keys), max(keys // _BLOCK, 1))
    produce(servers, _SOURCE, ([(key_bytes(key), b"x") for key in block.tolist()] for block in blocks))
    with tempfile.TemporaryDirectory(prefix="bench-lost-", ignore_cleanup_errors=True) as home:
        app = ms.Application(
            _APP,
            topology("count", _SOURCE, _SINK),
            bootstrap_servers=servers,
            state_dir=home,
            master=f"local-cluster[{_EXECUTORS},1,1024]",
            shuffle_partitions=_PARTITIONS,
            statestore_cache_max_bytes=0,
            spark={"spark.executor.memory": "512m", "spark.ui.enabled": "false"},
            output="quiet",
        )
        with app.start() as running:
            await_processed(running, keys)
            counting = Counting(running, servers, Path(home, _APP, "tasks"), keys)
            counting.round()
            before = running.metrics()
            usual = [counting.round() for _ in range(rounds)]
            after = running.metrics()
            runs, moved = (after[name] - before[name] for name in ("task_runs", "moved_tasks"))
            yield f"{keys:,} keys, a usual round: {median(usual):.2f} s ({min(usual):.2f} to {max(usual):.2f}), load {os.getloadavg()[0]:.1f}"
            yield f"{runs:.0f} runs of tasks in {rounds} rounds, {moved:.0f} of them on another executor than before"
            for _ in range(losses):
                loss = counting.lose()
                yield f"{loss}, load {os.getloadavg()[0]:.1f}"
                _await_executors()
                again = [counting.round() for _ in range(rounds)]
                yield f"rounds afterwards: {median(again):.2f} s ({min(again):.2f} to {max(again):.2f})"
            last = running.metrics()
            yield f"in all {last['task_runs']:.0f} runs of tasks, {last['moved_tasks']:.0f} on another executor than before"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.lost_executor")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument(
        "--rounds", type=int, default=20, help="micro-batches before and after each loss (20)"
    )
    parser.add_argument("--losses", type=int, default=3)
    options = parser.parse_args(arguments)
    with EmbeddedKafka(heap="1g") as kafka:
        for topic in (_SOURCE, _SINK):
            kafka.create_topic(topic, _PARTITIONS)
        for line in measured(kafka.bootstrap_servers, options.keys, options.rounds, options.losses):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
