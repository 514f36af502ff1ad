"""Key ranges on Spark: sixteen tasks process one partition, with the results of a single task."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.core.model.errors import ControlError, IncompatibleTopologyError, SettingsError, TopologyError
from millstream.edge.cli.commands import app as command_line

from .helpers import Apps, eventually, values_by_key
from .topologies import Tally

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BEGIN_MS, WINDOW_MS = 1_000_000, 100


def topology(source: str, counts: str, windows: str, tallies: str) -> ms.Topology:
    """Build counts, closed windows and a processor over keys that are words."""
    builder = ms.StreamsBuilder()
    words = builder.stream(source)
    words.group_by_key().count(store="counts").to_stream().to(counts, value=ms.serdes.int64)
    windowed = words.group_by_key().windowed_by(ms.TumblingWindows(WINDOW_MS, grace=0))
    closed = windowed.count(store="windows").suppress(ms.Suppressed.until_window_closes())
    closed.to_stream().to(windows, value=ms.serdes.int64)
    builder.add_state_store(ms.stores.key_value("tally", ms.serdes.string, ms.serdes.int64))
    words.process(Tally, stores=["tally"], key_local=True).to(tallies, value=ms.serdes.int64)
    return builder.build()


class Words:
    """Topics with one input partition, and the expected results."""

    def __init__(self, apps: Apps) -> None:
        self.apps = apps
        self.source = apps.topic("words", 1)
        self.sinks = [apps.topic(name, 2) for name in ("counts", "windows", "tallies")]
        self.topology = topology(self.source, *self.sinks)
        self.all: list[tuple[str, int]] = []
        self._random = random.Random(7)

    def produce(self, count: int) -> None:
        """Write records; some are out of order, and some too late for their window."""
        rows = []
        for number in range(count):
            time = BEGIN_MS + 10 * (len(self.all) + number) - self._random.choice([0, 0, 0, 35, 260])
            rows.append((f"w{self._random.randrange(40)}", time))
        self.all += rows
        self.apps.kafka.produce(self.source, [(word, "", time) for word, time in rows])

    def expected_windows(self) -> dict[tuple[str, int], int]:
        """Count the closed windows with a plain model of the whole partition."""
        windows, time = Counter[tuple[str, int]](), -1
        for word, timestamp in self.all:
            time = max(time, timestamp)
            start = timestamp - timestamp % WINDOW_MS
            if start + WINDOW_MS > time:
                windows[word, start] += 1
        return {window: count for window, count in windows.items() if window[1] + WINDOW_MS <= time}

    def processed(self) -> bool:
        """Return whether the offset after the last word is committed."""
        return self.apps.kafka.committed(self.apps.id, self.source) == {0: len(self.all)}

    def check(self, *, exactly_once: bool) -> None:
        counts, windows, tallies = (self.apps.kafka.consume(sink) for sink in self.sinks)
        expected = Counter(word for word, _ in self.all)
        for records in (counts, tallies):
            seen: dict[str, list[int]] = {}
            for record in records:
                seen.setdefault(record.key.decode(), []).append(int.from_bytes(record.value, "big"))
            if exactly_once:
                assert seen == {word: list(range(1, count + 1)) for word, count in expected.items()}
            assert {word: numbers[-1] for word, numbers in seen.items()} == expected
        closed = {
            (record.key[:-8].decode(), int.from_bytes(record.key[-8:], "big")): int.from_bytes(
                record.value, "big"
            )
            for record in windows
        }
        assert closed == self.expected_windows()


def test_sixteen_tasks_of_one_partition_have_exact_results_across_restarts(apps: Apps) -> None:
    words = Words(apps)
    for parallelism in (2, "auto", 1):  # the number of workers may change, the ranges stay
        words.produce(300)
        running = apps.run(words.topology, parallelism=parallelism, processing_guarantee="exactly_once")
        assert len(running.status().placed) == 16
    assert running.status().workers == 1
    words.check(exactly_once=True)
    assert apps.kafka.committed(apps.id, words.source) == {0: len(words.all)}


def entries(store: Callable[[str], Any]) -> dict[str, set[tuple[Any, int]]]:
    """Return keys and counts in the stores."""
    return {
        name: {(key, getattr(value, "value", value)) for key, value in store(name).all()}
        for name in ("counts", "windows", "tally")
    }


def test_state_of_undivided_tasks_is_divided_among_key_ranges(apps: Apps) -> None:
    words = Words(apps)
    with ms.testing.TopologyTestDriver(words.topology) as driver:
        for parallelism, tasks in ((1, 1), (4, 16)):
            words.produce(300)
            for word, time in words.all[-300:]:
                driver.pipe(words.source, word, "", timestamp=time)
            running = apps.start(words.topology, parallelism=parallelism)
            eventually(words.processed, "the words to be processed")
            expected_results, found = entries(driver.store), partial(entries, running.store)
            eventually(
                lambda now=found, then=expected_results: now() == then, "the stores to be those of one task"
            )
            assert len(running.status().placed) == tasks
            running.stop()
    words.check(exactly_once=False)


def test_a_topology_that_cannot_be_divided_is_refused_if_its_state_is_divided(apps: Apps) -> None:
    words = Words(apps)
    words.produce(100)
    apps.run(words.topology, parallelism=2)
    builder = ms.StreamsBuilder()
    read = builder.stream(words.source)
    read.group_by_key().count(store="counts")
    read.process(Tally, name="tally-up", stores=["tally"]).to(words.sinks[2], value=ms.serdes.int64)
    builder.add_state_store(ms.stores.key_value("tally", ms.serdes.string, ms.serdes.int64))
    with pytest.raises(IncompatibleTopologyError, match=r"16 key ranges, which cannot be merged.*'tally-up'"):
        apps.run(builder.build())


def test_the_number_of_workers_changes_while_the_application_runs(apps: Apps) -> None:
    words = Words(apps)
    words.produce(200)
    running = apps.start(words.topology, processing_guarantee="exactly_once")
    assert not running.status().ranges
    restored = []
    for workers in (4, 16, 3, 1):
        eventually(lambda: sum(running.status().lag.values()) == 0, "the words to be processed")
        restored.append(running.metrics()["restored_changes"])
        words.produce(200)
        command = ["parallelism", apps.id, str(workers), "--state-dir", str(apps.home)]
        done = CliRunner().invoke(command_line, command)
        assert (done.exit_code, done.output) == (0, f"workers per partition: {workers}\n")
        assert running.status().workers == 1 << (workers - 1).bit_length()
    eventually(lambda: sum(running.status().lag.values()) == 0, "the words to be processed")
    ranges = running.status().ranges
    assert [each.number for each in ranges.values()] == list(range(16))
    assert {tuple(each.positions.values()) for each in ranges.values()} == {(1_000,)}
    assert len({*restored[1:], running.metrics()["restored_changes"]}) == 1, (
        "only the division into ranges restores copies"
    )
    with pytest.raises(SettingsError, match="parallelism=0: it must be a whole number from 1 to 256"):
        running.parallelism(0)
    running.stop()
    with pytest.raises(ControlError, match="is stopped, so its workers cannot be changed"):
        running.parallelism(2)
    words.check(exactly_once=True)


class SlowTally(Tally):
    """Counts per key, and takes 30 milliseconds for each record while a file exists."""

    def __init__(self, slow: Path) -> None:
        self._slow = slow

    def init(self, context: ms.ProcessorContext[str, int]) -> None:
        super().init(context)
        self._seconds = 0.03 if self._slow.exists() else 0.0

    def process(self, record: ms.Record[str, str]) -> None:
        time.sleep(self._seconds)
        super().process(record)


@pytest.mark.timeout(500)  # less than a minute, unless other programs use the cores
def test_the_number_of_workers_follows_the_load(
    apps: Apps, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, tallies, slow = apps.topic("words", 1), apps.topic("tallies", 1), tmp_path / "slow"
    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.key_value("tally", ms.serdes.string, ms.serdes.int64))
    words = builder.stream(source).process(partial(SlowTally, slow), stores=["tally"], key_local=True)
    words.to(tallies, value=ms.serdes.int64)
    topology, rows = builder.build(), [(f"w{number % 97}", "", BEGIN_MS) for number in range(2_400)]
    slow.touch()
    apps.kafka.produce(source, rows)
    running = apps.start(topology, parallelism="auto", max_batch_records=200)
    assert running.status().workers == 1
    eventually(lambda: running.status().workers == 2, "a second worker", within_s=180)
    slow.unlink()
    eventually(lambda: running.status().workers == 1, "the end of the second worker", within_s=180)
    apps.kafka.produce(source, rows[:100])
    eventually(lambda: apps.kafka.committed(apps.id, source) == {0: len(rows) + 100}, "the last words")
    running.stop()
    assert "the number of workers changes from 1 to 2: the busiest worker processes for" in caplog.text
    assert "the number of workers changes from 2 to 1: with 1, the busiest worker would" in caplog.text
    with ms.testing.TopologyTestDriver(topology) as driver:
        for row in [*rows, *rows[:100]]:
            driver.pipe(source, *row)
        expected_results: dict[str | None, list[Any]] = {}
        for record in driver.read(tallies):
            expected_results.setdefault(record.key, []).append(record.value)
    assert values_by_key(apps.kafka.consume(tallies), ms.serdes.int64) == expected_results


def joined(left: str, right: str, out: str) -> ms.Topology:
    """An outer join, and closed sliding windows of its left side."""
    builder = ms.StreamsBuilder()
    clicks, views = builder.stream(left), builder.stream(right)
    within = ms.JoinWindows(before=60, after=90, grace=40)
    clicks.outer_join(views, lambda click, view: f"{click}+{view}", windows=within).to(out)
    sliding = clicks.group_by_key().windowed_by(
        ms.SlidingWindows(50, grace=40), emit=ms.EmitStrategy.on_window_close()
    )
    counts = sliding.count(store=ms.stores.options("sliding", retention=500))
    counts.to_stream(lambda window, count: window.key).map_values(lambda count: f"{count} clicks").to(out)
    return builder.build()


def test_stream_joins_and_sliding_windows_have_the_results_of_a_single_task(apps: Apps) -> None:
    left, right, out = (apps.topic(name, 1) for name in ("left", "right", "out"))
    topology, rng = joined(left, right, out), random.Random(7)
    with ms.testing.TopologyTestDriver(topology) as driver:
        time = BEGIN_MS
        for parallelism in (2, 4):
            rows: dict[str, list[tuple[str, str | None, int]]] = {left: [], right: []}
            for number in range(300):
                time += 10
                topic, key = rng.choice([left, right]), f"w{rng.randrange(40)}"
                value = None if number % 17 == 0 else f"{topic[-1]}{number}"
                rows[topic].append((key, value, time - rng.choice([0, 0, 35])))
                driver.pipe(topic, *rows[topic][-1])
            for topic in (left, right):
                apps.kafka.produce(topic, rows[topic])
            apps.run(topology, parallelism=parallelism, processing_guarantee="exactly_once")
        expected_results = Counter((each.key, each.value, each.timestamp) for each in driver.read(out))
    found = apps.kafka.consume(out)
    assert (
        Counter((each.key.decode(), each.value.decode(), each.timestamp) for each in found)
        == expected_results
    )
    assert {value.partition("+")[2] == "None" for _, value, _ in expected_results if "+" in value} == {
        True,
        False,
    }


def test_a_foreign_key_join_has_the_results_of_a_single_task(apps: Apps) -> None:
    orders, products, out = (apps.topic(name, 1) for name in ("orders", "products", "out"))
    builder = ms.StreamsBuilder()
    bought = builder.table(orders).left_join(
        builder.table(products), lambda order, product: f"{order} {product}", on=lambda order: order[:2]
    )
    bought.to_stream().to(out)
    topology, rng = builder.build(), random.Random(7)
    with ms.testing.TopologyTestDriver(topology) as driver:
        for parallelism in (2, 4):
            for topic, keys in ((products, "p"), (orders, "o")):
                rows = [
                    (f"{keys}{rng.randrange(9)}", f"p{rng.randrange(9)}-{number}", BEGIN_MS + number)
                    for number in range(100)
                ]
                apps.kafka.produce(topic, rows)
                for row in rows:
                    driver.pipe(topic, *row)
            apps.run(topology, parallelism=parallelism)
        expected_results = {each.key: each.value for each in driver.read(out)}
    assert {each.key.decode(): each.value.decode() for each in apps.kafka.consume(out)} == expected_results


def test_an_interrupted_division_into_key_ranges_is_completed(apps: Apps) -> None:
    words = Words(apps)
    words.produce(200)
    apps.run(words.topology, shuffle_partitions=2)
    apps.run(words.topology, shuffle_partitions=2, parallelism=4)
    checkpoint = apps.home / apps.id / "checkpoint"
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    assert '"divided"' in (checkpoint / f"offsets/{last}").read_text()
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    apps.run(words.topology)
    words.produce(100)
    apps.run(words.topology, shuffle_partitions=2, parallelism=4)
    words.check(exactly_once=True)


def test_state_that_cannot_be_divided_is_left_unchanged(apps: Apps) -> None:
    left, right, out = (apps.topic(name, 1) for name in ("left", "right", "out"))
    apps.kafka.produce(left, [("k", "one", BEGIN_MS)])
    topology = joined(left, right, out)
    apps.run(topology)
    with pytest.raises(
        IncompatibleTopologyError, match=r"cannot be divided .* the stores of node .* \(StreamJoin"
    ):
        apps.run(topology, parallelism=4)
    running = apps.start(topology)
    with pytest.raises(IncompatibleTopologyError, match="cannot be divided"):
        running.parallelism(4)
    running.stop()
    apps.kafka.produce(right, [("k", "other", BEGIN_MS + 1)])
    apps.run(topology)
    assert b"one+other" in [record.value for record in apps.kafka.consume(out)]


def test_a_topology_that_cannot_be_divided_is_refused_when_the_application_is_created(apps: Apps) -> None:
    builder = ms.StreamsBuilder()
    builder.add_state_store(ms.stores.key_value("tally", ms.serdes.string, ms.serdes.int64))
    builder.stream("words").process(Tally, stores=["tally"], name="tally-up").to("out", value=ms.serdes.int64)
    with pytest.raises(TopologyError, match=r"'tally-up' \(Process\) is a processor without key_local"):
        apps.application(builder.build(), parallelism=4)
