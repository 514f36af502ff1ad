"""Penstock: a processor client for Apache Kafka (KIP-28) whose pipelines run on Apache Spark."""

from penstock import testing
from penstock.core.dsl.builder import StreamsBuilder
from penstock.core.dsl.grouped import KGroupedStream
from penstock.core.dsl.kstream import BranchedKStream, KStream
from penstock.core.dsl.ktable import KGroupedTable, KTable
from penstock.core.engine.policy import ErrorPolicies
from penstock.core.model import errors, serdes
from penstock.core.model.errors import PenstockError
from penstock.core.model.ids import TaskId, TopicPartition
from penstock.core.model.punctuation import Cancellable, PunctuationType, stream_time, wall_clock
from penstock.core.model.record import ConsumerRecord, Record, RecordContext, RecordMetadata, ValueAndTimestamp
from penstock.core.model.serdes import Serde
from penstock.core.plan import stores
from penstock.core.plan.processor import Processor, ProcessorContext
from penstock.core.plan.topology import Topology
from penstock.edge.app import Application, RunningApplication
from penstock.edge.status import Status

__all__ = [
    "Application",
    "BranchedKStream",
    "Cancellable",
    "ConsumerRecord",
    "ErrorPolicies",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "PenstockError",
    "Processor",
    "ProcessorContext",
    "PunctuationType",
    "Record",
    "RecordContext",
    "RecordMetadata",
    "RunningApplication",
    "Serde",
    "Status",
    "StreamsBuilder",
    "TaskId",
    "Topology",
    "TopicPartition",
    "ValueAndTimestamp",
    "errors",
    "serdes",
    "stores",
    "stream_time",
    "testing",
    "wall_clock",
]
