"""Interactive queries: every client gets committed state, while the application runs and after it has stopped."""

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
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import millstream as ms
from millstream.core.model.errors import ControlError, StoreError
from millstream.edge.web.page_address import address_of
from millstream.testing import EmbeddedKafka
from millstream.testing.crash.app import Job
from millstream.testing.crash.processes import CrashedProgram, kill_one
from proofs.sizes import sized

from .helpers import Apps, eventually

pytestmark = [pytest.mark.broker, pytest.mark.spark]

NOW = 1_700_000_000_000
WORDS = ["tea", "milk", "tea", "salt", "tea", "milk", "rice"]
ENGINES = ["lmdb", "rocksdb", "memory"]
KINDS = {
    "behind": "key-value",
    **{f"by-minute-{engine}": "window" for engine in sorted(ENGINES)},
    **{f"counts-{engine}": "key-value" for engine in sorted(ENGINES)},
    **{f"versions-{engine}": "versioned" for engine in sorted(ENGINES)},
    **{f"visits-{engine}": "session" for engine in sorted(ENGINES)},
}
"""The stores of the application that most tests query, with their kinds."""


def add_counts(builder: ms.StreamsBuilder, source: str, engines: Sequence[str]) -> None:
    """Add counts by key, by key and minute, and by session, in stores of each engine."""
    grouped = builder.stream(source, key=ms.serdes.string, value=ms.serdes.string).group_by_key()
    for engine in engines:
        grouped.count(store=ms.stores.options(f"counts-{engine}", engine=engine))
        by_minute, visits = (
            ms.stores.options(f"{name}-{engine}", retention=3_600_000, engine=engine)
            for name in ("by-minute", "visits")
        )
        grouped.windowed_by(ms.TumblingWindows(60_000, grace=0)).count(store=by_minute)
        grouped.windowed_by(ms.SessionWindows(5_000, grace=0)).count(store=visits)


class Queried(NamedTuple):
    """An application with stores of all engines that has read everything.

    Attributes:
        running: The application.
        id: Its id.
        home: Its state directory.
        source: The topic whose records are counted.
        paused: A topic that is counted only in the store ``behind``.
    """

    running: ms.RunningApplication
    id: str
    home: Path
    source: str
    paused: str


@pytest.fixture(scope="module")
def queried(module_apps: Apps) -> Queried:
    apps = module_apps
    source, paused = apps.topic("in", 3), apps.topic("paused", 1)
    produce_words(apps.kafka, source)
    builder = ms.StreamsBuilder()
    add_counts(builder, source, ENGINES)
    for engine in ENGINES:
        prices = apps.topic(f"prices-{engine}", 2)
        apps.kafka.produce(prices, [("tea", "1", NOW), ("tea", "2", NOW + 1_000), ("milk", "3", NOW)])
        versions = ms.stores.options(f"versions-{engine}", history_retention=120_000, engine=engine)
        builder.table(prices, key=ms.serdes.string, value=ms.serdes.string, store=versions)
    builder.stream(paused, key=ms.serdes.string, value=ms.serdes.string).group_by_key().count(store="behind")
    running = apps.start(builder.build(), page_port=0)
    await_records_read(running, len(WORDS) + 3 * len(ENGINES))
    return Queried(running, apps.id, apps.home, source, paused)


def produce_words(kafka: EmbeddedKafka, topic: str) -> None:
    kafka.produce(topic, [(word, "x", NOW + 10_000 * n) for n, word in enumerate(WORDS)])


def await_records_read(running: ms.RunningApplication, count: int) -> None:
    eventually(lambda: running.metrics()["read_records"] >= count, "the records to be read")


@pytest.mark.parametrize("engine", ENGINES)
def test_queries_of_every_kind_of_store_cover_all_tasks(queried: Queried, engine: str) -> None:
    running, source = queried.running, queried.source
    counts, minutes, visits = (
        running.store(f"{name}-{engine}") for name in ("counts", "by-minute", "visits")
    )
    assert counts.all() == sorted(Counter(WORDS).items())
    assert counts.reverse_all(limit=2) == [("tea", 3), ("salt", 1)]
    assert counts.range("milk", "salt") == [("milk", 2), ("rice", 1), ("salt", 1)]
    assert counts.prefix_scan("t") == [("tea", 3)]
    assert (counts.get("tea"), counts.get("coffee")) == (3, None)
    assert engine == "rocksdb" or counts.approximate_count() == 4  # RocksDB only estimates it
    assert running.store(f"counts-{engine}", timestamps=True).get("milk") == (2, NOW + 50_000)
    start = NOW - NOW % 60_000
    assert sum(count for _, count in minutes.fetch("tea", start, start + 120_000)) == 3
    assert minutes.fetch("tea", start) == 1 + (start + 60_000 > NOW + 20_000)
    assert sum(count for _, count in minutes.fetch_all(0, NOW + 120_000)) == len(WORDS)
    assert [(window.start, count) for window, count in visits.fetch("rice")] == [(NOW + 60_000, 1)]
    assert len(visits.all()) == len(WORDS)
    assert visits.fetch_session("tea", NOW, NOW) == 1
    answer = counts.answer("get", "tea")
    assert (answer.value, answer.lag, sum(answer.offsets[source].values())) == (3, 0, len(WORDS))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_versioned_store_can_be_queried_as_of_a_time(queried: Queried, engine: str) -> None:
    store = queried.running.store(f"versions-{engine}")
    assert (store.get("tea").value, store.get("tea", NOW + 500).value) == ("2", "1")
    assert store.get("tea", NOW - 1) is None
    assert store.get("milk").timestamp == NOW


def test_all_stores_are_listed_with_their_kinds(queried: Queried) -> None:
    assert queried.running.stores() == KINDS


def test_the_error_for_a_failed_query_names_its_cause(queried: Queried, kafka: EmbeddedKafka) -> None:
    running = queried.running
    with pytest.raises(
        StoreError, match=r"no store 'prices'; its stores are: 'by-minute-lmdb', .*, 'behind'"
    ):
        running.store("prices").get("tea")
    with pytest.raises(StoreError, match="has no method 'fetch'; a store of the kind 'key-value' has get"):
        running.store("counts-lmdb").fetch("tea", 0)
    with pytest.raises(StoreError, match=r"get\(\) of store 'counts-lmdb': .*int"):
        running.store("counts-lmdb").get(7)
    kafka.produce(queried.paused, [("tea", "x", NOW)] * 3)
    eventually(lambda: running.store("behind").get("tea") == 3, "the records to be read")
    running.pause([queried.paused])
    kafka.produce(queried.paused, [("tea", "x", NOW)] * 5)
    behind = running.store("behind", max_lag=4)
    eventually(lambda: _is_refused(behind), "the lag to be seen")
    assert running.store("behind", max_lag=5).get("tea") == 3


def _is_refused(store: ms.StoreReader[str, int]) -> bool:
    try:
        store.get("tea")
    except StoreError as error:
        return "5 records behind its topics, and at most 4 were allowed" in str(error)
    return False


def test_another_process_a_shell_and_a_browser_get_the_same_answers(queried: Queried) -> None:
    program = (
        "import sys, millstream as ms\n"
        "shop = ms.connect(sys.argv[1], sys.argv[2])\n"
        "counts, visits = shop.store('counts-lmdb'), shop.store('visits-lmdb')\n"
        "print(shop.stores(), shop.status()['state'], counts.all(), visits.fetch('rice'), "
        "sorted({word for *_, word, _ in shop.read(sys.argv[3])}))"
    )
    program_arguments = [queried.id, str(queried.home), queried.source]
    shown = subprocess.run(
        [sys.executable, "-c", program, *program_arguments], capture_output=True, text=True, check=True
    )
    visit = ms.Windowed("rice", NOW + 60_000, NOW + 60_000)
    stores = dict(queried.running.stores())
    counts = sorted(Counter(WORDS).items())
    assert shown.stdout.strip() == f"{stores} running {counts} {[(visit, 1)]} {sorted(set(WORDS))}"

    def shell(*arguments: str) -> str:
        command = [sys.executable, "-m", "millstream", "store", queried.id, *arguments]
        where = ["--state-dir", str(queried.home)]
        return subprocess.run([*command, *where], capture_output=True, text=True, check=True).stdout

    assert shell() == "".join(f"{name}  {kind}\n" for name, kind in stores.items())
    assert shell("counts-lmdb", "range", "milk", "rice") == "milk  2\nrice  1\n"
    assert shell("counts-lmdb", "get", "coffee") == "null\n"
    assert shell("counts-rocksdb", "info").splitlines()[-1] == "engine  rocksdb"
    answer = json.loads(shell("visits-lmdb", "fetch", "rice", "--json"))
    assert answer["value"] == [[{"key": "rice", "start": NOW + 60_000, "end": NOW + 60_000}, 1]]
    assert sum(answer["offsets"][queried.source].values()) == len(WORDS)

    address, _, token = address_of(queried.home / queried.id, queried.id).partition("/#")
    request_body = {"store": "counts-lmdb", "method": "get", "arguments": ["tea"]}
    assert _posted(f"{address}/api/store", request_body, token)["value"] == 3
    with pytest.raises(urllib.error.HTTPError, match="401"):
        _posted(f"{address}/api/store", request_body, "wrong")


def _posted(url: str, body: object, token: str) -> dict[str, int]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, int] = json.loads(answer.read())
    return found


def test_answers_are_the_state_at_their_offsets_and_never_go_back(apps: Apps) -> None:
    """There is one key in one partition, so its count always equals the offset, with every engine and across a restart."""
    source = apps.topic("in", 1)
    builder = ms.StreamsBuilder()
    grouped = builder.stream(source, key=ms.serdes.string).group_by_key()
    for engine in ENGINES:
        counted = grouped.count(store=ms.stores.options(f"counts-{engine}", engine=engine))
        counted.to_stream().to(apps.topic(f"out-{engine}", 1))
    answers: dict[str, list[int]] = {engine: [] for engine in ENGINES}
    stopping = threading.Event()

    def produce() -> None:
        while not stopping.wait(0.02):
            apps.kafka.produce(source, [("k", b"x")] * 500)

    writer = threading.Thread(target=produce)
    writer.start()
    try:
        for _ in range(2):
            running = apps.start(
                builder.build(), processing_guarantee="exactly_once", max_batch_records=1_000
            )
            query_all(running, answers, until=running.status().batch + 12)
            running.stop()
            # A stopped application opens no files, so the next start can use LMDB.
            with pytest.raises(StoreError, match=r"has ended; ms\.read_store"):
                running.store("counts-lmdb").get("k")
    finally:
        stopping.set()
        writer.join()
    for offsets in answers.values():
        assert offsets == sorted(offsets)
        assert len(set(offsets)) > 10


def query_all(running: ms.RunningApplication, answers: dict[str, list[int]], until: int) -> None:
    """Query the stores in turn until a micro-batch is committed; each answer must be the state at its offsets."""
    stores = {engine: running.store(f"counts-{engine}") for engine in answers}
    deadline = time.monotonic() + 120
    while running.status().batch < until:
        assert time.monotonic() < deadline
        for engine, store in stores.items():
            answer = store.answer("get", "k")
            offset = next(
                (offset for by_partition in answer.offsets.values() for offset in by_partition.values()), 0
            )
            assert (answer.value or 0) == offset
            answers[engine].append(offset)


def priced(apps: Apps, engine: str) -> tuple[ms.Topology, str, str]:
    """Join orders with a global table of prices; return the topology and the topics of orders and prices."""
    orders, prices = apps.topic("orders", 2), apps.topic("prices", 1)
    builder = ms.StreamsBuilder()
    table = builder.global_table(prices, store=ms.stores.options("prices", engine=engine))
    joined = builder.stream(orders).join(
        table, lambda key, order: order, lambda order, price: f"{order} {price}"
    )
    joined.to(apps.topic("priced", 2))
    return builder.build(), orders, prices


@pytest.mark.parametrize("engine", sized(["lmdb"], ["lmdb", "rocksdb"]))
def test_answers_of_a_global_store_match_their_offsets_and_never_go_back(apps: Apps, engine: str) -> None:
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


def is_seen(expected_price: int, store: ms.StoreReader[str, int], topic: str, answers: list[int]) -> bool:
    """Query the price of tea; the answer must be the state at its offsets."""
    try:
        answer = store.answer("get", "tea")
    except StoreError:  # no task has run yet
        return False
    price = -1 if answer.value is None else int(answer.value)
    position = answer.offsets[topic][0]
    assert price == ((position - 1) // 2 * 2 if position else -1)
    answers.append(price)
    return price == expected_price


def test_a_global_store_that_no_node_reads_can_be_queried(apps: Apps) -> None:
    lines, countries, builder = apps.topic("in", 2), apps.topic("countries", 1), ms.StreamsBuilder()
    builder.stream(lines).group_by_key().count(store="counts")
    builder.global_table(countries, store="countries")
    apps.kafka.produce(countries, [("de", "Germany")])
    apps.kafka.produce(lines, [("k", "x")])
    running = apps.start(builder.build())
    await_records_read(running, 1)
    assert running.store("countries").answer("get", "de").value == "Germany"
    with pytest.raises(
        StoreError, match=r"get\(\) of store 'countries': key must be a key of the serde 'string', not int 7"
    ):
        running.store("countries").get(7)
    info = running.store("countries").info()
    assert (info["engine"], info["approximate_count"]) == ("lmdb", 1)


def test_a_global_store_in_memory_cannot_be_queried(apps: Apps) -> None:
    topology, orders, _ = priced(apps, "memory")
    apps.kafka.produce(orders, [(None, "tea")])
    running = apps.start(topology)
    await_records_read(running, 1)
    with pytest.raises(StoreError, match="engine 'memory' cannot be queried"):
        running.store("prices").get("tea")


def test_stores_can_be_read_from_a_checkpoint_without_the_application(apps: Apps) -> None:
    source, builder = apps.topic("in", 3), ms.StreamsBuilder()
    produce_words(apps.kafka, source)
    add_counts(builder, source, ["lmdb"])
    apps.run(builder.build())
    checkpoint = apps.home / apps.id / "checkpoint"
    table = ms.read_store(checkpoint, "counts-lmdb")
    assert int(table.schema.metadata[b"millstream.batch"]) >= 0
    offsets = json.loads(table.schema.metadata[b"millstream.offsets"])
    assert sum(offsets[source].values()) == len(WORDS)
    counts = table.to_pydict()
    assert list(zip(counts["key"], counts["value"])) == sorted(Counter(WORDS).items())
    assert max(counts["timestamp"]) == NOW + 60_000
    minutes = ms.read_store(checkpoint, "by-minute-lmdb", key=ms.serdes.string).to_pydict()
    assert sum(minutes["value"]) == len(WORDS)
    assert set(minutes["start"]) <= {NOW - NOW % 60_000 + 60_000 * n for n in range(3)}
    visits = ms.read_store(checkpoint, "visits-lmdb").to_pydict()
    assert list(zip(visits["key"], visits["start"])) == sorted(
        (word, NOW + 10_000 * n) for n, word in enumerate(WORDS)
    )
    with pytest.raises(
        StoreError, match=r"no store 'prices'.*it has 'by-minute-lmdb', 'counts-lmdb', 'visits-lmdb'"
    ):
        ms.read_store(checkpoint, "prices")
    with pytest.raises(StoreError, match="keys of the serde 'string'; give it as key="):
        ms.read_store(checkpoint, "counts-lmdb", key=ms.serdes.int64)


def count_keys(topics: Mapping[str, str]) -> ms.Topology:
    builder = ms.StreamsBuilder()
    counted = builder.stream(topics["in"], key=ms.serdes.string).group_by_key().count(store="counts")
    counted.to_stream().to(topics["out"])
    return builder.build()


@pytest.mark.timeout(600)
def test_no_answer_is_older_than_an_earlier_one_when_processes_are_killed(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Another process queries the application, which loses its Python workers, or is killed and started again."""
    name = f"killed-{secrets.token_hex(3)}"
    topics = {"in": f"{name}-in", "out": f"{name}-out"}
    for topic in topics.values():
        kafka.create_topic(topic, 1)
    settings = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "state_dir": str(tmp_path),
        "master": "local[2]",
        "processing_guarantee": "exactly_once",
        "max_batch_records": 2_000,
    }
    program = CrashedProgram(tmp_path, Job(name, count_keys, topics, settings))
    store = ms.connect(name, tmp_path).store("counts")
    answers: list[int] = []

    def ask() -> bool:
        """Query once: the count must equal its offset and must not be older than an earlier one."""
        kafka.produce(topics["in"], [("k", b"x")] * 200)
        try:
            answer = store.answer("get", "k")
        except (ControlError, StoreError):  # not running, or not started yet
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
        for victim in ("task", "all", "task"):
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
    assert len(set(answers)) > 6
