"""Changelog topics that a start finds or creates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import millstream as ms
from millstream.core.topology.layout import default_grouper, lay_out
from millstream.core.topology.plan import Plan
from millstream.edge.broker.topic_preparation import TopicPreparation


class Broker:
    """Has changelog topics of two partitions with the given numbers of records, and notes which ones are created."""

    def __init__(self, **records: int) -> None:
        self.records = {f"app-{store}-changelog": count for store, count in records.items()}
        self.created: list[str] = []
        self.first = 3

    def begin_offsets(self, counts: Mapping[str, int]) -> Any:
        return {topic: {0: self.first, 1: 0} for topic in counts}

    def end_offsets(self, counts: Mapping[str, int]) -> Any:
        return {topic: {0: self.first + self.records[topic], 1: 0} for topic in counts}

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


def windows() -> Plan:
    builder = ms.StreamsBuilder()
    counts = ms.stores.options("counts", changelog="kafka")
    builder.stream("in").group_by_key().windowed_by(ms.TumblingWindows(60_000, grace=0)).count(store=counts)
    return builder.build().plan("app")


class Aged(Broker):
    """Its retention has deleted all records of its changelog topics, which had some."""

    committed = True

    def committed_offsets(self, counts: Mapping[str, int]) -> Any:
        return {topic: {0: 7, 1: 7} for topic in counts} if self.committed else {}


@pytest.mark.parametrize(
    ("deleted", "committed", "rebuilds"), [(3, True, True), (3, False, False), (0, True, False)]
)
def test_an_application_whose_windows_have_all_expired_continues_at_the_committed_offsets(
    deleted: int, *, committed: bool, rebuilds: bool
) -> None:
    """Its checkpoint was lost while it had no input, for example over a weekend. It must not process everything again."""
    broker: Any = Aged(counts=0)
    broker.first, broker.committed = deleted, committed
    found = TopicPreparation(broker, 1).can_rebuild(windows(), {"in": 2, "app-counts-changelog": 2})
    assert found is rebuilds
