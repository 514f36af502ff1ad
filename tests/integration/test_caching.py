"""On Spark, each micro-batch commits: with caches it writes each row once, without caches it writes every update."""

from __future__ import annotations

import pytest

import millstream as ms

from .helpers import Apps, values_by_key
from .topologies import word_count

pytestmark = [pytest.mark.broker, pytest.mark.spark]

LINE = "to be or not to be"
TEN_MIB = 10 << 20


def test_a_micro_batch_writes_each_row_once_and_without_caches_every_update(apps: Apps) -> None:
    source, sink = apps.topic("lines", 1), apps.topic("counts", 1)
    topology = word_count(source, sink)

    def counted(cache_bytes: int) -> tuple[dict[str | None, list[int]], dict[str, int]]:
        apps.kafka.produce(source, [(None, LINE), (None, LINE)])
        metrics = apps.run(topology, statestore_cache_max_bytes=cache_bytes).metrics()
        return values_by_key(apps.kafka.consume(sink), ms.serdes.int64), metrics

    first, metrics = counted(TEN_MIB)
    assert first == {"to": [4], "be": [4], "or": [2], "not": [2]}
    assert metrics["merged_updates"] == 8
    assert 0 < metrics["cache_bytes_max"] < 10_000

    second, _ = counted(TEN_MIB)
    assert second == {"to": [4, 8], "be": [4, 8], "or": [2, 4], "not": [2, 4]}

    every, metrics = counted(0)
    assert every["to"] == [4, 8, 9, 10, 11, 12]
    assert every["not"] == [2, 4, 5, 6]
    assert metrics["merged_updates"] == 0


def test_caches_are_on_by_default(apps_without_spark: Apps) -> None:
    app = ms.Application("app", word_count("lines", "counts"), bootstrap_servers="b:1")
    assert app.settings.statestore_cache_max_bytes == TEN_MIB
