"""On Spark, readers combine the records of a key for built-in aggregations, and the results are those of single records."""

from __future__ import annotations

import pytest

import millstream as ms

from .helpers import Apps, values_by_key
from .topologies import key_count, word_count

pytestmark = [pytest.mark.broker, pytest.mark.spark]

LINES = 600


@pytest.mark.parametrize("shuffled", [False, True], ids=["from-the-topic", "through-the-shuffle"])
def test_a_hot_key_is_combined_and_counted(apps: Apps, shuffled: bool) -> None:
    source, sink = apps.topic("lines", 1), apps.topic("counts", 2)
    topology = word_count(source, sink) if shuffled else key_count(source, sink)
    hot, rare = ("hot", "hot hot hot rare" if shuffled else ""), ("rare", "hot rare" if shuffled else "")
    apps.kafka.produce(source, [hot if number % 10 else rare for number in range(LINES)])
    hot_lines, rare_lines = LINES * 9 // 10, LINES // 10

    def run() -> tuple[dict[str | None, list[int]], dict[str, int]]:
        metrics = apps.run(topology, parallelism=4, statestore_cache_max_bytes=10 << 20).metrics()
        return values_by_key(apps.kafka.consume(sink), ms.serdes.int64), metrics

    counts, metrics = run()
    expected = {"hot": hot_lines, "rare": rare_lines}
    if shuffled:
        expected = {"hot": 3 * hot_lines + rare_lines, "rare": LINES}
    assert {key: values[-1] for key, values in counts.items()} == expected
    words = sum(expected.values())
    assert metrics["read_records"] == LINES
    assert metrics["processed_records"] == (LINES + words if shuffled else LINES)
    assert metrics["combined_records"] > words * 9 // 10
    assert metrics["merged_updates"] >= metrics["combined_records"]

    apps.kafka.produce(source, [hot])
    counts, metrics = run()
    assert counts["hot"][-1] == expected["hot"] + (3 if shuffled else 1)
    assert metrics["combined_records"] == 0
