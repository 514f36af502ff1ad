"""What programs of Millstream are tested with: a driver without broker, Spark or Java, and a real broker for the rest."""

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
