"""A join of tables by a foreign key on Spark: rows, and the rows they name, in different partitions, through two topics."""

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


def paired(order: str, customer: str | None) -> str:
    return f"{order}+{customer}"


def changes(seed: int) -> list[Change]:
    """Generate changes of orders and customers; some name no customer, some delete."""
    pick = random.Random(seed)
    made: list[Change] = []
    for number in range(400):
        if pick.random() < 0.2:
            made.append(("customers", pick.choice(CUSTOMERS), pick.choice([None, f"name {number}"])))
        else:
            order = pick.choice([None, f":{number}", *(f"{customer}:{number}" for customer in CUSTOMERS)])
            made.append(("orders", f"o{pick.randrange(ORDERS)}", order))
    return made


def expected(kind: str, events: list[Change]) -> dict[str, str]:
    tables: dict[str, dict[str, str | None]] = {"orders": {}, "customers": {}}
    for topic, key, value in events:
        tables[topic][key] = value
    rows = {}
    for key, order in tables["orders"].items():
        customer = None if order is None else tables["customers"].get(customer_of(order) or "")
        if order is not None and (customer is not None or kind == "left"):
            rows[key] = paired(order, customer)
    return rows


def test_rows_are_joined_over_partitions_and_restarts(apps: Apps) -> None:
    topics = {"orders": apps.topic("orders", 2), "customers": apps.topic("customers", 3)}
    out = {kind: apps.topic(kind, 1) for kind in ("inner", "left")}
    builder = ms.StreamsBuilder()
    orders, customers = builder.table(topics["orders"]), builder.table(topics["customers"])
    inner = orders.join(customers, paired, on=customer_of, name="inner")
    left = orders.left_join(customers, paired, on=customer_of, name="left")
    for kind, joined in (("inner", inner), ("left", left)):
        joined.to_stream().to(out[kind])
    topology, done = builder.build(), list[Change]()
    for seed in (1, 2):
        made = changes(seed)
        for name, topic in topics.items():
            apps.kafka.produce(topic, [(key, value) for into, key, value in made if into == name])
        done += made
        apps.run(topology)
        for kind, topic in out.items():
            rows = {key: row for key, row in latest(apps.kafka.consume(topic)).items() if row is not None}
            assert rows == expected(kind, done)
