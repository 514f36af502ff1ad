"""Serdes with a real schema registry on Spark: they read the records of other clients, and other clients read theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

import millstream as ms
from millstream.core.model.errors import SerdeError, UnavailableError
from millstream.core.model.serdes import serialize_for_topic
from millstream.drivers.schemas import registry_serde

from .apicurio import Apicurio, apicurio
from .helpers import Apps, latest

pytestmark = [pytest.mark.broker, pytest.mark.spark]

FIELDS = [{"name": "id", "type": "string"}, {"name": "cents", "type": "long"}]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
NEXT = {**ORDER, "fields": [*FIELDS, {"name": "currency", "type": "string", "default": "EUR"}]}


@dataclass
class Order:
    id: str
    cents: int


@dataclass
class Total:
    cents: int = 0
    orders: int = 0


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    with apicurio(tmp_path_factory.mktemp("apicurio")) as running:
        yield running


def serialized_by_client(registry: Apicurio, schema: Any, topic: str, value: Any) -> bytes:
    """Serialise as Confluent's clients do."""
    serializer = AvroSerializer(registry.client(), json.dumps(schema))
    data = serializer(value, SerializationContext(topic, MessageField.VALUE))
    assert data is not None
    return data


def deserialized_by_client(registry: Apicurio, data: bytes | None) -> Any:
    return AvroDeserializer(registry.client())(data, SerializationContext("any", MessageField.VALUE))


def topology(registry: Apicurio, source: str, sink: str) -> ms.Topology:
    orders = ms.serdes.avro(Order, registry=registry.url)
    totals = ms.serdes.avro(Total, registry=registry.url)
    builder = ms.StreamsBuilder()
    grouped = builder.stream(source, key=ms.serdes.string, value=orders).group_by_key()
    summed = grouped.aggregate(
        Total,
        lambda _, order, total: Total(total.cents + order.cents, total.orders + 1),
        value=totals,
        store="totals",
    )
    summed.to_stream().to(sink, value=totals)
    return builder.build()


def test_all_schema_versions_are_read_and_other_clients_read_the_results(
    apps: Apps, registry: Apicurio
) -> None:
    source, sink = apps.topic("in"), apps.topic("out")
    old = [serialized_by_client(registry, ORDER, source, {"id": "a", "cents": n}) for n in (100, 250)]
    new = serialized_by_client(registry, NEXT, source, {"id": "b", "cents": 7, "currency": "USD"})
    apps.kafka.produce(source, [("x", old[0]), ("x", old[1]), ("y", new)])
    apps.run(topology(registry, source, sink))
    apps.kafka.produce(source, [("y", old[0])])
    apps.run(
        topology(registry, source, sink)
    )  # the second run reads the contents of the store with the registry
    found = {
        key: deserialized_by_client(registry, value)
        for key, value in latest(apps.kafka.consume(sink), ms.serdes.bytes).items()
    }
    assert found == {"x": {"cents": 350, "orders": 2}, "y": {"cents": 107, "orders": 2}}
    subjects = registry.client()
    assert {f"{source}-value", f"{sink}-value", "Total"} <= set(subjects.get_subjects())
    assert subjects.get_versions(f"{source}-value") == [1, 2]


def test_an_incompatible_schema_is_refused(registry: Apicurio) -> None:
    serialize_for_topic(ms.serdes.avro(Order, registry=registry.url), Order("a", 1), "paid", "value", ())
    subjects = registry.client()
    subjects.set_compatibility("paid-value", "BACKWARD")
    other = {**ORDER, "fields": [*FIELDS, {"name": "must", "type": "string"}]}
    with pytest.raises(SerdeError, match=r"avro: .*409"):
        serialize_for_topic(
            ms.serdes.avro(other, registry=registry.url),
            {"id": "a", "cents": 1, "must": "x"},
            "paid",
            "value",
            (),
        )
    with pytest.raises(SchemaRegistryError):
        subjects.get_version("paid-value", 2)


@pytest.mark.parametrize("settings", [{"timeout": 1}, {}], ids=["timeout-set", "timeout-of-ours"])
def test_no_record_is_lost_while_the_registry_does_not_answer(
    registry: Apicurio, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    data = serialized_by_client(registry, ORDER, "paused", {"id": "a", "cents": 1})
    builder = ms.StreamsBuilder()
    orders = ms.serdes.avro(Order, registry={"url": registry.url, "max.retries": 0, **settings})
    builder.stream("paused", value=orders).map_values(lambda order: str(order.cents)).to("out")
    policies = ms.ErrorPolicies(deserialize="skip")
    registry.pause()
    try:
        monkeypatch.setattr(registry_serde, "_PATIENCE_S", 0)
        monkeypatch.setattr(registry_serde, "_TIMEOUT_S", 1)
        with (
            ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver,
            pytest.raises(UnavailableError, match="has not answered"),
        ):
            driver.pipe("paused", "k", data)
    finally:
        registry.resume()
        monkeypatch.undo()
    with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
        driver.pipe("paused", "k", data)
        assert [record.value for record in driver.read("out")] == ["1"]


@pytest.mark.soak
def test_registry_serdes_work_in_a_query_of_the_user(
    apps: Apps, registry: Apicurio, spark: SparkSession
) -> None:
    source, sink = apps.topic("in"), apps.topic("out")
    data = serialized_by_client(registry, ORDER, source, {"id": "a", "cents": 42})
    apps.kafka.produce(source, [("x", data)])
    stream = ms.spark.read_kafka(spark, source, bootstrap_servers=apps.kafka.bootstrap_servers)
    results = ms.spark.transform(
        topology(registry, source, sink), {source: stream}, name=apps.id, state_dir=apps.home
    )
    rows: list[Any] = []
    query = (
        results.writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", str(apps.home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    assert [deserialized_by_client(registry, bytes(row.value)) for row in rows] == [
        {"cents": 42, "orders": 1}
    ]
