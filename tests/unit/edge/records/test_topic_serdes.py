"""The serdes of topics: those of the nodes that write or read them."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.core.model.errors import TopicNotFoundError
from millstream.core.topology.plan import Plan
from millstream.edge.records.topic_serdes import serdes_of


def plan() -> Plan:
    builder = ms.StreamsBuilder()
    builder.global_table("countries", key=ms.serdes.string, value=ms.serdes.int16, store="countries")
    builder.stream("in", key=ms.serdes.string, value=ms.serdes.int32).to("out", value=ms.serdes.int64)
    return builder.build().plan("app")


@pytest.mark.parametrize("sent", [True, False])
def test_a_topic_that_is_read_has_the_serdes_of_its_source(*, sent: bool) -> None:
    assert serdes_of(plan(), "in", None, None, sent=sent) == (ms.serdes.string, ms.serdes.int32)
    assert serdes_of(plan(), "countries", None, None, sent=sent) == (ms.serdes.string, ms.serdes.int16)


def test_a_topic_that_is_written_has_the_serdes_of_its_sink() -> None:
    assert serdes_of(plan(), "out", None, None, sent=False)[1] == ms.serdes.int64
    with pytest.raises(
        TopicNotFoundError, match=r"does not read the topic 'out'.* or one of countries, in, out"
    ):
        serdes_of(plan(), "out", None, None, sent=True)
