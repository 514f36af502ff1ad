"""Topics that change under a query: whether a new query can continue after an error about them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import BrokerUnavailableError
from millstream.core.ports import TopicFacts
from millstream.edge.application.metadata_refresher import MetadataRefresher

BEFORE = {"orders-a": "1", "orders-b": "2", "named": "3"}


def changed(now: dict[str, str] | None) -> bool:
    """Return the outcome for a pattern, a named topic and the topics that exist now; None means that no broker answers."""
    builder = ms.StreamsBuilder()
    builder.stream(re.compile("orders-.*")).to("out")
    builder.stream("named").to("out")
    plan = builder.build().plan("app", existing=BEFORE)

    def topic_facts(topics: Any) -> dict[str, TopicFacts]:
        if now is None:
            raise BrokerUnavailableError("away")
        return {topic: TopicFacts(now[topic], 1) for topic in topics if topic in now}

    run: Any = SimpleNamespace(
        continues=(SimpleNamespace(plan=plan), {t: TopicFacts(i, 1) for t, i in BEFORE.items()})
    )
    environment: Any = SimpleNamespace(broker=SimpleNamespace(topic_facts=topic_facts), grouper=None)
    unused: Any = None
    return MetadataRefresher(run, environment, unused, unused).changed_under_query()


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (BEFORE, False),
        ({"orders-a": "1", "named": "3"}, True),
        ({**BEFORE, "orders-a": "4"}, True),
        ({**BEFORE, "named": "4"}, True),  # a start reads it from its beginning, or refuses it
        ({"orders-a": "1", "orders-b": "2"}, False),  # a topic that the program names
        (None, False),
    ],
)
def test_a_new_query_continues_without_deleted_topics_of_patterns_and_with_recreated_topics(
    now: dict[str, str] | None, outcome: bool
) -> None:
    assert changed(now) is outcome
