"""The timeline, whose entries are taken when they are due, compared with a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.engine import timeline
from millstream.core.engine.punctuate import NEVER
from millstream.core.engine.timeline import Timeline, time_of, timed_key
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store

SPEC = ms.stores.key_value("times", ms.serdes.bytes, ms.serdes.string)
TIMED_KEYS = st.builds(timed_key, st.integers(0, 20), st.binary(max_size=2))
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "remove", "take", "commit"]), TIMED_KEYS), max_size=40
)


@given(steps=STEPS, page=st.integers(1, 4))
def test_a_timeline_behaves_like_a_sorted_list(steps: list[tuple[str, bytes]], page: int) -> None:
    timeline._PAGE, before = page, timeline._PAGE
    try:
        run(steps)
    finally:
        timeline._PAGE = before


def run(steps: list[tuple[str, bytes]]) -> None:
    committed, model = MemoryStores(), dict[bytes, str]()
    store = open_store(SPEC, committed)
    timeline_of_store = Timeline(store)
    for number, (action, key) in enumerate(steps):
        if action == "put":
            timeline_of_store.put(key, str(number), known=key in model)
            model[key] = str(number)
        elif action == "remove":
            timeline_of_store.remove(key)
            model.pop(key, None)
        elif action == "take" and model:
            assert timeline_of_store.next < NEVER
            first = min(model)
            assert timeline_of_store.take() == (first, model.pop(first))
        elif action == "commit":
            committed.apply(store.drain().changes, ())
            store = open_store(SPEC, committed)
            timeline_of_store = Timeline(store)
        assert timeline_of_store.get(key) == model.get(key)
        if number % 3:
            assert timeline_of_store.next == min(map(time_of, model), default=NEVER)
    assert dict(store.all()) == model


def test_all_entries_of_one_time_are_read_together() -> None:
    store = open_store(SPEC, MemoryStores())
    for number in range(timeline._PAGE + 500):
        store.put(timed_key(7, b"%05d" % number), "x")
    timeline_of_store = Timeline(store)
    assert timeline_of_store.next == 7
    timeline_of_store.put(timed_key(7, b"00000a"), "y", known=False)
    assert [timeline_of_store.take()[0][8:] for _ in range(2) if timeline_of_store.next == 7] == [
        b"00000",
        b"00000a",
    ]
