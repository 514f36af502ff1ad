"""How the settings of an application divide its plan into key ranges."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import SettingsError
from millstream.edge.planning.plans import planned
from millstream.edge.settings.settings_loading import settings_from

EXACTLY_ONCE: dict[str, Any] = {"bootstrap_servers": "unused:1", "processing_guarantee": "exactly_once"}


def test_key_ranges_with_changelog_topics_send_records_with_a_new_key_through_a_topic() -> None:
    builder = ms.StreamsBuilder()
    words = builder.stream("lines").group_by(lambda key, line: line)
    words.count(store=ms.stores.options("counts", changelog="kafka"))
    plan = planned(builder.build(), "app", settings_from({**EXACTLY_ONCE, "parallelism": 4}))
    assert [sub.ranges for sub in plan.subtopologies] == [1, 16]
    assert [topic.through_shuffle for topic in plan.internal_topics.values()] == [False]
    assert plan.committed_by_transactions == {"lines"}


def test_key_ranges_with_and_without_changelog_topics_cannot_be_combined() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("clicks").group_by_key().count(store=ms.stores.options("counts", changelog="kafka"))
    builder.stream("orders").group_by_key().count(store="others")
    topology = builder.build()
    with pytest.raises(
        SettingsError, match=r"sub-topology 1, which reads 'orders', has no store with a changelog"
    ):
        planned(topology, "app", settings_from({**EXACTLY_ONCE, "parallelism": 4}))
    plan = planned(topology, "app", settings_from({**EXACTLY_ONCE, "parallelism": {"clicks": 4}}))
    assert [sub.ranges for sub in plan.subtopologies] == [16, 1]
