"""What programs of Penstock are tested with: a driver without broker, Spark or Java, and a real broker for the rest."""

from penstock.testing.context import MockProcessorContext
from penstock.testing.driver import TopologyTestDriver
from penstock.testing.kafka import ConsumedRecord, EmbeddedKafka, EmbeddedKafkaError
from penstock.testing.snapshot import DriverSnapshot
from penstock.testing.topics import InputTopic, OutputTopic

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
