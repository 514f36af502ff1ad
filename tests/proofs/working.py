"""A processor that does its work in threads of its own and acknowledges what has ended, in the order in which that ends.

What a call of the same number does is in ``enrichment``: it lasts as long here and has the same answer, but never fails.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import millstream as ms

from .enrichment import answer, lasts_ms
from .journal import Journal

LOOK_EVERY_MS = 20

_WORK: dict[ms.RecordMetadata, Future[str]] = {}
"""The work of all processors in this process."""


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(20)


class Working(ms.Processor[str, str, str, str]):
    """Forwards the answer to each record when its work has ended.

    Args:
        journal: Where begins and ends are written.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._taken: dict[ms.RecordMetadata, ms.Record[str, str]] = {}

    def init(self, context: ms.ProcessorContext[str, str]) -> None:
        """Check periodically what has ended."""
        super().init(context)
        context.schedule(LOOK_EVERY_MS, ms.wall_clock, self._look)

    def process(self, record: ms.Record[str, str]) -> None:
        """Start the work, unless an earlier processor in this process has started it."""
        metadata = self.context.record_metadata
        assert metadata is not None
        self._taken[metadata] = record
        if metadata not in _WORK:
            _WORK[metadata] = _pool().submit(_worked, self._journal, int(record.value))

    def _look(self, now_ms: int) -> None:
        ended = [metadata for metadata in self._taken if _WORK[metadata].done()]
        for metadata in sorted(
            ended, key=lambda metadata: lasts_ms(metadata.offset)
        ):  # in no order of offsets
            record = self._taken.pop(metadata)
            self.context.forward(record.with_value(_WORK.pop(metadata).result()))
            self.context.acknowledge(metadata)


def _worked(journal: Journal, number: int) -> str:
    journal.begin(number)
    time.sleep(lasts_ms(number) / 1000)  # the work
    journal.end(number)
    return answer(number)


def working(source: str, sink: str, journal: Journal, **options: Any) -> ms.Topology:
    """Return a topology of such a processor, with the options of its node."""
    builder = ms.StreamsBuilder()
    answers = builder.stream(source).process(partial(Working, journal), acknowledges=True, **options)
    answers.to(sink)
    return builder.build()
