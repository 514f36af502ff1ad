"""Status: what is being restored is shown until it is done, or the batch is."""

from __future__ import annotations

from dataclasses import replace

from penstock.drivers.spark.worker.progress import RestoreProgress
from penstock.drivers.spark.worker.report import Report
from penstock.edge.status import Book

HALF = RestoreProgress("0_1", "counts", "the local copy is missing", None, 9, 50, 100, 1.0)


def restoring(book: Book) -> list[str]:
    return list(book.status("starting", None).restoring)


def test_restores_are_shown_while_they_run() -> None:
    book = Book()
    other = replace(HALF, task="0_0")
    for progress in (replace(HALF, done=1), other, HALF):
        book.restoring(progress)
    assert restoring(book) == [other.line(), HALF.line()]
    book.restoring(replace(HALF, finished=True))
    assert restoring(book) == [other.line()]


def test_restores_of_an_attempt_that_failed_end_with_the_batch() -> None:
    book = Book()
    book.restoring(HALF)
    book.committed(1, [])
    assert restoring(book) == []


def test_drops_are_counted_by_task_and_by_reason() -> None:
    book = Book()
    late, null = {"late for a window": 2}, {"null key in a table": 1}
    for batch, reports in enumerate(
        [[Report("0_0", dropped=late), Report("1_0")], [Report("1_0", dropped=null)]]
    ):
        book.committed(batch, reports)
    book.committed(2, [Report("0_0", dropped=null)])
    assert book.status("running", None).dropped == {"0_0": 3, "1_0": 1}
    counted = book.metrics()
    assert counted["dropped_records"] == 4
    assert counted["dropped_records: late for a window"] == 2
    assert counted["dropped_records: null key in a table"] == 2


def test_records_of_global_topics_are_dropped_by_what_fills_the_stores_not_by_the_task_that_came_first() -> (
    None
):
    book = Book()
    dropped = {"null key in a table": 3, "late for a window": 1}
    book.committed(0, [Report("0_0", dropped=dropped, global_dropped={"2_0": 3})])
    assert book.status("running", None).dropped == {"0_0": 1, "2_0": 3}
    assert book.metrics()["dropped_records"] == 4
