"""An application continues after losing a Python worker, although a local Spark session attempts each task only once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

import millstream as ms
from millstream.core.model.errors import SparkRuntimeError
from proofs.sizes import each_once_or_crossed

from .helpers import Apps, committed_records, eventually

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(400)]

FATAL = "fatal"


def killing(deaths: Path, times: int) -> Callable[[str], str]:
    """Return a function that kills its process at the word ``FATAL``, at most ``times`` times."""

    def checked(word: str) -> str:
        died = len(list(deaths.iterdir()))
        if word == FATAL and died < times:
            (deaths / str(died)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return word

    return checked


def in_a_reader(words: ms.KStream[str, str], check: Callable[[str], str]) -> ms.KStream[str, str]:
    return words.map_values(check).group_by(lambda _, word: word).count().to_stream().map_values(str)


def in_a_task(words: ms.KStream[str, str], check: Callable[[str], str]) -> ms.KStream[str, str]:
    counts = words.group_by(lambda _, word: word).count().to_stream()
    return counts.map(lambda word, count: (check(word), str(count)))


def counting(
    source: str, sink: str, kill: Callable[[str], str], where: Callable[..., ms.KStream[str, str]]
) -> ms.Topology:
    builder = ms.StreamsBuilder()
    words = builder.stream(source, key=ms.serdes.string, value=ms.serdes.string)
    where(words, kill).to(sink, key=ms.serdes.string, value=ms.serdes.string)
    return builder.build()


@pytest.mark.parametrize(
    ("guarantee", "where"),
    each_once_or_crossed(["at_least_once", "exactly_once"], [in_a_reader, in_a_task]),
)
def test_a_micro_batch_interrupted_by_a_lost_worker_is_repeated(
    apps: Apps,
    tmp_path: Path,
    guarantee: Literal["at_least_once", "exactly_once"],
    where: Callable[..., ms.KStream[str, str]],
) -> None:
    source, sink = apps.topic("words"), apps.topic("counts")
    topology = counting(source, sink, killing(tmp_path, 2), where)
    words = ["to", "be", FATAL, "or", "be"]
    running = apps.start(topology, processing_guarantee=guarantee, statestore_cache_max_bytes=0)
    apps.kafka.produce(source, [(None, word) for word in words])
    expected = {("to", "1"), ("be", "1"), ("be", "2"), ("or", "1"), (FATAL, "1")}

    def results() -> list[tuple[str, str]]:
        return [
            (record.key.decode(), record.value.decode()) for record in committed_records(apps.kafka, sink)
        ]

    eventually(lambda: set(results()) >= expected, "all counts", within_s=200)
    assert len(list(tmp_path.iterdir())) == 2
    assert running.status().state == "running"
    if guarantee == "exactly_once":
        assert sorted(results()) == sorted(expected)
    apps.kafka.produce(source, [(None, "or")])
    eventually(lambda: ("or", "2") in results(), "a count of later", within_s=60)


def forwarding(source: str, sink: str, kill: Callable[[str], str]) -> ms.Topology:
    """Return a topology that forwards records and calls ``kill`` in its first micro-batch."""

    class Killing(ms.Processor[str, str, str, str]):
        def init(self, context: ms.ProcessorContext[str, str]) -> None:
            kill(FATAL)
            self._context = context

        def process(self, record: ms.Record[str, str]) -> None:
            self._context.forward(record)

    builder = ms.StreamsBuilder()
    words = builder.stream(source, key=ms.serdes.string, value=ms.serdes.string)
    words.process(Killing).to(sink, key=ms.serdes.string, value=ms.serdes.string)
    return builder.build()


def test_a_worker_lost_in_the_first_micro_batch_is_replaced(apps: Apps, tmp_path: Path) -> None:
    source, sink = apps.topic("words"), apps.topic("results")
    running = apps.start(forwarding(source, sink, killing(tmp_path, 2)), processing_guarantee="exactly_once")
    assert running.status().state == "running"
    assert len(list(tmp_path.iterdir())) == 2
    apps.kafka.produce(source, [(b"a", b"1")])
    eventually(
        lambda: [record.value for record in committed_records(apps.kafka, sink)] == [b"1"], "the record"
    )


@pytest.mark.soak
def test_the_start_fails_if_the_first_micro_batch_kills_every_worker(apps: Apps, tmp_path: Path) -> None:
    topology = forwarding(apps.topic("words"), apps.topic("results"), killing(tmp_path, 99))
    with pytest.raises(SparkRuntimeError):
        apps.start(topology)
    assert len(list(tmp_path.iterdir())) >= 4


def test_the_application_fails_if_a_micro_batch_kills_every_worker(
    apps: Apps, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, sink = apps.topic("words"), apps.topic("counts")
    running = apps.start(counting(source, sink, killing(tmp_path, 99), in_a_reader))
    apps.kafka.produce(source, [(None, FATAL)])
    with pytest.raises(SparkRuntimeError):
        running.await_termination(240)
    assert running.status().state == "failed"
    restarts = [record for record in caplog.records if record.getMessage().startswith("restarting the query")]
    assert len(restarts) == 3
