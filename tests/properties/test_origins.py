"""In whichever order records finish, no offset is committed past an unfinished record, and in the end all are committed."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.model.ids import TopicPartition
from millstream.core.runtime.origins import (
    Begun,
    begun_after,
    begun_from_json,
    begun_to_json,
    committable,
    first_offset,
    oldest_by_topic,
)

from .engines import Visits

SOURCE_TOPICS = {"again": {"in"}}


@dataclass
class Application:
    """A model of an application that reads records and finishes them in any order."""

    batch: int = 0
    read: int = 0
    begun: list[list[object]] = field(default_factory=list)
    unfinished: list[tuple[int, int]] = field(default_factory=list)
    """The offsets of each record before and after the shuffle."""

    def oldest(self) -> dict[str, int]:
        low = min((after_shuffle for _, after_shuffle in self.unfinished), default=None)
        return {} if low is None else oldest_by_topic({TopicPartition("again", 0): low}, SOURCE_TOPICS)

    def step(self, count: int, ending: list[int]) -> None:
        begun = begun_from_json(self.begun)  # type: ignore[arg-type]
        self.batch += 1
        self.begun = begun_to_json(
            begun_after(begun, Begun(self.batch, {"in": {0: self.read}}), self.oldest())
        )  # type: ignore[assignment]
        after_shuffle = first_offset(self.batch, 0)
        self.unfinished += [(self.read + n, after_shuffle + n) for n in range(count)]
        self.read += count
        for number in ending:
            if self.unfinished:
                self.unfinished.pop(number % len(self.unfinished))

    def committable(self) -> int:
        begun = begun_from_json(self.begun)  # type: ignore[arg-type]
        return committable({"in": {0: self.read}}, begun, self.oldest())["in"][0]


STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.lists(st.integers(0, 200), max_size=6)), min_size=1, max_size=120
)


def test_no_offset_is_committed_past_an_unfinished_record() -> None:
    visits = Visits()

    @settings(max_examples=150)
    @given(STEPS)
    def holds(steps: list[tuple[int, list[int]]]) -> None:
        app, before = Application(), 0
        for count, ending in steps:
            app.step(count, ending)
            now = app.committable()
            assert before <= now <= min([app.read, *(offset for offset, _ in app.unfinished)])
            before = now
            visits["held back"] += now < app.read
            visits["finished"] += now == app.read
        app.step(0, [0] * len(app.unfinished))
        assert app.committable() == app.read

    holds()
    visits.demand(**{"held back": 10, "finished": 10})
