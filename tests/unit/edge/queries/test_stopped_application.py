"""A stopped application answers no queries, and has closed its local copies."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.queries.question import Question
from millstream.core.runtime.task_report import StateReport, TaskReport
from millstream.edge.queries.copy_readers import open_reader
from millstream.edge.queries.store_answers import Answers

from .local_answers import answers_of

GET = Question("counts", "get", ("tea",))


def counting(directory: Path) -> Answers:
    builder = ms.StreamsBuilder()
    builder.stream("words", key=ms.serdes.string).group_by_key().count(store="counts")
    return answers_of(
        builder.build(), directory, {"counts": lambda store: store.put("tea", ms.ValueAndTimestamp(3, 5))}
    )


def test_queries_after_the_end_are_refused_and_open_no_local_copy(tmp_path: Path) -> None:
    answers = counting(tmp_path)
    assert answers.answer(GET).value == 3
    answers.close()
    with pytest.raises(StoreError, match=r"'shop' has ended; ms\.read_store\(checkpoint, name\) reads"):
        answers.answer(GET)
    with pytest.raises(StoreError, match="'shop' has ended"):
        answers.answer(Question("counts", "all", text=True))
    reader = open_reader(str(tmp_path), "0_0", "lmdb")  # as the next start in this process would
    assert reader.newest().version == 1
    reader.close()


def test_a_copy_that_was_closed_during_a_query_stays_closed(tmp_path: Path) -> None:
    answers = counting(tmp_path)
    report = TaskReport("0_0", state=StateReport(1, ("first",), {}))
    copy = answers._copies.of_task("counts", report)
    answers.close()
    spec = ms.stores.key_value("counts", ms.serdes.string, ms.serdes.int64, timestamped=True)
    with pytest.raises(CopyMovedError, match="closed"):
        copy.store(spec, report)
    with pytest.raises(CopyMovedError, match="closed"):
        answers._copies.of_task("counts", report)
