"""Custom windows: calendar days, an unlimited window, and invalid results of windows_for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import ProcessingError, TopologyError
from millstream.core.topology.internal import changelog_config
from millstream.testing import TopologyTestDriver
from unit.helpers import Host, sent

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3_600_000


def local_ms(*when: int) -> int:
    """Return a time in Berlin in ms since the epoch."""
    return int(datetime(*when, tzinfo=BERLIN).timestamp() * 1000)  # type: ignore[arg-type,misc]


class Days(ms.Windows):
    """Days of a time zone: 23, 24 or 25 hours."""

    def __init__(self, grace: int = 0) -> None:
        super().__init__(25 * HOUR, grace)

    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        day = datetime.fromtimestamp(timestamp / 1000, BERLIN).date()
        return [(self.midnight(day), self.midnight(day + timedelta(days=1)))]

    @staticmethod
    def midnight(day: date) -> int:
        return int(datetime.combine(day, time(), BERLIN).timestamp() * 1000)


class Grid(ms.Windows):
    """The windows of TumblingWindows or HoppingWindows as custom windows."""

    def __init__(self, like: ms.TumblingWindows | ms.HoppingWindows) -> None:
        super().__init__(like.size_ms, like.grace_ms)
        self.starts = like.starts

    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        return [(start, start + self.size_ms) for start in self.starts(timestamp)]


class Given(ms.Windows):
    """Windows that a test supplies."""

    def __init__(self, found: list[tuple[int, int]]) -> None:
        super().__init__(10, 0)
        self.found = found

    def windows_for(self, timestamp: int) -> Iterable[tuple[int, int]]:
        return self.found


def counting(windows: Any, **options: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    counts = builder.stream("in").group_by_key().windowed_by(windows, **options).count(store="w")
    counts.map_values(str).to_stream(lambda window, _: f"{window.key}@{window.start}-{window.end}").to("out")
    return builder.build()


class TestDaysOfATimeZone:
    def test_have_23_or_25_hours_when_the_clocks_change(self) -> None:
        host = Host(counting(Days()))
        spring, autumn = local_ms(2026, 3, 29, 12), local_ms(2026, 10, 25, 12)
        rows = sent(host.run("in", ("a", "x", spring), ("a", "x", autumn)))
        lengths = [int(end) - int(start) for start, end in (key[2:].split("-") for key, _, _ in rows if key)]
        assert lengths == [23 * HOUR, 25 * HOUR]

    def test_close_at_midnight(self) -> None:
        host = Host(counting(Days(grace=HOUR), emit=ms.on_window_close))
        first, last = local_ms(2026, 3, 29, 0), local_ms(2026, 3, 29, 23, 59)
        assert (
            sent(
                host.run("in", ("a", "x", last), ("b", "x", local_ms(2026, 3, 30, 0, 59)), ("a", "x", first))
            )
            == []
        )
        host.restart()
        end = local_ms(2026, 3, 30)
        closed = sent(host.run("in", ("b", "x", end + HOUR)))
        assert closed == [(f"a@{first}-{end}", "2", last)]
        assert host.run("in", ("a", "late", last)).metrics.dropped == {"late for a window": 1}

    def test_are_read_from_the_store_with_their_ends(self) -> None:
        with TopologyTestDriver(counting(Days())) as driver:
            driver.pipe("in", "a", "x", local_ms(2026, 3, 29, 12))
            assert [*driver.store("w").all()] == [
                (
                    ms.Windowed("a", local_ms(2026, 3, 29), local_ms(2026, 3, 30)),
                    (1, local_ms(2026, 3, 29, 12)),
                )
            ]

    def test_keep_their_ends_when_they_are_serialized(self) -> None:
        serde = ms.serdes.time_windowed(ms.serdes.string, Days())
        window = ms.Windowed("a", local_ms(2026, 3, 29), local_ms(2026, 3, 30))
        assert serde.deserialize(serde.serialize(window)) == window

    def test_are_suppressed_until_they_close(self) -> None:
        builder = ms.StreamsBuilder()
        days = builder.stream("in").group_by_key().windowed_by(Days(grace=HOUR)).count(store="w")
        days.suppress(ms.Suppressed.until_window_closes(), store="held").to_stream().to("out")
        with TopologyTestDriver(builder.build()) as driver:
            for timestamp in (local_ms(2026, 3, 29, 3), local_ms(2026, 3, 29, 23), local_ms(2026, 3, 30, 1)):
                driver.pipe("in", "a", "x", timestamp)
            assert [(r.key.start, r.value) for r in driver.read("out")] == [(local_ms(2026, 3, 29), 2)]

    def test_close_when_the_input_is_idle(self) -> None:
        emit = ms.EmitStrategy.on_window_close(close_idle_after=HOUR)
        with TopologyTestDriver(counting(Days(), emit=emit)) as driver:
            driver.pipe("in", "a", "x", local_ms(2026, 3, 29, 22))
            driver.advance_wall_clock(2 * HOUR - 1)
            assert driver.read("out") == []
            driver.advance_wall_clock(1)
            assert [record.value for record in driver.read("out")] == ["1"]

    def test_can_be_used_by_a_cogroup(self) -> None:
        builder = ms.StreamsBuilder()
        left, right = (builder.stream(topic).group_by_key() for topic in ("left", "right"))
        both = left.cogroup(lambda k, v, so_far: so_far + v).cogroup(right, lambda k, v, so_far: v + so_far)
        both.windowed_by(Days(), late=lambda late: late.to("late")).aggregate(str, store="w").to_stream().to(
            "out"
        )
        with TopologyTestDriver(builder.build()) as driver:
            driver.pipe("left", "a", "1", local_ms(2026, 3, 29, 12))
            driver.pipe("right", "a", "2", local_ms(2026, 3, 29, 11))
            driver.pipe("right", "a", "3", local_ms(2026, 3, 30, 0))
            driver.pipe("right", "a", "4", local_ms(2026, 3, 29, 23))
            assert [record.value for record in driver.read("out")] == ["1", "21", "3"]
            assert [record.value for record in driver.read("late")] == ["4"]


@pytest.mark.parametrize(
    "emit",
    [
        ms.on_window_update,
        ms.on_window_close,
        ms.EmitStrategy.on_window_close(every=1000),
        ms.EmitStrategy.on_window_close(expired="lost"),
        ms.EmitStrategy.on_window_close(close_idle_after=5),
    ],
    ids=["update", "close", "every", "lost", "idle"],
)
@pytest.mark.parametrize(
    "like", [ms.TumblingWindows(50_000, grace=20_000), ms.HoppingWindows(50_000, 20_000, grace=10_000)]
)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 400), st.integers(0, 2_000), st.booleans()),
        max_size=30,
    )
)
def test_custom_windows_on_a_grid_have_the_same_results_as_built_in_windows(
    like: Any, emit: ms.EmitStrategy, rows: list[tuple[str, int, int, bool]]
) -> None:
    def results(windows: Any) -> list[Any]:
        host = Host(counting(windows, emit=emit, late=lambda late: late.to("late")))
        found: list[Any] = []
        for key, seconds, wait, restarts in rows:
            if restarts:
                host.restart()
            host.feed("in", [(key, "x", seconds * 1000)])
            for outcome in (host.step(host.now_ms + wait), host.step(host.now_ms + wait)):
                found += [sent(outcome), sent(outcome, "late"), outcome.metrics.dropped]
        return [*found, [*host.store("w").all()]]

    assert results(Grid(like)) == results(like)


class TestAnUnlimitedWindow:
    def test_holds_all_records_from_its_start_on(self) -> None:
        host = Host(counting(ms.UnlimitedWindows(10)))
        outcome = host.run("in", ("a", "x", 9), ("a", "x", 10), ("a", "x", 1 << 50), ("a", "x", 11))
        assert sent(outcome) == [
            (f"a@10-{(1 << 63) - 1}", "1", 10),
            (f"a@10-{(1 << 63) - 1}", "2", 1 << 50),
            (f"a@10-{(1 << 63) - 1}", "3", 1 << 50),
        ]
        assert outcome.metrics.dropped == {"outside of all windows": 1}
        assert changelog_config(host.sub.stores["w"])["retention.ms"] == str((1 << 63) - 1)

    def test_never_closes(self) -> None:
        with pytest.raises(TopologyError, match="an unlimited window never closes"):
            counting(ms.UnlimitedWindows(), emit=ms.on_window_close)
        counts = ms.StreamsBuilder().stream("in").group_by_key().windowed_by(ms.UnlimitedWindows()).count()
        with pytest.raises(TopologyError, match="aggregates by an unlimited window, which never closes"):
            counts.suppress(ms.Suppressed.until_window_closes())


@pytest.mark.parametrize("found", [[(0, 5)], [(6, 12)], [(-1, 6)], [(0, 11)]])
def test_an_invalid_window_of_windows_for_is_rejected(found: list[tuple[int, int]]) -> None:
    with pytest.raises(
        ProcessingError, match=r"Given.windows_for\(5\) returned the window from .* passed to its constructor"
    ):
        Host(counting(Given(found))).run("in", ("a", "x", 5))


def test_records_in_no_window_are_dropped_and_counted() -> None:
    assert Host(counting(Given([]))).run("in", ("a", "x", 5)).metrics.dropped == {"outside of all windows": 1}


class Tens(ms.Windows):
    """Windows of 10 ms; windows_for fails at the timestamp 66."""

    def __init__(self) -> None:
        super().__init__(10, 0)

    def windows_for(self, timestamp: int) -> list[tuple[int, int]]:
        if timestamp == 66:
            raise ValueError("no window is known")
        start = timestamp - timestamp % 10
        return [(start, start + 10)]


class TestKeyRanges:
    """The keys "be" and "to" are in different ranges."""

    @pytest.mark.parametrize(("parallelism", "ranges"), [(1, 1), (2, 16)])
    def test_a_window_expires_when_a_record_of_another_range_has_a_later_window(
        self, parallelism: int, ranges: int
    ) -> None:
        with TopologyTestDriver(counting(Tens()), parallelism=parallelism) as driver:

            def stored() -> set[tuple[str, int, int]]:
                stores = [driver.store("w", partition=number) for number in range(ranges)]
                return {(*window,) for store in stores for window, _ in store.all()}

            driver.pipe("in", "be", "x", 5)
            driver.pipe("in", "to", "x", 9)
            assert stored() == {("be", 0, 10), ("to", 0, 10)}
            driver.pipe("in", "to", "x", 14)
            assert stored() == {("to", 10, 20)}

    @pytest.mark.parametrize("parallelism", [1, 2])
    def test_an_error_in_windows_for_fails_its_record_once(self, parallelism: int) -> None:
        skip = ms.ErrorPolicies(process="skip")
        with TopologyTestDriver(counting(Tens()), parallelism=parallelism, policies=skip) as driver:
            driver.pipe("in", "to", "x", 66)
            driver.pipe("in", "be", "x", 67)
            assert driver.dropped() == {"process error": 1}
            assert [record.key for record in driver.read("out")] == ["be@60-70"]


def test_a_window_that_windows_for_no_longer_returns_is_an_error() -> None:
    with pytest.raises(TopologyError, match="does not return the window that begins there"):
        Given([(0, 9)]).end_of(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Days(grace=-1), "the grace of windows must be at least 0 ms, not -1"),
        (lambda: ms.UnlimitedWindows(-1), "an unlimited window must begin at 0 or later, not at -1"),
    ],
)
def test_invalid_windows_are_rejected(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()
