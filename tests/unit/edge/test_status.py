"""Status: what is being restored is shown until it is done, or the batch is."""

from __future__ import annotations

from dataclasses import replace

from penstock.drivers.spark.worker.progress import RestoreProgress
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
