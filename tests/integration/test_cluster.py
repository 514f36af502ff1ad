"""Applications on a standalone cluster: modules reach the workers, secrets are in no file, and results equal those of plain Python."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Collection, Iterator

import pytest

from millstream.edge.control.control_client import send
from millstream.testing import EmbeddedKafka

from .clusters import Daemon, SparkCluster
from .helpers import committed_records, eventually

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(530)]

_ENDED_BY_SIGTERM = 143
PASSWORD = secrets.token_hex(16)
"""A password of Kafka's clients, which this broker does not require."""
REGIONS = {f"c{n}": f"region-{n % 3 + 3}" for n in range(9)}
"""Regions of customers; their names bring records to both partitions."""

_PACKAGE = {
    "orders/__init__.py": "",
    "orders/checks.py": """
import asyncio

async def checked(order):
    from orders_words import shout  # a module beside the package, imported in a worker for the first time
    await asyncio.sleep(0.002)
    return shout(order)
""",
    "orders_words.py": "def shout(text): return text.upper()\n",
    "orders/topology.py": """
import millstream as ms
from orders.checks import checked

def customer_of(key, order): return order.split()[0]
def with_region(order, region): return f"{region} {order}"
def region_of(key, order): return order.split()[0]

def topology(orders, customers, answers, totals):
    builder = ms.StreamsBuilder()
    regions = builder.global_table(customers, key=ms.serdes.string, value=ms.serdes.string, store="regions")
    placed = builder.stream(orders, key=ms.serdes.string, value=ms.serdes.string).join(regions, customer_of, with_region)
    done = placed.map_values_async(checked, max_in_flight=50)
    done.to(answers)
    counts = done.group_by(region_of).count(store=ms.stores.options("totals", changelog="kafka"))
    counts.to_stream().to(totals, value=ms.serdes.int64)
    return builder.build()
""",
}
_PROGRAM = """
import json, sys
import millstream as ms
import orders_words  # beside this program; the package comes by --py-files
from orders.topology import topology

job = json.loads(sys.argv[1])
app = ms.Application(job["id"], topology(*job["topics"]), **job["settings"])
running = app.run()
print("ENDED", running.status().state)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster"), SHOP_PASSWORD=PASSWORD) as running:
        yield running


class Shop:
    """An application with its own topics, its orders, and their expected results."""

    def __init__(self, kafka: EmbeddedKafka, cluster: SparkCluster, name: str) -> None:
        self.kafka, self.id, self.home = kafka, name, cluster.home / name
        self.home.mkdir()
        self.topics = [f"{name}-{topic}" for topic in ("orders", "customers", "answers", "totals")]
        for topic in self.topics:
            kafka.create_topic(topic, 2)
        kafka.produce(self.topics[1], list(REGIONS.items()))
        self.ordered: list[tuple[str, str]] = []
        for file, text in _PACKAGE.items():
            (self.home / file).parent.mkdir(exist_ok=True)
            (self.home / file).write_text(text)
        (self.home / "main.py").write_text(_PROGRAM)
        shutil.make_archive(str(self.home / "modules"), "zip", self.home, "orders")
        shutil.rmtree(self.home / "orders")  # only one module stays beside the program

    def order(self, count: int) -> None:
        """Send more orders, each with a unique value."""
        new = [(f"o{n}", f"c{n % 9} {n}") for n in range(len(self.ordered), len(self.ordered) + count)]
        self.kafka.produce(self.topics[0], new)
        self.ordered += new

    def job(self, **settings: object) -> str:
        """Return the argument that describes the application to its program."""
        all_settings = {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "state_dir": str(self.home / "state"),
            "processing_guarantee": "exactly_once",
            "transaction_timeout_ms": 20_000,
            "kafka": {"sasl.password": {"env": "SHOP_PASSWORD"}},
            **settings,
        }
        return json.dumps({"id": self.id, "topics": self.topics, "settings": all_settings})

    def await_results(self, program: Daemon) -> None:
        """Wait until the program has answered and counted all orders."""

        def all_counted() -> bool:
            if not program.runs:
                pytest.fail(f"the program ended: {program.log.read_text()[-6000:]}")
            totals = {r.key: r.value or b"" for r in committed_records(self.kafka, self.topics[3])}
            counted = sum(int.from_bytes(total, "big") for total in totals.values())
            return counted == len(self.ordered) == len(committed_records(self.kafka, self.topics[2]))

        eventually(all_counted, f"results of {len(self.ordered)} orders", within_s=360)

    def placed(self) -> dict[str, str]:
        """Return the executor on which each task ran last."""
        status = send(self.home / "state" / self.id, self.id, "status")
        return {task: where.split("/")[1] for task, where in status.placed.items()}

    def forget_copies(self, tasks: Collection[str]) -> None:
        """Delete the local copies of tasks, as if their host were lost."""
        for task in tasks:
            shutil.rmtree(self.home / "state" / self.id / "tasks" / task)

    def check(self) -> None:
        """Compare the content of the topics with the results of plain Python."""
        answers = [(r.key, r.value) for r in committed_records(self.kafka, self.topics[2])]
        expected = [(key, f"{REGIONS[order.split()[0]]} {order}".upper()) for key, order in self.ordered]
        assert Counter(answers) == Counter((key.encode(), value.encode()) for key, value in expected)
        totals = {r.key: r.value for r in committed_records(self.kafka, self.topics[3])}
        counted = Counter(value.split()[0] for _, value in expected)
        assert totals == {key.encode(): count.to_bytes(8, "big") for key, count in counted.items()}

    def check_files(self) -> None:
        """Search for the password in all files of application, checkpoint and executors."""
        files = [path for path in self.home.parent.rglob("*") if path.is_file()]
        assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
        assert any("checkpoint" in path.parts for path in files)


def test_a_submitted_program_survives_a_killed_worker(kafka: EmbeddedKafka, cluster: SparkCluster) -> None:
    """Exactly once, with a global table, asynchronous calls, a changelog topic and copies in RocksDB, on two executors.

    A package comes by ``--py-files``, and a module is beside the program. A worker is killed, with its executor and local copies, and
    another worker starts. SIGTERM ends the program between two micro-batches.
    """
    shop = Shop(kafka, cluster, "submitted")
    shop.order(200)
    modules, main = str(shop.home / "modules.zip"), str(shop.home / "main.py")
    program = cluster.submit(shop.id, "--py-files", modules, main, shop.job(store_engine="rocksdb"))
    try:
        shop.await_results(program)
        placed = shop.placed()
        lost = placed["1_0"]
        cluster.worker_of(lost).kill()
        shop.forget_copies([task for task, executor in placed.items() if executor == lost])
        cluster.add_worker()
        shop.order(200)
        shop.await_results(program)
        # Results can be read as soon as the transactions are committed, before the driver has the reports of the tasks.
        eventually(lambda: lost not in shop.placed().values(), f"no task on executor {lost}", within_s=60)
        assert program.terminate(120) == _ENDED_BY_SIGTERM
    finally:
        program.kill()
    assert "submitted: stopped after" in program.log.read_text()
    assert "ENDED stopped" in program.log.read_text()
    shop.check()
    shop.check_files()


def test_the_doctor_checks_every_executor(kafka: EmbeddedKafka, cluster: SparkCluster) -> None:
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    doctor = cluster.python("-m", "millstream", "doctor", "--master", cluster.url, *servers)
    output = " ".join(doctor.communicate(timeout=180)[0].split())
    sound = r"ok executor {} on \S+ Python \S+ \(\S+\), millstream \S+, pyspark"
    assert all(re.search(sound.format(executor), output) for executor in (0, 1)), output
