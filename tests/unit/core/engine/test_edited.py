"""A task continues after operators were inserted in its topology, although its state has no explicit names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.engine.step_outcome import Snapshot
from millstream.drivers.spark.executor.snapshots import snapshot_from_json, snapshot_to_json
from unit.helpers import Host, Row, sent

Stream = ms.KStream[Any, Any]
Edit = Callable[[Stream], Stream]
Define = Callable[[ms.StreamsBuilder, Edit], ms.KStream[Any, Any]]

TUMBLING = ms.TumblingWindows(10, grace=5)
ON_WINDOW_CLOSE = ms.EmitStrategy.on_window_close(every=30)
NEAR = ms.JoinWindows(10, 10, 5)


class Tens(ms.Windows):
    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        start = timestamp - timestamp % 10
        return [(start, start + 10)]


class Ticking(ms.Processor[Any, Any, Any, Any]):
    """Forwards a record at each punctuation by wall-clock time and by stream time."""

    def init(self, context: ms.ProcessorContext[Any, Any]) -> None:
        super().init(context)
        for kind in (ms.wall_clock, ms.stream_time):
            context.schedule(30, kind, lambda now, kind=kind: self.tick(now, kind.value))

    def tick(self, now: int, kind: str) -> None:
        self.context.forward(ms.Record(kind, str(now), now))

    def process(self, record: ms.Record[Any, Any]) -> None: ...


def joined(left: str, right: str | None) -> str:
    return f"{left} and {right}"


def plain(b: ms.StreamsBuilder, edit: Edit) -> Stream:
    return edit(b.stream("in")).group_by_key().count().to_stream()


def windows(kind: Any) -> Define:
    def define(b: ms.StreamsBuilder, edit: Edit) -> Stream:
        return edit(b.stream("in")).group_by_key().windowed_by(kind, emit=ON_WINDOW_CLOSE).count().to_stream()

    return define


def suppressed(b: ms.StreamsBuilder, edit: Edit) -> Stream:
    counts = edit(b.stream("in")).group_by_key().windowed_by(TUMBLING).count()
    return counts.suppress(ms.Suppressed.until_window_closes()).to_stream()


def cogrouped(kind: Any) -> Define:
    def define(b: ms.StreamsBuilder, edit: Edit) -> Stream:
        first, second = (edit(b.stream(topic)).group_by_key() for topic in ("in", "other"))
        both = first.cogroup(lambda k, v, a: a + v).cogroup(second, lambda k, v, a: a + v.upper())
        windowed: Any = both.windowed_by(kind)
        stream: Stream = windowed.aggregate(str).to_stream()
        return stream

    return define


def join(b: ms.StreamsBuilder, edit: Edit) -> Stream:
    return edit(b.stream("in")).left_join(edit(b.stream("other")), joined, windows=NEAR)


def waiting_join(b: ms.StreamsBuilder, edit: Edit) -> Stream:
    table = b.table("other", store=ms.stores.options("rows", history_retention=100))
    return edit(b.stream("in")).left_join(table, joined, grace=10)


def processor(b: ms.StreamsBuilder, edit: Edit) -> Stream:
    return edit(b.stream("in")).process(Ticking)


PROGRAMS: dict[str, Define] = {
    "count": plain,
    "windows": windows(TUMBLING),
    "windows of the user's own": windows(Tens(10, grace=5)),
    "sliding windows": windows(ms.SlidingWindows(10, grace=5)),
    "sessions": windows(ms.SessionWindows(10, grace=5)),
    "suppress": suppressed,
    "cogroup": cogrouped(TUMBLING),
    "cogroup by windows of the user's own": cogrouped(Tens(10, grace=5)),
    "join of streams": join,
    "join that waits": waiting_join,
    "processor": processor,
}

BEFORE: list[tuple[str, Row]] = [
    ("in", ("a", "x", 1)),
    ("other", ("a", "p", 2)),
    ("in", ("b", "y", 27)),
    ("in", ("c", "z", 31)),
]
AFTER: list[tuple[str, Row]] = [
    ("in", ("a", "late", 3)),
    ("other", ("b", "q", 5)),
    ("in", ("a", "w", 40)),
    ("other", ("c", "r", 41)),
    ("in", ("b", "v", 75)),
    ("in", ("c", "u", 110)),
    ("in", ("c", "t", 150)),
]


def unedited(stream: Stream) -> Stream:
    return stream


def edited(stream: Stream) -> Stream:
    seen: list[object] = []
    return stream.filter(lambda k, v: v is not None).peek(lambda k, v: seen.append(v)).map_values(str)


def built(define: Define, edit: Edit, **options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder(**options)
    define(builder, edit).map_values(str).map(lambda k, v: (str(k), v)).to("out")
    return builder.build()


def through_json(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot as another process receives it."""
    restored = snapshot_from_json(json.loads(json.dumps(snapshot_to_json(snapshot))))
    assert restored is not None
    return restored


def run(before: ms.Topology, after: ms.Topology) -> list[Any]:
    """Return the results of a program, followed by those of the program that replaces it."""
    host = Host(before)
    results: list[Any] = []

    def feed(rows: list[tuple[str, Row]]) -> None:
        for topic, row in rows:
            if topic in host.sub.source_topics:
                host.feed(topic, [row])
                results.extend(sent(host.step(host.now_ms + 20)))

    feed(BEFORE)
    host.sub = after.plan("app").subtopologies[0]
    host.restart(through_json)
    feed(AFTER)
    return results


@pytest.mark.parametrize("define", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_an_edited_program_with_stable_names_continues(define: Define) -> None:
    continued = run(built(define, unedited), built(define, unedited))
    assert len(continued) > 2
    assert run(built(define, unedited), built(define, edited)) == continued
    assert run(built(define, edited), built(define, unedited)) == continued


def test_an_edited_program_with_numbered_names_loses_its_state() -> None:
    continued, restarted = (
        run(built(plain, unedited, names="numbered"), built(plain, edit, names="numbered"))
        for edit in (unedited, edited)
    )
    assert [key + count for key, count, _ in continued] == ["a1", "b1", "c1", "a2", "a3", "b2", "c2", "c3"]
    assert [key + count for key, count, _ in restarted] == ["a1", "b1", "c1", "a1", "a2", "b1", "c1", "c2"]


@pytest.mark.parametrize("names", ["stable", "numbered"])
def test_stream_time_is_found_again_by_the_explicit_name_of_a_store(names: Any) -> None:
    def define(b: ms.StreamsBuilder, edit: Edit) -> Stream:
        windowed = edit(b.stream("in")).group_by_key().windowed_by(ms.TumblingWindows(10, grace=0))
        return windowed.count(store="counts").to_stream()

    host = Host(built(define, unedited, names=names))
    host.run("in", ("a", "x", 100))
    host.sub = built(define, edited, names=names).plan("app").subtopologies[0]
    host.restart(through_json)
    outcome = host.run("in", ("a", "late", 50))
    assert sent(outcome) == []
    assert outcome.metrics.dropped == {"late for a window": 1}


def test_stream_time_moves_to_the_new_name_of_a_renamed_store() -> None:
    def define(store: str) -> ms.Topology:
        return built(
            lambda b, _: b.stream("in").left_join(b.stream("other"), joined, windows=NEAR, store=store),
            unedited,
        )

    host = Host(define("old"))
    host.run("in", ("a", "x", 100))
    stored = json.loads(json.dumps(snapshot_to_json(host.task.snapshot())))
    names = {f"old-{part}": f"new-{part}" for part in ("left", "right", "unmatched")}
    renamed = snapshot_from_json(stored, names)
    assert renamed is not None
    assert dict(renamed.operators) == {"new-left": {"time": 100, "first": 100}}
