"""Connections from programs that look for what listened on a port of Spark's before, such as clients of a broker that is gone."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import psutil
import pytest
from pyspark.sql import SparkSession

import millstream as ms

from .helpers import Apps, values_by_key

pytestmark = [pytest.mark.broker, pytest.mark.spark]

_A_REQUEST_OF_KAFKA = bytes.fromhex("0000002300120003000000010007")


def _listening(process: psutil.Process) -> set[int]:
    return {
        each.laddr.port for each in process.net_connections(kind="tcp") if each.status == psutil.CONN_LISTEN
    }


class Stranger:
    """Speaks to every port that a process opens."""

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._known = process, _listening(process)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.spoken_to: list[int] = []

    def __enter__(self) -> Stranger:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            for port in _listening(self._process) - self._known:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as line:
                    line.sendall(_A_REQUEST_OF_KAFKA)
                    self.spoken_to.append(port)


def test_a_stranger_harms_no_micro_batch(apps: Apps, spark: SparkSession) -> None:
    source, sink = apps.topic("in"), apps.topic("out")
    builder = ms.StreamsBuilder()
    words = builder.stream(source).group_by_key()
    words.count(store="counts").to_stream().to(sink, value=ms.serdes.int64)
    apps.kafka.produce(source, [(f"k{n % 7}", "v") for n in range(700)])
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = psutil.Process(gateway.proc.pid)  # type: ignore[attr-defined]
    with Stranger(jvm) as stranger:
        apps.run(builder.build(), max_batch_records=100)
    assert stranger.spoken_to == []
    counts = values_by_key(apps.kafka.consume(sink), ms.serdes.int64)
    assert counts == {f"k{n}": list(range(1, 101)) for n in range(7)}
