"""Tools for testing Millstream programs: a driver that needs no broker, Spark or Java, and an embedded Kafka broker."""

from millstream.testing.context import MockProcessorContext
from millstream.testing.driver import TopologyTestDriver
from millstream.testing.kafka import ConsumedRecord, EmbeddedKafka, EmbeddedKafkaError
from millstream.testing.snapshot import DriverSnapshot
from millstream.testing.topics import InputTopic, OutputTopic

__all__ = [
    "ConsumedRecord",
    "DriverSnapshot",
    "EmbeddedKafka",
    "EmbeddedKafkaError",
    "InputTopic",
    "MockProcessorContext",
    "OutputTopic",
    "TopologyTestDriver",
]
