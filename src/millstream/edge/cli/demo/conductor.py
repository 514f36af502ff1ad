"""The thread that starts the broker and Spark, lets the application count, checks the counts and stops everything.

Counting is complete when the broker has acknowledged every line, the application's group has committed every line, and the reader has
read the output topic to its end. The counts must then equal a ``Counter`` over the same lines. If they differ, they count as wrong only
after a few seconds without progress.
"""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from pyspark import SparkContext

from millstream.core.runtime.lifecycle import FINAL
from millstream.drivers.spark.driver.spark_session import session_for
from millstream.edge.application.application import Application
from millstream.edge.application.running_application import RunningApplication
from millstream.edge.cli.demo.board import Board, Scene
from millstream.edge.cli.demo.traffic import DemoError, LineFeeder, Observer, Reader, Traffic
from millstream.edge.cli.demo.wordcount import COUNTS, LINES, repeated, topology, words
from millstream.testing.kafka import EmbeddedKafka

APPLICATION_ID = "millstream-demo"
PARTITIONS = 4
_BATCH_RECORDS = 5_000  # several micro-batches, so that the display shows progress
_POLL_S = 0.2
_STILL_S = 5.0
_STUCK_S = 120.0
_STOP_S = 10.0


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo.

    Attributes:
        keep: Whether to leave everything running at the end.
    """

    lines: int
    keep: bool
    master: str


@dataclass(frozen=True)
class Verdict:
    """The result of the check of the counts.

    Attributes:
        wrong: Words whose counts differ: word, correct count, count in the topic.
        seconds: The time from the first written line to the last read count.
    """

    words: int
    different: int
    wrong: tuple[tuple[str, int, int], ...]
    seconds: float


class Interrupted(Exception):  # noqa: N818 - not an error
    """The user wants to stop."""


class Conductor(threading.Thread):
    """Runs the demo. The main thread reads ``verdict`` and ``error``, and calls ``interrupt`` and ``release``."""

    def __init__(self, options: DemoOptions, board: Board) -> None:
        super().__init__(name="millstream-demo", daemon=True)
        self.verdict: Verdict | None = None
        self.error: Exception | None = None
        self.servers = ""
        self._options = options
        self._board = board
        self._running: RunningApplication | None = None
        self._halt = threading.Event()
        self._interrupts = 0

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped the demo before the counts were checked."""
        return self._interrupts > 0 and self.verdict is None

    def interrupt(self) -> None:
        """Stop gracefully if the application runs; otherwise, or at the second call, kill Spark."""
        self._interrupts += 1
        self._halt.set()
        if self._running is None or self._interrupts > 1:
            kill_spark()

    def release(self) -> None:
        self._halt.set()

    def run(self) -> None:
        ending = ExitStack()
        try:
            try:
                self._perform(ending)
            finally:
                self._halt.set()
                with self._board.step("stopping"):
                    ending.close()
        except Interrupted:
            pass
        except Exception as error:
            self.error = None if self._interrupts else error

    def _perform(self, ending: ExitStack) -> None:
        home = Path(
            ending.enter_context(TemporaryDirectory(prefix="millstream-demo-", ignore_cleanup_errors=True))
        )
        lines = repeated(self._options.lines)
        kafka = EmbeddedKafka()
        ending.callback(kafka.stop)
        pool = ending.enter_context(ThreadPoolExecutor(1))
        broker = pool.submit(self._start_broker, kafka, lines, ending)
        self._start_spark(home, ending)
        traffic = broker.result()
        self._check_halt()
        running = self._start_application(home, ending)
        self._count(running, traffic, lines)
        while self._options.keep and not self._halt.wait(_POLL_S):
            self._show(running, traffic)

    def _start_broker(self, kafka: EmbeddedKafka, lines: Sequence[str], ending: ExitStack) -> Traffic:
        with self._board.step("starting broker") as result:
            kafka.start()
            result += [kafka.bootstrap_servers, f"(process {kafka.pid})"]
        self.servers = kafka.bootstrap_servers
        with self._board.step("creating topics") as result:
            for topic in (LINES, COUNTS):
                kafka.create_topic(topic, PARTITIONS)
            reader = Reader(self.servers, COUNTS, PARTITIONS)
            observer = Observer(
                self.servers, APPLICATION_ID, read=LINES, written=COUNTS, partitions=PARTITIONS
            )
            observer.committed_sum()  # makes the broker create its offsets topic now, while Spark starts
            result.append(f"{LINES} and {COUNTS}, {PARTITIONS} partitions each")
        ending.callback(observer.close)
        ending.callback(reader.halt)
        feeder = LineFeeder(self.servers, LINES, lines, self._halt)
        ending.callback(feeder.halt)
        return Traffic(feeder, reader, observer)

    def _start_spark(self, home: Path, ending: ExitStack) -> None:
        self._check_halt()
        ending.callback(stop_spark)
        with self._board.step("starting Spark") as result:
            settings = warehouse_settings(home)
            address, pid = start_spark(APPLICATION_ID, self._options.master, settings)
            result += [address, "" if pid is None else f"(process {pid})"]
        self._check_halt()

    def _start_application(self, home: Path, ending: ExitStack) -> RunningApplication:
        with self._board.step("initialising tasks"):
            application = Application(
                APPLICATION_ID,
                topology(),
                bootstrap_servers=self.servers,
                state_dir=home / "state",
                master=self._options.master,
                max_batch_records=_BATCH_RECORDS,
                spark=warehouse_settings(home),
            )
            self._running = running = application.start()
            ending.callback(running.stop, _STOP_S)
        return running

    def _count(self, running: RunningApplication, traffic: Traffic, lines: Sequence[str]) -> None:
        expected = Counter(word for line in lines for word in words(line))
        with self._board.step("counting words") as result:
            began = monotonic()
            traffic.reader.start()
            traffic.feeder.start()
            counts = self._watch(running, traffic, expected.total())
            seconds = monotonic() - began
            result.append(f"{len(lines) / seconds:,.0f} lines/s, {expected.total() / seconds:,.0f} words/s")
        self.verdict = Verdict(expected.total(), len(expected), differences(expected, counts), seconds)

    def _watch(self, running: RunningApplication, traffic: Traffic, expected: int) -> Mapping[str, int]:
        """Watch until everything has been counted and read, or until there is no more progress."""
        last, moved = (-1, -1, -1), monotonic()
        while True:
            self._check_halt()
            scene = self._show(running, traffic)
            progress = scene.written, scene.counted, sum(scene.counts.values())
            if progress != last:
                last, moved = progress, monotonic()
            still_s = monotonic() - moved
            if traffic.feeder.is_done and scene.lag == 0 and self._drained(traffic):
                if sum(scene.counts.values()) == expected or still_s > _STILL_S:
                    return scene.counts
            elif still_s > _STUCK_S:
                raise DemoError(
                    f"no progress for {_STUCK_S:.0f} s: {scene.counted} of {scene.written} lines are counted; "
                    "`millstream doctor` checks what the demo needs"
                )
            sleep(_POLL_S)

    def _show(self, running: RunningApplication, traffic: Traffic) -> Scene:
        """Show the current figures; raise errors of the other threads."""
        for error in (traffic.feeder.error, traffic.reader.error):
            if error is not None:
                raise error
        status = running.status()
        if status.state in FINAL:
            why = status.error or "its query was stopped"
            raise DemoError(f"the application has {status.state}: {why}")
        self._board.note(
            written=traffic.feeder.written,
            counted=traffic.observer.committed_sum(),
            state=status.state,
            batch=status.batch,
            records_per_s=status.records_per_s,
            counts=traffic.reader.counts(),
        )
        return self._board.scene()

    @staticmethod
    def _drained(traffic: Traffic) -> bool:
        ends, read = traffic.observer.ends(), traffic.reader.positions()
        return all(read[partition] >= end for partition, end in ends.items())

    def _check_halt(self) -> None:
        if self._halt.is_set():
            raise Interrupted


def differences(expected: Counter[str], counts: Mapping[str, int]) -> tuple[tuple[str, int, int], ...]:
    """Return the words whose counts differ, in alphabetical order: word, correct count, found count.

    Example:
        >>> differences(Counter({"to": 2, "be": 2}), {"to": 2, "be": 1, "or": 1})
        (('be', 2, 1), ('or', 0, 1))
    """
    every = sorted({*expected, *counts})
    return tuple((w, expected[w], counts.get(w, 0)) for w in every if expected[w] != counts.get(w, 0))


_END_S = 10.0


def warehouse_settings(home: Path) -> dict[str, str]:
    """Return the Spark settings that place the session's warehouse in a directory."""
    return {"spark.sql.warehouse.dir": (home / "warehouse").as_uri()}


def start_spark(application_id: str, master: str, settings: dict[str, str]) -> tuple[str, int | None]:
    """Start Spark, with its session active in this thread; return the UI's URL, and the JVM's process id if it is a child."""
    session = session_for(application_id, master, settings)
    process = _jvm()
    return session.sparkContext.uiWebUrl or "", None if process is None else process.pid


def stop_spark() -> None:
    """Stop the session and end the JVM, which PySpark would keep until this Python process ends; harmless without a JVM."""
    context, process = SparkContext._active_spark_context, _jvm()
    if context is not None and process is not None and process.poll() is None:
        with suppress(Exception):  # a dying JVM is ended below
            context.stop()
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # PySpark's JVM ends at the end of its input
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_spark() -> None:
    """Kill the JVM; waiting calls fail."""
    process = _jvm()
    if process is not None:
        process.kill()


def _jvm() -> subprocess.Popen[bytes] | None:
    gateway: Any = SparkContext._gateway
    return getattr(gateway, "proc", None)
