"""A processor that works in its own threads and acknowledges records in the order in which their work ends.

Durations and answers are those of the calls in ``enrichment``, but the work never fails.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import millstream as ms

from .enrichment import answer, lasts_ms
from .journal import Journal

CHECK_INTERVAL_MS = 20

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
        self._unacknowledged: dict[ms.RecordMetadata, ms.Record[str, str]] = {}

    def init(self, context: ms.ProcessorContext[str, str]) -> None:
        """Check periodically which work has ended."""
        super().init(context)
        context.schedule(CHECK_INTERVAL_MS, ms.wall_clock, self._forward_finished)

    def process(self, record: ms.Record[str, str]) -> None:
        """Start the work, unless an earlier processor in this process has started it."""
        metadata = self.context.record_metadata
        assert metadata is not None
        self._unacknowledged[metadata] = record
        if metadata not in _WORK:
            _WORK[metadata] = _pool().submit(_do_work, self._journal, int(record.value))

    def _forward_finished(self, now_ms: int) -> None:
        ended = [metadata for metadata in self._unacknowledged if _WORK[metadata].done()]
        for metadata in sorted(
            ended, key=lambda metadata: lasts_ms(metadata.offset)
        ):  # not in the order of offsets
            record = self._unacknowledged.pop(metadata)
            self.context.forward(record.with_value(_WORK.pop(metadata).result()))
            self.context.acknowledge(metadata)


def _do_work(journal: Journal, number: int) -> str:
    journal.begin(number)
    time.sleep(lasts_ms(number) / 1000)  # the work
    journal.end(number)
    return answer(number)


def working(source: str, sink: str, journal: Journal, **options: Any) -> ms.Topology:
    """Return a topology with this processor, whose node has these options."""
    builder = ms.StreamsBuilder()
    answers = builder.stream(source).process(partial(Working, journal), acknowledges=True, **options)
    answers.to(sink)
    return builder.build()
