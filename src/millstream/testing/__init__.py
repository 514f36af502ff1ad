"""Tools for testing Millstream programs: a driver that needs no broker, Spark or Java, and an embedded Kafka broker."""

from millstream.testing._java import EmbeddedKafkaError
from millstream.testing._records import ConsumedRecord
from millstream.testing.driver import TopologyTestDriver
from millstream.testing.input_and_output_topics import InputTopic, OutputTopic
from millstream.testing.kafka import EmbeddedKafka
from millstream.testing.mock_context import MockProcessorContext
from millstream.testing.snapshot import DriverSnapshot

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
