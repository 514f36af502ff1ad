"""Taps on a real broker and Spark sample the records that reach nodes, without a restart and without changing results."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import millstream as ms
from millstream.core.model.errors import ControlError
from proofs.sizes import sized

from .helpers import Apps, eventually, latest

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def topology(source: str, sink: str) -> ms.Topology:
    """Count words: one sub-topology before Spark's shuffle, and a columnar one after it."""
    builder = ms.StreamsBuilder()
    words = builder.stream(source, value=ms.serdes.string, name="lines")
    words = words.flat_map_values(str.split, name="words")
    counts = words.group_by(lambda key, word: word, name="by-word", key=ms.serdes.string).count(
        store="counts", name="counted"
    )
    counts.to_stream(name="changes").map_values(lambda count: count, name="asked").to(
        sink, value=ms.serdes.int64, name="sent"
    )
    return builder.build()


def test_a_node_can_be_tapped_while_the_application_runs(apps: Apps) -> None:
    source, sink = apps.topic("in", 2), apps.topic("out", 2)
    running = apps.start(topology(source, sink))
    run, query = running._run.run_id, running._run.query.current
    lines = [("k", f"tea milk tea w{n}") for n in range(30)]

    def sent(batches: int) -> None:
        """Send the lines once more, and wait until they are counted ``batches`` times."""
        apps.kafka.produce(source, lines)
        expected = {"tea": 60 * batches, "milk": 30 * batches} | {f"w{n}": batches for n in range(30)}
        eventually(lambda: latest(apps.kafka.consume(sink), ms.serdes.int64) == expected, "the counts")

    sent(1)
    with running.tap("lines") as read, running.tap("counted", limit=7) as counted, running.tap("sent") as out:
        sent(2)
        eventually(lambda: counted.counts().passed >= 120, "the words to be seen")
        assert sorted(record.value for record in read.records()) == sorted(value for _, value in lines)
        assert {record.topic for record in read.records()} == {source}
        assert {(record.key, record.topic) for record in read.records()} == {("k", source)}
        assert counted.counts().passed == 120
        assert len(counted.records()) == 7
        assert counted.counts().dropped == counted.counts().sampled - 7
        last = {record.key: record.value for record in out.records() if record.key != "tea"}
        assert last.items() >= {"w0": 2, "w29": 2}.items()
        assert {record.batch for record in out.records()} <= set(range(running.status().batch + 1))

        arguments = [apps.id, "lines", "--limit", "2", "--json", "--state-dir", str(apps.home)]
        command = subprocess.Popen(
            [sys.executable, "-m", "millstream", "tap", *arguments], stdout=subprocess.PIPE, text=True
        )
        eventually(lambda: len(running._run.taps._buffers) == 4, "the command to tap")
        sent(3)
        shown = [json.loads(line) for line in command.communicate(timeout=60)[0].splitlines()]
        assert [record["node"] for record in shown] == ["lines", "lines"]
    assert running._run.taps.nodes() == ()
    seen = out.counts().passed
    sent(4)
    assert out.counts().passed == seen
    assert (running._run.run_id, running._run.query.current) == (run, query)
    assert running.status().state == "running"
    with pytest.raises(ControlError, match="no node 'nowhere'; its nodes are: 'lines', 'words'"):
        running.tap("nowhere")


async def asked(count: int) -> str:
    return f"{count}!"


@pytest.mark.parametrize("guarantee", sized(["exactly_once"], ["at_least_once", "exactly_once"]))
def test_tasks_of_key_ranges_and_asynchronous_operators_can_be_tapped(apps: Apps, guarantee: str) -> None:
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    builder = ms.StreamsBuilder()
    counts = builder.stream(source, name="read").group_by_key().count(store="counts", name="counted")
    counts.to_stream().map_values_async(asked, name="asked").to(sink, name="sent")
    running = apps.start(builder.build(), parallelism=4, processing_guarantee=guarantee)
    keys = [f"k{n}" for n in range(20)]
    with running.tap("counted") as counted, running.tap("asked") as calls, running.tap("sent") as sent:
        apps.kafka.produce(source, [(key, "x") for key in keys])
        eventually(lambda: sent.counts().passed == 20, "the records to be sent")
        for tap, value in ((counted, "x"), (calls, 1), (sent, "1!")):
            assert sorted(record.key for record in tap.records()) == sorted(keys)
            assert {(record.value, record.topic) for record in tap.records()} == {(value, source)}
            assert sorted(record.offset for record in tap.records()) == list(range(20))
        assert len({record.task for record in counted.records()}) > 1
    assert latest(apps.kafka.consume(sink)) == dict.fromkeys(keys, "1!")
