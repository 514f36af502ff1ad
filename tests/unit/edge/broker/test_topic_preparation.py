"""Changelog topics that a start finds or creates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import millstream as ms
from millstream.core.topology.layout import default_grouper, lay_out
from millstream.edge.broker.topic_preparation import TopicPreparation


class Broker:
    """Has changelog topics of two partitions with the given numbers of records, and notes which ones are created."""

    def __init__(self, **records: int) -> None:
        self.records = {f"app-{store}-changelog": count for store, count in records.items()}
        self.created: list[str] = []

    def begin_offsets(self, counts: Mapping[str, int]) -> Any:
        return {topic: {0: 3, 1: 0} for topic in counts}

    def end_offsets(self, counts: Mapping[str, int]) -> Any:
        return {topic: {0: 3 + self.records[topic], 1: 0} for topic in counts}

    def ensure_topic(self, topic: str, *_: Any) -> None:
        self.created.append(topic)


def test_a_changelog_topic_without_records_is_new_although_it_exists() -> None:
    """A start that was killed before its first micro-batch has created it, so nothing was published to it."""
    builder = ms.StreamsBuilder()
    for name in ("full", "empty", "missing"):
        builder.table(name, store=ms.stores.options(name, changelog="kafka"))
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"full": 2, "empty": 2, "missing": 2}, default_grouper)
    broker: Any = Broker(full=1, empty=0)
    existing = dict.fromkeys(broker.records, 2)
    assert TopicPreparation(broker, 1).prepare_changelogs(plan, layout, existing) == ["empty", "missing"]
    assert broker.created == ["app-missing-changelog"]
