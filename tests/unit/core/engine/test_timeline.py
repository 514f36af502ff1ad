"""The timeline of entries that are taken out when their time has come, against a sorted list."""

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
def test_it_is_a_sorted_list_of_which_the_first_is_known(steps: list[tuple[str, bytes]], page: int) -> None:
    timeline._PAGE, before = page, timeline._PAGE
    try:
        run(steps)
    finally:
        timeline._PAGE = before


def run(steps: list[tuple[str, bytes]]) -> None:
    committed, model = MemoryStores(), dict[bytes, str]()
    store = open_store(SPEC, committed)
    line = Timeline(store)
    for number, (action, key) in enumerate(steps):
        if action == "put":
            line.put(key, str(number), known=key in model)
            model[key] = str(number)
        elif action == "remove":
            line.remove(key)
            model.pop(key, None)
        elif action == "take" and model:
            assert line.next < NEVER
            first = min(model)
            assert line.take() == (first, model.pop(first))
        elif action == "commit":
            committed.apply(store.drain().changes, ())
            store = open_store(SPEC, committed)
            line = Timeline(store)
        assert line.get(key) == model.get(key)
        if number % 3:
            assert line.next == min(map(time_of, model), default=NEVER)
    assert dict(store.all()) == model


def test_all_entries_of_one_time_are_read_with_it() -> None:
    store = open_store(SPEC, MemoryStores())
    for number in range(timeline._PAGE + 500):
        store.put(timed_key(7, b"%05d" % number), "x")
    line = Timeline(store)
    assert line.next == 7
    line.put(timed_key(7, b"00000a"), "y", known=False)
    assert [line.take()[0][8:] for _ in range(2) if line.next == 7] == [b"00000", b"00000a"]
