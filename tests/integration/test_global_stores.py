"""Global stores on Spark: each order sees the tables planned for its micro-batch, also after a restart or a repetition."""

from __future__ import annotations

import shutil

import pytest

import millstream as ms

from .helpers import Apps, eventually, values_by_key, written
from .topologies import offers

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(280)]

PRODUCTS = [f"p{number}" for number in range(12)]


class Shop:
    """Three input topics and one output topic, with different numbers of partitions."""

    def __init__(self, apps: Apps) -> None:
        self.apps, self.kafka = apps, apps.kafka
        self.orders, self.products = apps.topic("orders", 3), apps.topic("products", 3)
        self.prices, self.sink = apps.topic("prices", 2), apps.topic("offers", 1)
        self.ordered = 0

    @property
    def topology(self) -> ms.Topology:
        return offers(self.orders, self.products, self.prices, self.sink)

    def name(self, name: str) -> None:
        """Produce a new name for every product."""
        self.kafka.produce(self.products, [(product, f"{name}-{product}") for product in PRODUCTS])

    def price(self, price: str) -> None:
        self.kafka.produce(self.prices, [(product, price) for product in PRODUCTS])

    def order(self, turn: str) -> None:
        """Order every product, and one that does not exist."""
        self.kafka.produce(self.orders, [(f"{product}/{turn}", product) for product in [*PRODUCTS, "px"]])
        self.ordered += len(PRODUCTS) + 1

    def offered(self, turn: str) -> dict[str, str]:
        """Return the result of each order of a turn; an order that is processed again has the same result."""
        all_offers = values_by_key(self.kafka.consume(self.sink))
        of_turn = {
            key: values for key, values in all_offers.items() if key is not None and key.endswith(turn)
        }
        assert all(len(set(values)) == 1 for values in of_turn.values()), of_turn
        return {key: values[0] for key, values in of_turn.items()}

    def await_all(self) -> None:
        eventually(lambda: written(self.kafka, self.sink) == self.ordered, "all offers")


def expected(turn: str, name: str, prices: str) -> dict[str, str]:
    known = {f"{product}/{turn}": f"{name}-{product} at {prices}" for product in PRODUCTS}
    return {**known, f"px/{turn}": "unknown at None"}


def run_the_last_batch_again(apps: Apps) -> None:
    """Forget that the last micro-batch was committed, as a crash just before its commit would."""
    commits = apps.home / apps.id / "checkpoint" / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_each_order_sees_the_tables_planned_for_its_micro_batch(apps: Apps) -> None:
    shop = Shop(apps)
    shop.name("first")
    shop.price("1")
    shop.order("t1")
    running = apps.start(shop.topology, shuffle_partitions=2)
    shop.await_all()
    for turn, name in (("t2", "second"), ("t3", "third")):
        shop.name(name)  # acknowledged before the orders are sent, so they see it
        shop.order(turn)
        shop.await_all()
    assert shop.offered("t1") == expected("t1", "first", "1")
    assert shop.offered("t2") == expected("t2", "second", "1")
    assert shop.offered("t3") == expected("t3", "third", "1")
    expected_records = 4 * len(PRODUCTS)  # read by one task for the whole host
    eventually(
        lambda: running.metrics()["global_records"] == expected_records, "the last micro-batch to be counted"
    )
    running.stop()

    shop.price("2")  # earlier orders were planned without this price
    before = written(apps.kafka, shop.sink)
    run_the_last_batch_again(apps)
    shutil.rmtree(apps.local_state)
    shop.order("t4")
    apps.run(shop.topology, shuffle_partitions=2)
    assert written(apps.kafka, shop.sink) > before + len(PRODUCTS) + 1
    assert shop.offered("t3") == expected("t3", "third", "1")
    assert shop.offered("t4") == expected("t4", "third", "1,2")

    shop.kafka.produce(shop.products, [(product, None) for product in PRODUCTS])
    shop.order("t5")
    restarted = apps.run(shop.topology, shuffle_partitions=2)
    assert set(shop.offered("t5").values()) == {"unknown at 1,2", "unknown at None"}
    assert restarted.metrics()["global_records"] == len(PRODUCTS)  # the existing copy was reused
