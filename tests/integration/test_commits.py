"""``context.commit()`` starts the next micro-batch at once, even with a trigger interval of an hour."""

from __future__ import annotations

import pytest

from .helpers import Apps, eventually
from .topologies import committing_copy

pytestmark = [pytest.mark.broker, pytest.mark.spark]

_HOUR_MS = 3_600_000


def test_a_commit_starts_the_next_micro_batch_without_the_trigger_interval(apps: Apps) -> None:
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    running = apps.start(committing_copy(source, sink), trigger_interval_ms=_HOUR_MS)

    def committed(offset: int) -> None:
        eventually(
            lambda: apps.kafka.committed(apps.id, source).get(0) == offset, f"offset {offset} to be committed"
        )

    for offset in range(
        3
    ):  # the first micro-batch follows the start of the tasks, each of the others a commit
        apps.kafka.produce(source, [("k", "commit")])
        committed(offset + 1)
    apps.kafka.produce(source, [("k", "no more")])
    committed(4)
    apps.kafka.produce(source, [("k", "in an hour")])
    eventually(lambda: running.status().lag[source] == 1, "the lag of the last record")
    running.stop()
    assert apps.kafka.committed(apps.id, source) == {0: 4}
