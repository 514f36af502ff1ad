"""How threads are assigned to tasks (KIP-408), and which nodes several of them may run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.ids import TaskId
from millstream.core.runtime.thread_counts import threads_of_tasks
from millstream.core.topology.analysis.threads_and_caches import prefix_of
from unit.helpers import Quiet

Stream = ms.KStream[Any, Any]


@pytest.mark.parametrize(
    ("per_task", "total", "concurrent", "expected"),
    [
        (1, None, 2, [1, 1, 1, 1, 1]),
        (3, None, 2, [3, 3, 3, 3, 3]),
        (4, 8, 2, [4, 4, 4, 4, 4]),
        (4, 8, 3, [3, 3, 2, 2, 2]),
        (2, 3, 2, [2, 1, 1, 1, 1]),
        (3, 8, 3, [3, 3, 2, 2, 2]),
        (5, 5, 5, [1, 1, 1, 1, 1]),
        (5, 5, 1, [5, 5, 5, 5, 5]),
        (2, 2, 5, [1, 1, 1, 1, 1]),
    ],
)
def test_tasks_that_run_at_once_share_the_limit_in_the_order_of_their_ids(
    per_task: int, total: int | None, concurrent: int, expected: list[int]
) -> None:
    tasks = [TaskId(1, 1), TaskId(0, 0), TaskId(0, 10), TaskId(1, 0), TaskId(0, 2)]
    threads = threads_of_tasks(tasks, per_task, total, at_once=concurrent)
    assert [threads[task] for task in sorted(tasks)] == expected


@pytest.mark.parametrize("per_task", range(1, 9))
@pytest.mark.parametrize("total", range(1, 25))
def test_any_tasks_that_run_at_once_keep_to_the_limit(per_task: int, total: int) -> None:
    tasks = [TaskId(0, number) for number in range(10)]
    if total < per_task:
        with pytest.raises(ms.errors.SettingsError, match=f"num_stream_threads={total} is less"):
            threads_of_tasks(tasks, per_task, total)
        return
    for concurrent in range(1, 11):
        threads = sorted(threads_of_tasks(tasks, per_task, total, at_once=concurrent).values())
        assert 1 <= threads[0] <= threads[-1] <= per_task
        assert sum(threads[-concurrent:]) <= max(total, concurrent)
        assert sum(threads[-concurrent:]) == max(
            min(total, per_task * concurrent), concurrent
        )  # and use the whole limit


def is_true(value: Any) -> bool:
    return bool(value)


def threaded_nodes(build: Callable[[Stream], object]) -> list[str] | None:
    """Return the nodes that several threads may run; the nodes at which they hand over records are in brackets."""
    builder = ms.StreamsBuilder()
    build(builder.stream("in"))
    sub = builder.build().plan("app").subtopologies[0]
    prefix = prefix_of(sub, sub.sources[0])
    if prefix is None:
        return None
    kinds = {name: type(sub.nodes[name]).__name__ for name in prefix.nodes}
    return [
        f"[{kinds[name]}]" if type(node).__name__ == "Border" else kinds[name]
        for name, node in list(prefix.nodes.items())[1:]
    ]


def with_two(
    first: Callable[[Stream], object], then: Callable[[Stream], object]
) -> Callable[[Stream], object]:
    return lambda stream: (first(stream), then(stream))


def counted(stream: Stream) -> None:
    stream.group_by_key().count()


def mapped(stream: Stream) -> None:
    stream.map_values(is_true).to("out", value=ms.serdes.json)


def branched(stream: Stream) -> None:
    branches = stream.split().branch(lambda key, value: value == "count").default()
    first, second = branches.values()
    counted(first)
    mapped(second)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (mapped, ["MapValues", "Sink"]),
        (counted, None),
        (lambda s: s.to("out"), None),
        (lambda s: s.filter(ms.col() == "a").to("out"), None),
        (lambda s: s.to(lambda key, value, context: value), ["Sink"]),
        (lambda s: s.to("out", partitioner=lambda *given: 0), ["Sink"]),
        (lambda s: s.group_by(lambda key, value: value).count(), ["SelectKey", "WithKey", "Sink"]),
        (lambda s: counted(s.flat_map_values(str.split)), ["FlatMapValues", "[Aggregate]"]),
        (lambda s: s.process(Quiet), None),
        (lambda s: mapped(s.map_values_async(is_true)), None),
        (with_two(mapped, counted), ["MapValues", "Sink", "[Aggregate]"]),
        (with_two(counted, mapped), None),
        (with_two(lambda s: s.to("raw"), mapped), ["Sink", "MapValues", "Sink"]),
        (branched, ["Branch", "Pass", "Pass", "[Aggregate]", "MapValues", "Sink"]),
    ],
)
def test_the_threaded_prefix_ends_at_nodes_with_state(
    build: Callable[[Stream], object], expected: list[str] | None
) -> None:
    assert threaded_nodes(build) == expected


def test_a_node_that_is_also_reached_from_behind_the_prefix_is_not_part_of_it() -> None:
    def build(stream: Stream) -> None:
        some = stream.filter(lambda key, value: is_true(value))
        counted(stream)
        mapped(some.merge(stream))

    assert threaded_nodes(build) == ["Filter", "[Aggregate]", "[Pass]"]
