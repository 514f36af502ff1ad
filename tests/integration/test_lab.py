"""The lab: a topology is deployed, tried, inspected, edited and stopped, as in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import (
    ControlError,
    IncompatibleTopologyError,
    TopicNotFoundError,
    TopologyError,
)

from .helpers import eventually

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def words(
    *, shout: bool = False, counted: bool = True, store: str = "counts", topic: str = "counts"
) -> ms.Topology:
    builder = ms.StreamsBuilder()
    lines = builder.stream("lines").flat_map_values(str.split)
    if shout:
        lines = lines.map_values(str.upper)
    if counted:
        counts = lines.group_by(lambda _, word: word).count(store=store)
        counts.to_stream().to(topic, value=ms.serdes.int64)
    else:
        lines.group_by_key().count(store="counts").to_stream().to("counts", value=ms.serdes.int64)
    return builder.build()


@pytest.fixture
def lab(spark: Any) -> Iterator[ms.Lab]:
    with ms.Lab("words") as words_lab:
        yield words_lab


def test_a_topology_is_deployed_tried_edited_and_stopped(lab: ms.Lab) -> None:
    assert lab._repr_html_() == "<p><b>words</b>: nothing deployed</p>"
    with pytest.raises(ControlError, match="nothing has been deployed"):
        lab.status()

    topology = words()
    assert lab.deploy(topology) is lab
    lab.send("lines", "to be or", ("a key", "not to be"), (None, "to", 1_700_000_000_000))
    lab.wait()
    assert dict(lab.entries("counts").rows) == {"to": 3, "be": 2, "or": 1, "not": 1}
    assert next(row[3:] for row in lab.read("lines")) == (None, "to")
    assert {(row[3], row[4]) for row in lab.read("counts")} >= {("to", 3), ("be", 2)}

    shown = lab._repr_html_()
    assert "words: running" in shown
    assert "3 records</text>" in shown  # the source of the lines

    earlier_batch = lab.status().batch
    lab.deploy(topology)  # as when the same cell is run again
    assert lab.status().state == "running"

    louder = words(shout=True)
    assert lab.preview(louder).kept == ("counts",)
    lab.deploy(louder)
    lab.send("lines", "to")
    lab.wait()
    assert lab.store("counts").get("TO") == 1
    assert lab.store("counts").get("to") == 3
    assert lab.status().batch >= earlier_batch

    lab.pause()
    lab.send("lines", "paused")
    with pytest.raises(TimeoutError, match=r"not all records are processed after 0.5 s; paused: lines"):
        lab.wait(0.5)
    lab.resume()
    lab.wait()
    assert lab.store("counts").get("PAUSED") == 1

    lab.stop()
    lab.deploy(words())  # continues where it stopped
    assert lab.store("counts").get("to") == 3

    renamed = words(store="totals", topic="totals")
    renames = {"counts": "totals"}
    assert str(lab.preview(renamed, renamed_stores=renames)) == (
        "keeps totals\nwrites totals\nno longer writes counts"
    )
    lab.deploy(renamed, renamed_stores=renames)
    assert lab.store("totals").get("to") == 3
    lab.stop()
    lab.deploy(words(), renamed_stores={"totals": "counts"})
    assert lab.store("counts").get("to") == 3


def test_invalid_requests_are_refused_without_stopping_the_running_application(lab: ms.Lab) -> None:
    lab.deploy(words())
    with pytest.raises(TopicNotFoundError, match="does not read the topic 'counts'"):
        lab.send("counts", 1)
    with pytest.raises(IncompatibleTopologyError):
        lab.deploy(words(counted=False))
    lab.send("lines", "still here")
    lab.wait()
    assert lab.store("counts").get("here") == 1


@pytest.mark.soak
def test_a_closed_lab_deploys_again_and_a_new_lab_replaces_an_earlier_one(lab: ms.Lab) -> None:
    lab.deploy(words())
    lab.close()
    lab.deploy(words())
    with ms.Lab("words") as second:  # as when the cell that creates the lab is run again
        with pytest.raises(TopologyError, match="call its build"):
            second.deploy(ms.StreamsBuilder())  # type: ignore[arg-type]
        assert lab.status().state == "running"
        second.deploy(words())
        with pytest.raises(ControlError, match="nothing has been deployed"):
            lab.status()
        second.send("lines", "anew")
        second.wait()
        assert dict(second.entries("counts").rows) == {"anew": 1}


def test_topics_and_stores_of_tables_are_written_and_shown(lab: ms.Lab) -> None:
    builder = ms.StreamsBuilder()
    text = ms.serdes.string
    builder.global_table("countries", key=text, value=text, store="countries")
    versions = ms.stores.options("versions", history_retention=120_000)
    builder.table("prices", key=text, value=text, store=versions)
    lab.deploy(builder.build())
    lab.send("countries", ("de", "Germany"))
    lab.send("prices", ("tea", "2", 1_700_000_000_000))
    lab.wait()
    assert [row[3:] for row in lab.read("countries")] == [("de", "Germany")]
    assert lab.entries("versions").rows == (("tea", ms.VersionedRecord("2", 1_700_000_000_000)),)
    assert "<p>" in lab.store("no-such-store")._repr_html_()


def test_a_lab_whose_application_has_failed_deploys_again(lab: ms.Lab) -> None:
    """A failed application keeps its lease until the lab stops it."""
    builder = ms.StreamsBuilder()
    builder.stream("lines").map_values(int).to("numbers", value=ms.serdes.int64)
    lab.deploy(builder.build())
    lab.send("lines", "two")
    eventually(lambda: lab.status().state == "failed", "the failure", within_s=60)
    lab.deploy(words())
    lab.wait()
    assert dict(lab.entries("counts").rows) == {"two": 1}
