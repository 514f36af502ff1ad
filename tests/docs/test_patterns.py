"""Patterns of the documentation work on Spark too, where each micro-batch creates a new processor."""

from __future__ import annotations

import threading
from typing import Any

import millstream as ms
from millstream.core.model.ids import TopicPartition
from unit.helpers import Host

from .markdown import ROOT, blocks_of

PHOTOS = TopicPartition("photos", 0)


def names_of(page: str, content: str) -> dict[str, Any]:
    """Return the definitions of a block of a page, without running what follows them.

    Args:
        page: The page below ``docs``.
        content: Text that only this block contains.
    """
    (block,) = (block for block in blocks_of(ROOT / "docs" / page) if content in block.text)
    names: dict[str, Any] = {"ms": ms, "__name__": page}
    exec(block.text[: block.text.index("with ms.testing")], names)
    return names


def test_a_processor_that_acknowledges_starts_the_work_for_each_record_once() -> None:
    names = names_of("concepts/asynchronous.md", "class Measure")
    may_end, started = threading.Event(), list[str]()

    def measured(photo: str) -> int:
        started.append(photo)
        may_end.wait(60)
        return len(photo)

    names["measured"] = measured
    host = Host(names["builder"].build())
    assert host.run("photos", ("anna", "sea", 1), ("bert", "hills", 2)).committable == {PHOTOS: 0}
    for now_ms in (100, 200):
        host.restart()
        assert host.step(now_ms).committable == {PHOTOS: 0}
    works = list(names["WORK"].values())
    may_end.set()
    assert [work.result(60) for work in works] == [3, 5]
    host.restart()
    outcome = host.step(300)
    assert (outcome.committable, sorted(started), names["WORK"]) == ({PHOTOS: 2}, ["hills", "sea"], {})
    ((topic, records),) = outcome.sends
    assert (topic, records.keys) == ("sizes", [b"anna", b"bert"])
    names["pool"]().shutdown()
