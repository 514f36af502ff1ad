"""Interactive queries: answers are committed state, whoever asks, while the application runs and after it has stopped."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

import millstream as ms
from millstream.core.model.errors import ControlError, StoreError
from millstream.edge.web.page import address_of
from millstream.testing import EmbeddedKafka
from millstream.testing.crash.app import Job
from millstream.testing.crash.processes import CrashedProgram, kill_one

from .helpers import Apps, eventually

pytestmark = [pytest.mark.broker, pytest.mark.spark]

NOW = 1_700_000_000_000
WORDS = ["tea", "milk", "tea", "salt", "tea", "milk", "rice"]


def topology(source: str) -> ms.Topology:
    """Counts by key, by key and minute, and by session."""
    builder = ms.StreamsBuilder()
    grouped = builder.stream(source, key=ms.serdes.string, value=ms.serdes.string).group_by_key()
    grouped.count(store="counts")
    by_minute, visits = (ms.stores.options(name, retention=3_600_000) for name in ("by-minute", "visits"))
    grouped.windowed_by(ms.TumblingWindows(60_000, grace=0)).count(store=by_minute)
    grouped.windowed_by(ms.SessionWindows(5_000, grace=0)).count(store=visits)
    return builder.build()


@pytest.fixture
def source(apps: Apps) -> str:
    topic = apps.topic("in", 3)
    apps.kafka.produce(topic, [(word, "x", NOW + 10_000 * n) for n, word in enumerate(WORDS)])
    return topic


def all_read(running: ms.RunningApplication, count: int) -> None:
    eventually(lambda: running.metrics()["read_records"] >= count, "the records to be read")


@pytest.mark.parametrize("engine", ["lmdb", "rocksdb", "memory"])
def test_every_kind_of_store_answers_from_all_its_tasks(apps: Apps, source: str, engine: str) -> None:
    running = apps.start(topology(source), store_engine=engine)
    all_read(running, len(WORDS))
    counts, minutes, visits = (running.store(name) for name in ("counts", "by-minute", "visits"))
    assert counts.all() == sorted(Counter(WORDS).items())
    assert counts.reverse_all(limit=2) == [("tea", 3), ("salt", 1)]
    assert counts.range("milk", "salt") == [("milk", 2), ("rice", 1), ("salt", 1)]
    assert counts.prefix_scan("t") == [("tea", 3)]
    assert (counts.get("tea"), counts.get("coffee")) == (3, None)
    assert engine == "rocksdb" or counts.approximate_count() == 4  # RocksDB estimates it
    assert running.store("counts", timestamps=True).get("milk") == (2, NOW + 50_000)
    start = NOW - NOW % 60_000
    assert sum(count for _, count in minutes.fetch("tea", start, start + 120_000)) == 3
    assert minutes.fetch("tea", start) == 1 + (start + 60_000 > NOW + 20_000)
    assert sum(count for _, count in minutes.fetch_all(0, NOW + 120_000)) == len(WORDS)
    assert [(window.start, count) for window, count in visits.fetch("rice")] == [(NOW + 60_000, 1)]
    assert len(visits.all()) == len(WORDS)
    assert visits.fetch_session("tea", NOW, NOW) == 1
    answer = counts.answer("get", "tea")
    assert (answer.value, answer.lag, sum(answer.offsets[source].values())) == (3, 0, len(WORDS))
    assert running.stores() == {"by-minute": "window", "counts": "key-value", "visits": "session"}


@pytest.mark.parametrize("engine", ["lmdb", "rocksdb", "memory"])
def test_a_versioned_store_answers_as_of_a_time(apps: Apps, engine: str) -> None:
    prices = apps.topic("prices", 2)
    apps.kafka.produce(prices, [("tea", "1", NOW), ("tea", "2", NOW + 1_000), ("milk", "3", NOW)])
    builder = ms.StreamsBuilder()
    versions = ms.stores.options("versions", history_retention=120_000, engine=engine)
    builder.table(prices, key=ms.serdes.string, value=ms.serdes.string, store=versions)
    running = apps.start(builder.build())
    all_read(running, 3)
    store = running.store("versions")
    assert (store.get("tea").value, store.get("tea", NOW + 500).value) == ("2", "1")
    assert store.get("tea", NOW - 1) is None
    assert store.get("milk").timestamp == NOW


def test_what_cannot_be_answered_is_explained(apps: Apps, source: str) -> None:
    running = apps.start(topology(source))
    all_read(running, len(WORDS))
    with pytest.raises(
        StoreError, match="no store 'prices'; its stores are: 'by-minute', 'counts', 'visits'"
    ):
        running.store("prices").get("tea")
    with pytest.raises(StoreError, match="has no method 'fetch'; a store of the kind 'key-value' has get"):
        running.store("counts").fetch("tea", 0)
    with pytest.raises(StoreError, match=r"get\(\) of store 'counts': .*int"):
        running.store("counts").get(7)
    running.pause()
    apps.kafka.produce(source, [("tea", "x", NOW)] * 5)
    behind = running.store("counts", max_lag=4)
    eventually(lambda: _is_refused(behind), "the lag to be seen")
    assert running.store("counts", max_lag=5).get("tea") == 3


def _is_refused(store: ms.StoreReader) -> bool:
    try:
        store.get("tea")
    except StoreError as error:
        return "5 records behind its topics, and at most 4 were allowed" in str(error)
    return False


def test_another_process_a_shell_and_a_browser_get_the_same(apps: Apps, source: str) -> None:
    running = apps.start(topology(source), page_port=0)
    all_read(running, len(WORDS))
    program = (
        "import sys, millstream as ms\n"
        "shop = ms.connect(sys.argv[1], sys.argv[2])\n"
        "print(shop.stores(), shop.status()['state'], shop.store('counts').all(), shop.store('visits').fetch('rice'))"
    )
    given = [apps.id, str(apps.home)]
    shown = subprocess.run(
        [sys.executable, "-c", program, *given], capture_output=True, text=True, check=True
    )
    visit = ms.Windowed("rice", NOW + 60_000, NOW + 60_000)
    assert shown.stdout.strip() == (
        f"{dict(running.stores())} running {sorted(Counter(WORDS).items())} {[(visit, 1)]}"
    )

    def shell(*arguments: str) -> str:
        command = [
            sys.executable,
            "-m",
            "millstream",
            "store",
            apps.id,
            *arguments,
            "--state-dir",
            str(apps.home),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert shell() == "by-minute  window\ncounts  key-value\nvisits  session\n"
    assert shell("counts", "range", "milk", "rice") == "milk  2\nrice  1\n"
    assert shell("counts", "get", "coffee") == "null\n"
    told = json.loads(shell("visits", "fetch", "rice", "--json"))
    assert told["value"] == [[{"key": "rice", "start": NOW + 60_000, "end": NOW + 60_000}, 1]]
    assert sum(told["offsets"][source].values()) == len(WORDS)

    address, _, token = address_of(apps.home / apps.id, apps.id).partition("/#")
    question = {"store": "counts", "method": "get", "arguments": ["tea"]}
    assert _posted(f"{address}/api/store", question, token)["value"] == 3
    with pytest.raises(urllib.error.HTTPError, match="401"):
        _posted(f"{address}/api/store", question, "wrong")


def _posted(url: str, body: object, token: str) -> dict[str, int]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, int] = json.loads(answer.read())
    return found


@pytest.mark.parametrize("engine", ["lmdb", "rocksdb", "memory"])
def test_an_answer_is_the_state_at_its_offsets_and_never_goes_back(apps: Apps, engine: str) -> None:
    """One key in one partition: its count is the offset, at every moment, also across a restart."""
    source = apps.topic("in", 1)
    builder = ms.StreamsBuilder()
    counted = builder.stream(source, key=ms.serdes.string).group_by_key().count(store="counts")
    counted.to_stream().to(apps.topic("out", 1))
    answers: list[int] = []
    producing = threading.Event()

    def produce() -> None:
        while not producing.is_set():
            apps.kafka.produce(source, [("k", b"x")] * 500)

    writer = threading.Thread(target=produce)
    writer.start()
    try:
        for _ in range(2):
            running = apps.start(
                builder.build(),
                processing_guarantee="exactly_once",
                max_batch_records=1_000,
                store_engine=engine,
            )
            answers += asked(running, until=running.status().batch + 12)
            running.stop()
    finally:
        producing.set()
        writer.join()
    assert answers == sorted(answers)
    assert len(set(answers)) > 10


def asked(running: ms.RunningApplication, until: int) -> list[int]:
    """Ask until a micro-batch is committed; each answer has to be the state at its offsets."""
    found, store = list[int](), running.store("counts")
    deadline = time.monotonic() + 120
    while running.status().batch < until:
        assert time.monotonic() < deadline
        answer = store.answer("get", "k")
        offset = next((offset for of in answer.offsets.values() for offset in of.values()), 0)
        assert (answer.value or 0) == offset
        found.append(offset)
    return found


def priced(apps: Apps, engine: str) -> tuple[ms.Topology, str, str]:
    """Orders joined with a global table of prices; return the topology and the topics of orders and prices."""
    orders, prices = apps.topic("orders", 2), apps.topic("prices", 1)
    builder = ms.StreamsBuilder()
    table = builder.global_table(prices, store=ms.stores.options("prices", engine=engine))
    joined = builder.stream(orders).join(
        table, lambda key, order: order, lambda order, price: f"{order} {price}"
    )
    joined.to(apps.topic("priced", 2))
    return builder.build(), orders, prices


@pytest.mark.parametrize("engine", ["lmdb", "rocksdb"])
def test_a_global_store_answers_at_its_offsets_and_never_goes_back(apps: Apps, engine: str) -> None:
    """The value of the price of tea is its offset, so each answer shows which records it includes."""
    topology, orders, prices = priced(apps, engine)
    answers: list[int] = []
    for _ in range(2):
        running = apps.start(topology)
        store = running.store("prices")
        for _ in range(8):
            offset = sum(apps.kafka.end_offsets(prices).values())
            apps.kafka.produce(prices, [("tea", f"{offset}"), ("milk", f"{offset + 1}")])
            apps.kafka.produce(orders, [(None, "tea")] * 10)
            eventually(partial(is_seen, offset, store, prices, answers), "the price to be seen")
        assert store.all() == [("milk", f"{offset + 1}"), ("tea", f"{offset}")]
        assert running.stores() == {"prices": "key-value"}
        running.stop()
    assert answers == sorted(answers)


def is_seen(wanted: int, store: ms.StoreReader, topic: str, answers: list[int]) -> bool:
    """Ask for the price of tea; the answer has to be the state at its offsets."""
    try:
        answer = store.answer("get", "tea")
    except StoreError:  # no task has run yet
        return False
    price = -1 if answer.value is None else int(answer.value)
    position = answer.offsets[topic][0]
    assert price == ((position - 1) // 2 * 2 if position else -1)
    answers.append(price)
    return price == wanted


def test_a_global_store_in_memory_is_not_queried(apps: Apps) -> None:
    topology, orders, _ = priced(apps, "memory")
    apps.kafka.produce(orders, [(None, "tea")])
    running = apps.start(topology)
    all_read(running, 1)
    with pytest.raises(StoreError, match="engine 'memory' cannot be queried"):
        running.store("prices").get("tea")


def test_a_checkpoint_is_read_without_the_application(apps: Apps, source: str, kafka: EmbeddedKafka) -> None:
    apps.run(topology(source))
    checkpoint = apps.home / apps.id / "checkpoint"
    counts = ms.read_store(checkpoint, "counts").to_pydict()
    assert dict(zip(counts["key"], counts["value"])) == Counter(WORDS)
    assert max(counts["timestamp"]) == NOW + 60_000
    minutes = ms.read_store(checkpoint, "by-minute", key=ms.serdes.string).to_pydict()
    assert sum(minutes["value"]) == len(WORDS)
    assert set(minutes["start"]) <= {NOW - NOW % 60_000 + 60_000 * n for n in range(3)}
    visits = ms.read_store(checkpoint, "visits").to_pydict()
    assert sorted(zip(visits["key"], visits["start"])) == sorted(
        (word, NOW + 10_000 * n) for n, word in enumerate(WORDS)
    )
    with pytest.raises(StoreError, match=r"no store 'prices'.*it has 'by-minute', 'counts', 'visits'"):
        ms.read_store(checkpoint, "prices")
    with pytest.raises(StoreError, match="keys of the serde 'string'; give it as key="):
        ms.read_store(checkpoint, "counts", key=ms.serdes.int64)


def count_keys(topics: Mapping[str, str]) -> ms.Topology:
    builder = ms.StreamsBuilder()
    counted = builder.stream(topics["in"], key=ms.serdes.string).group_by_key().count(store="counts")
    counted.to_stream().to(topics["out"])
    return builder.build()


@pytest.mark.timeout(600)
def test_no_answer_is_older_than_one_before_though_everything_is_killed(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Another process asks while the application is killed as a whole, or loses its Python workers, and starts again."""
    name = f"killed-{secrets.token_hex(3)}"
    topics = {"in": f"{name}-in", "out": f"{name}-out"}
    for topic in topics.values():
        kafka.create_topic(topic, 1)
    settings = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "state_dir": str(tmp_path),
        "master": "local-cluster[1,2,1024]",  # repeats a task whose worker is gone
        "processing_guarantee": "exactly_once",
        "max_batch_records": 2_000,
    }
    program = CrashedProgram(tmp_path, Job(name, count_keys, topics, settings))
    store = ms.connect(name, tmp_path).store("counts")
    answers: list[int] = []

    def ask() -> bool:
        """Ask once; a count that is not the offset it stands for, or is older than one before, is wrong."""
        kafka.produce(topics["in"], [("k", b"x")] * 200)
        try:
            answer = store.answer("get", "k")
        except (ControlError, StoreError):  # it is not there, or has not begun
            return False
        offset = answer.offsets.get(topics["in"], {}).get(0, 0)
        assert (answer.value or 0) == offset
        answers.append(offset)
        assert answers == sorted(answers)
        return True

    def advance() -> None:
        before = answers[-1] if answers else -1
        eventually(lambda: ask() and answers[-1] > before, "a newer answer", within_s=180)

    try:
        for victim in ("all", "task", "all", "task"):
            if program.exit_code() is not None or not program.family():
                program.start()
            advance()
            advance()
            if victim == "all":
                program.kill()
            else:
                for process in program.victims("task"):
                    kill_one(process)
                advance()
    finally:
        program.kill()
    assert len(set(answers)) > 8
