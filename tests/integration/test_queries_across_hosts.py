"""Queries of an application with executors on two hosts: each answer is the state at its offsets, also when a host is lost.

The stores use different engines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

import millstream as ms
from millstream.core.model.errors import MillstreamError, StoreError
from millstream.testing import EmbeddedKafka

from .clusters import ClusterOfHosts, Daemon
from .helpers import eventually

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(530),
    pytest.mark.skipif(
        not ClusterOfHosts.possible(), reason="this user may not make namespaces, which stand for hosts"
    ),
]

APPLICATION = "across-hosts"
SOURCE, PRICES = "across-hosts-in", "across-hosts-prices"
NOW = 1_700_000_000_000
WORDS = [f"word-{n}" for n in range(40)]
STORES = ("counts", "by-minute", "visits")
_PROGRAM = """
import json, sys
import millstream as ms

source, prices, settings = json.loads(sys.argv[1])
builder = ms.StreamsBuilder()
words = builder.stream(source, key=ms.serdes.string, value=ms.serdes.string)
table = builder.global_table(prices, store="prices")
words.join(table, lambda word, _: word, lambda _, price: price).foreach(lambda word, price: None)
grouped = words.group_by_key()
grouped.count(store="counts")
by_minute, visits = (
    ms.stores.options(name, retention=3_600_000, engine=engine)
    for name, engine in (("by-minute", "rocksdb"), ("visits", "memory"))
)
grouped.windowed_by(ms.TumblingWindows(60_000, grace=0)).count(store=by_minute)
grouped.windowed_by(ms.SessionWindows(5_000, grace=0)).count(store=visits)
ms.Application("across-hosts", builder.build(), **settings).run()
"""


class CountingApplication:
    """The application, its input, and the expected answers."""

    def __init__(self, kafka: EmbeddedKafka, cluster: ClusterOfHosts) -> None:
        self.kafka, self.cluster = kafka, cluster
        kafka.create_topic(SOURCE, 2)
        kafka.create_topic(PRICES, 1)
        kafka.produce(PRICES, [("word-1", "3"), ("word-2", "4")])
        self.produced = 0
        self.produce(200)
        program = cluster.home / "counting.py"
        program.write_text(_PROGRAM)
        settings = {
            "bootstrap_servers": kafka.bootstrap_servers,
            "state_dir": str(cluster.home / "state"),
            "processing_guarantee": "exactly_once",
        }
        self.program = cluster.submit("counting", str(program), json.dumps([SOURCE, PRICES, settings]))
        self.application = ms.connect(APPLICATION, cluster.home / "state")
        self._newest: Counter[str] = Counter()

    def produce(self, count: int) -> None:
        """Produce records one second apart, with the words in turn."""
        numbers = range(self.produced, self.produced + count)
        self.kafka.produce(SOURCE, [(WORDS[n % len(WORDS)], "x", NOW + 1_000 * n) for n in numbers])
        self.produced += count

    def read_all(self) -> bool:
        """Return whether all records were processed; fail if the program has ended."""
        if not self.program.runs:
            pytest.fail(f"the program ended: {self.program.log.read_text()[-6000:]}")
        try:
            offsets = self.application.store("counts").answer("get", WORDS[0]).offsets
        except MillstreamError:
            return False
        return sum(offsets.get(SOURCE, {}).values()) == self.produced

    def is_readable(self, store: str) -> bool:
        """Return whether all tasks of a store answer. On a busy machine, a micro-batch may take longer than a query waits."""
        try:
            self.application.store(store).all()
        except StoreError:
            return False
        return True

    def hosts(self) -> set[str]:
        return {executor.partition("/")[0] for executor in self.application.status()["placed"].values()}

    def worker_on(self, host: str) -> Daemon:
        return next(worker for n, worker in enumerate(self.cluster.workers) if self.cluster.host(n) == host)

    def check_positions(self) -> int:
        """Query every key and return the number of answers, which must be the counts at their offsets and never go back."""
        records = self.kafka.consume(SOURCE)
        answered = 0
        for word in WORDS:
            try:
                answer = self.application.store("counts").answer("get", word)
            except MillstreamError:  # its host is lost, and no other has its state yet
                continue
            ends = answer.offsets.get(SOURCE, {})
            expected = sum(
                record.key == word.encode() and record.offset < ends.get(record.partition, 0)
                for record in records
            )
            assert (answer.value or 0) == expected
            assert expected >= self._newest[word]
            self._newest[word] = expected
            answered += 1
        return answered


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfHosts]:
    home = tmp_path_factory.mktemp("hosts")
    with ClusterOfHosts(home, home / "state" / APPLICATION / "tasks") as cluster_of_hosts:
        yield cluster_of_hosts


@pytest.mark.soak
def test_queries_reach_local_copies_on_other_hosts_also_after_a_host_is_lost(
    kafka: EmbeddedKafka, cluster: ClusterOfHosts
) -> None:
    counting = CountingApplication(kafka, cluster)
    try:
        eventually(counting.read_all, "the records to be read", within_s=360)
        check_all_methods(counting)
        assert counting.hosts() == {"host-0", "host-1"}
        assert counting.check_positions() == len(WORDS)
        lost_host = counting.application.status()["placed"]["0_0"].partition("/")[0]
        counting.worker_on(lost_host).kill()
        cluster.add_worker()
        eventually(
            lambda: counting.check_positions() == len(WORDS) and lost_host not in counting.hosts(),
            "all keys after a host was lost",
            within_s=200,
        )
        counting.produce(200)
        eventually(counting.read_all, "more records to be read", within_s=120)
        assert counting.check_positions() == len(WORDS)
        eventually(lambda: all(map(counting.is_readable, STORES)), "the copies to be complete", within_s=120)
        check_all_methods(counting)
    finally:
        counting.program.kill()


def check_all_methods(counting: CountingApplication) -> None:
    """Compare the results of every kind of query with those of plain Python."""
    counts, minutes, visits = map(counting.application.store, STORES)
    words = [WORDS[n % len(WORDS)] for n in range(counting.produced)]
    expected = sorted(Counter(words).items())
    assert counts.all() == expected
    assert counts.reverse_all(limit=3) == expected[::-1][:3]
    assert counts.range("word-1", "word-2") == [e for e in expected if "word-1" <= e[0] <= "word-2"]
    assert counts.prefix_scan("word-3") == [e for e in expected if e[0].startswith("word-3")]
    assert (counts.get("word-7"), counts.get("tea"), counts.approximate_count()) == (
        len(words) // 40,
        None,
        40,
    )
    assert sum(count for _, count in minutes.fetch_all(NOW - 60_000, NOW + 1_000 * len(words))) == len(words)
    assert sum(count for _, count in minutes.fetch("word-7", NOW - 60_000, NOW + 1_000 * len(words))) == (
        len(words) // 40
    )
    assert [session.start for session, _ in visits.fetch("word-7")] == [
        NOW + 1_000 * n for n, word in enumerate(words) if word == "word-7"
    ]
    assert len(visits.all()) == len(words)
    prices = counting.application.store("prices").answer("all")
    assert (prices.value, prices.offsets) == ([("word-1", "3"), ("word-2", "4")], {PRICES: {0: 2}})
