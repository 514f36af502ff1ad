"""A topology is edited between two runs on the same checkpoint, and its stores keep their content."""

from __future__ import annotations

import logging

import pytest

import millstream as ms
from millstream.core.model.errors import IncompatibleTopologyError
from millstream.drivers.spark.driver.checkpoint import LocalFiles, progress_of

from .helpers import Apps, latest
from .topologies import people_per_region

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def counting(source: str, sink: str, *, before: str | None = None, store: str = "counts") -> ms.Topology:
    """Count words, with or without another part before them, which moves the counts to a later sub-topology."""
    builder = ms.StreamsBuilder()
    if before is not None:
        builder.stream(before).group_by_key().count(store="others").to_stream().map_values(str).to(
            before_sink(sink)
        )
    words = builder.stream(source).flat_map_values(str.split).group_by(lambda _, word: word)
    words.count(store=store).to_stream().to(sink, value=ms.serdes.int64)
    return builder.build()


def before_sink(sink: str) -> str:
    return f"{sink}-of-others"


def parts(apps: Apps) -> dict[str, object]:
    progress = progress_of(LocalFiles(apps.home / apps.id / "checkpoint"))
    assert progress is not None
    return dict(progress.planned["parts"])


def test_a_store_survives_added_and_removed_sub_topologies_and_its_renaming(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    source, sink, other = apps.topic("in", 2), apps.topic("out", 1), apps.topic("other", 2)
    apps.kafka.create_topic(before_sink(sink), 1)
    apps.kafka.produce(source, [(None, "a b a")])
    apps.run(counting(source, sink))
    apps.kafka.produce(source, [(None, "a c")])
    apps.kafka.produce(other, [("k", "x")] * 2)

    with caplog.at_level(logging.INFO, "millstream.application"):
        apps.run(counting(source, sink, before=other))
    assert latest(apps.kafka.consume(sink), ms.serdes.int64) == {"a": 3, "b": 1, "c": 1}
    assert latest(apps.kafka.consume(before_sink(sink))) == {"k": "2"}
    assert "keeps  others" in caplog.text
    assert f"reads  {other} (2 partitions)" in caplog.text

    apps.kafka.produce(source, [(None, "a c")])
    renamed = counting(source, sink, store="words")
    for _ in range(2):  # at the second start, the store already has its new name
        apps.application(renamed, renamed_stores={"counts": "words"}).run(until="end")
        apps.kafka.produce(source, [(None, "a c")])
    assert parts(apps)["2"] == [[], [], 2]  # "others" is gone, but its number stays reserved
    apps.run(counting(source, sink, before=other, store="words"))
    assert latest(apps.kafka.consume(sink), ms.serdes.int64) == {"a": 6, "b": 1, "c": 4}
    assert "3" in parts(apps)

    third = apps.application(counting(source, sink, store="third"), renamed_stores={"wrods": "third"})
    with pytest.raises(IncompatibleTopologyError, match=r"neither; its stores are 'others', 'words'"):
        third.run(until="end")


def test_an_edit_that_abandons_an_internal_topic_with_records_is_refused(apps: Apps) -> None:
    people, sink = apps.topic("people", 1), apps.topic("out", 1)
    apps.kafka.produce(people, [("ann", "north")])
    apps.run(people_per_region(people, sink))
    internal = f"{apps.id}-per-region-repartition"
    apps.kafka.produce(internal, [("north", "1")])
    builder = ms.StreamsBuilder()
    builder.table(people).to_stream().to(sink)
    with pytest.raises(IncompatibleTopologyError, match=rf"{internal}.* which holds 1 records .*until='end'"):
        apps.run(builder.build())


def test_unnamed_state_is_kept_after_operators_are_inserted_before_it(apps: Apps) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 1)

    def counts(*, edited: bool) -> ms.Topology:
        builder = ms.StreamsBuilder()
        lines = builder.stream(source)
        if edited:
            lines = lines.filter(lambda _, line: line != "spam").peek(lambda _, line: line.split())
        words = lines.flat_map_values(str.split).group_by(lambda _, word: word)
        words.count().to_stream().to(sink, value=ms.serdes.int64)
        return builder.build()

    apps.kafka.produce(source, [(None, "a b a"), (None, "spam")])
    apps.run(counts(edited=False))
    apps.kafka.produce(source, [(None, "a c"), (None, "spam")])
    apps.run(counts(edited=True))
    assert latest(apps.kafka.consume(sink), ms.serdes.int64) == {"a": 3, "b": 1, "spam": 1, "c": 1}
