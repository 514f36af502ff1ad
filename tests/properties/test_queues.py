"""Choosing between queues in runs has the order of choosing a queue per record."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.engine.records.queue import Chunk, PartitionGroup, QueueId
from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records

from .engines import Visits

IDS = [
    QueueId(TopicPartition(*partition), lane)
    for partition in (("a", 0), ("a", 1), ("b", 0))
    for lane in ("", "x-0")
]
CHUNKS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), max_size=3)


def merged_by_single_choices(queues: dict[QueueId, list[int]]) -> list[tuple[QueueId, int]]:
    """Repeatedly take the smallest head; the id of the queue breaks ties."""
    remaining = {queue: list(timestamps) for queue, timestamps in queues.items()}
    taken = []
    while heads := [(timestamps[0], queue) for queue, timestamps in remaining.items() if timestamps]:
        timestamp, queue = min(heads)
        remaining[queue].pop(0)
        taken.append((queue, timestamp))
    return taken


def test_runs_keep_the_order_of_choosing_a_queue_per_record() -> None:
    visits = Visits()

    @settings(max_examples=100)
    @given(st.dictionaries(st.sampled_from(IDS), CHUNKS, max_size=4), st.integers(1, 20))
    def runs(fed: dict[QueueId, list[list[int]]], budget: int) -> None:
        group = PartitionGroup({})
        for queue_id, chunks in fed.items():
            for timestamps in chunks:
                count = len(timestamps)
                raw = Records([None] * count, [None] * count, timestamps, list(range(count)))
                group.queue(queue_id).append(Chunk(raw, None, raw.keys, raw.values, timestamps, None), count)
        taken: list[tuple[QueueId, int]] = []
        times = dict.fromkeys(fed, -1)
        while (chosen := group.choose()) is not None:
            queue, end = chosen
            end = min(end, queue.index + budget)
            run = queue.chunks[0].timestamps[queue.index : end]
            assert run
            visits["long run"] += len(run) > 1
            taken.extend((queue.id, timestamp) for timestamp in run)
            queue.remove_before(end)
            times[queue.id] = max(times[queue.id], *run)
            assert queue.partition_time == times[queue.id]
        all_timestamps = {queue: [t for chunk in chunks for t in chunk] for queue, chunks in fed.items()}
        visits["several queues"] += sum(map(bool, all_timestamps.values())) > 1
        visits["tie"] += len({t for _, t in taken}) < len(taken)
        assert taken == merged_by_single_choices(all_timestamps)
        assert group.buffered_count() == 0

    runs()
    visits.demand(**{"long run": 20, "several queues": 10, "tie": 10})
