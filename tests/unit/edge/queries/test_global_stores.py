"""Queries of global stores: the copy of a host answers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.ports import ByteStores
from millstream.core.queries.question import Question
from millstream.core.runtime.task_report import TaskReport
from millstream.core.state.global_copy import CopyProgress, with_progress
from millstream.core.state.memory import MemoryStores
from millstream.core.state.segments.log import Manifest
from millstream.edge.queries.global_answers import Furthest, GlobalAnswers
from millstream.edge.queries.task_copies import TaskCopy
from unit.helpers import Quiet

from .local_answers import answers_of


def test_a_global_store_of_a_topology_without_state_cannot_be_queried(tmp_path: Path) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out")
    builder.global_table("countries", store="codes")
    answers = answers_of(builder.build(), tmp_path, {})
    assert answers.stores() == {"codes": "key-value"}
    with pytest.raises(
        StoreError, match=r"'codes', because nothing reads it .* or read its topic 'countries'"
    ):
        answers.answer(Question("codes", "all"))


class FakeHost:
    """A host with a copy of the global store ``codes``. It stands in for a ``CopyReader`` and for ``Copies`` with this copy only."""

    def __init__(self) -> None:
        self.copy = TaskCopy(self)
        self.progress = CopyProgress("")
        self.content = MemoryStores()

    def fill(self, topic_id: str, end: int, value: str) -> None:
        self.progress = CopyProgress(f"countries {topic_id}", {0: end})
        self.content = MemoryStores()
        self.content.apply({"codes": [(b"ch", value.encode())], **with_progress("codes", self.progress)})

    def of_global(self, store: str, report: TaskReport) -> TaskCopy:
        return self.copy

    def view(self, known: Manifest) -> ByteStores:
        return self.content

    def newest(self) -> Manifest:
        return Manifest(self.progress.version.number, (self.progress.version.token,))

    def release(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TestAnswers:
    @staticmethod
    def ask(answers: GlobalAnswers, batch: int, reached: int) -> Any:
        codes = ms.stores.key_value("codes", ms.serdes.string, ms.serdes.string)
        topology = ms.Topology().add_source("in", "in").add_sink("out", "out", "in")
        topology.add_global_store(codes, "read", "countries", "keep", Quiet)
        [part] = topology.plan("shop").global_parts
        furthest = Furthest(TaskReport("0_0"), {0: reached})
        return answers.answer(Question("codes", "get", ("ch",)), part, batch, furthest).value

    def test_are_never_older_than_before(self) -> None:
        host: Any = FakeHost()
        answers = GlobalAnswers(host)
        host.fill("first", 90, "Suisse")
        assert self.ask(answers, 1, 90) == "Suisse"
        host.fill("first", 50, "Helvetia")
        with pytest.raises(CopyMovedError):
            self.ask(answers, 2, 40)

    def test_continue_when_the_topic_was_created_again(self) -> None:
        host: Any = FakeHost()
        answers = GlobalAnswers(host)
        host.fill("first", 90, "Suisse")
        assert self.ask(answers, 1, 90) == "Suisse"
        host.fill("second", 3, "Schweiz")
        assert self.ask(answers, 2, 3) == "Schweiz"
