"""Foreign-key joins of tables on Spark: rows and the rows they refer to are in different partitions of two topics."""

from __future__ import annotations

import random

import pytest

import millstream as ms

from .helpers import Apps, latest

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(280)]

ORDERS = 60
CUSTOMERS = [f"c{number}" for number in range(8)]
Change = tuple[str, str, str | None]


def customer_of(order: str) -> str | None:
    return order.split(":")[0] or None


def pair(order: str, customer: str | None) -> str:
    return f"{order}+{customer}"


def changes(seed: int) -> list[Change]:
    """Generate changes of orders and customers; some orders have no customer, and some changes are deletions."""
    rng = random.Random(seed)
    new_changes: list[Change] = []
    for number in range(400):
        if rng.random() < 0.2:
            new_changes.append(("customers", rng.choice(CUSTOMERS), rng.choice([None, f"name {number}"])))
        else:
            order = rng.choice([None, f":{number}", *(f"{customer}:{number}" for customer in CUSTOMERS)])
            new_changes.append(("orders", f"o{rng.randrange(ORDERS)}", order))
    return new_changes


def expected(kind: str, events: list[Change]) -> dict[str, str]:
    tables: dict[str, dict[str, str | None]] = {"orders": {}, "customers": {}}
    for topic, key, value in events:
        tables[topic][key] = value
    rows = {}
    for key, order in tables["orders"].items():
        customer = None if order is None else tables["customers"].get(customer_of(order) or "")
        if order is not None and (customer is not None or kind == "left"):
            rows[key] = pair(order, customer)
    return rows


def test_rows_are_joined_across_partitions_and_restarts(apps: Apps) -> None:
    topics = {"orders": apps.topic("orders", 2), "customers": apps.topic("customers", 3)}
    out = {kind: apps.topic(kind, 1) for kind in ("inner", "left")}
    builder = ms.StreamsBuilder()
    orders, customers = builder.table(topics["orders"]), builder.table(topics["customers"])
    inner = orders.join(customers, pair, on=customer_of, name="inner")
    left = orders.left_join(customers, pair, on=customer_of, name="left")
    for kind, joined in (("inner", inner), ("left", left)):
        joined.to_stream().to(out[kind])
    topology, all_changes = builder.build(), list[Change]()
    for seed in (1, 2):
        new_changes = changes(seed)
        for name, topic in topics.items():
            apps.kafka.produce(topic, [(key, value) for into, key, value in new_changes if into == name])
        all_changes += new_changes
        apps.run(topology)
        for kind, topic in out.items():
            rows = {key: row for key, row in latest(apps.kafka.consume(topic)).items() if row is not None}
            assert rows == expected(kind, all_changes)
