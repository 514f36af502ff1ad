"""Connections from unrelated programs, such as clients of a stopped broker whose port Spark reuses."""

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

_KAFKA_REQUEST = bytes.fromhex("0000002300120003000000010007")


def _listening(process: psutil.Process) -> set[int]:
    return {
        each.laddr.port for each in process.net_connections(kind="tcp") if each.status == psutil.CONN_LISTEN
    }


class Stranger:
    """Sends a request to every port that a process opens."""

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._known = process, _listening(process)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.reached_ports: list[int] = []

    def __enter__(self) -> Stranger:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for port in _listening(self._process) - self._known:
                with (
                    suppress(OSError),
                    socket.create_connection(("127.0.0.1", port), timeout=1) as connection,
                ):
                    connection.sendall(_KAFKA_REQUEST)
                    self.reached_ports.append(port)


def test_micro_batches_open_no_port_that_a_stranger_can_reach(apps: Apps, spark: SparkSession) -> None:
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
    assert stranger.reached_ports == []
    counts = values_by_key(apps.kafka.consume(sink), ms.serdes.int64)
    assert counts == {f"k{n}": list(range(1, 101)) for n in range(7)}
