"""Millstream: a processor client for Apache Kafka (KIP-28) whose pipelines run on Apache Spark.

Building a topology imports neither Spark nor a Kafka client: modules that need them are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millstream import serdes
from millstream.core.asynchronous.effects import CallContext
from millstream.core.dsl.branched import BranchedKStream
from millstream.core.dsl.builder import StreamsBuilder
from millstream.core.dsl.cogrouped import CogroupedKStream
from millstream.core.dsl.global_table import GlobalKTable
from millstream.core.dsl.grouped import KGroupedStream
from millstream.core.dsl.join_windows import JoinWindows
from millstream.core.dsl.kstream import KStream
from millstream.core.dsl.ktable import KGroupedTable, KTable
from millstream.core.dsl.windowed_streams import SessionWindowedKStream, TimeWindowedKStream
from millstream.core.engine.policy import ErrorContext, ErrorPolicies, Retrying
from millstream.core.model import errors, timestamps
from millstream.core.model.answers import dead_letter, delay, retry, skip
from millstream.core.model.calendars import UnlimitedWindows, Windows
from millstream.core.model.calls import Calls, CircuitBreaker, Retry
from millstream.core.model.errors import MillstreamError
from millstream.core.model.expressions import Expression, col, struct
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import (
    Record,
    RecordContext,
    RecordMetadata,
    ValueAndTimestamp,
)
from millstream.core.model.serdes import Serde
from millstream.core.model.suppressed import Suppressed
from millstream.core.model.timestamps import ConsumerRecord
from millstream.core.model.windowed import VersionedRecord, Windowed
from millstream.core.model.windows import (
    EmitStrategy,
    HoppingWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    on_window_close,
    on_window_update,
)
from millstream.core.topology import stores
from millstream.core.topology.processor import (
    Cancellable,
    Processor,
    ProcessorContext,
    PunctuationType,
    ValueTransformer,
    stream_time,
    wall_clock,
)
from millstream.core.topology.topology import Topology

if TYPE_CHECKING:
    from millstream import secret, spark, testing, tracing
    from millstream.edge.application.application import Application
    from millstream.edge.application.running_application import RunningApplication
    from millstream.edge.lab.lab import Lab
    from millstream.edge.queries.remote_application import RemoteApplication, connect
    from millstream.edge.queries.stopped import read_store
    from millstream.edge.queries.store_reader import StoreReader
    from millstream.edge.status.application_status import Status
    from millstream.edge.taps.tap import Tap
    from millstream.edge.taps.tap_buffers import TapRecord

_LATER = {
    "Application": "millstream.edge.application.application",
    "KeyRangeProducer": "millstream.drivers.kafka.fanout.key_range_producer",
    "Lab": "millstream.edge.lab.lab",
    "RemoteApplication": "millstream.edge.queries.remote_application",
    "RunningApplication": "millstream.edge.application.running_application",
    "Status": "millstream.edge.status.application_status",
    "StoreReader": "millstream.edge.queries.store_reader",
    "Tap": "millstream.edge.taps.tap",
    "TapRecord": "millstream.edge.taps.tap_buffers",
    "connect": "millstream.edge.queries.remote_application",
    "read_store": "millstream.edge.queries.stopped",
    "secret": "millstream.secret",
    "spark": "millstream.spark",
    "testing": "millstream.testing",
    "tracing": "millstream.tracing",
}

__all__ = [
    "Application",
    "BranchedKStream",
    "CallContext",
    "Calls",
    "Cancellable",
    "CircuitBreaker",
    "CogroupedKStream",
    "ConsumerRecord",
    "EmitStrategy",
    "ErrorContext",
    "ErrorPolicies",
    "Expression",
    "GlobalKTable",
    "HoppingWindows",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KeyRangeProducer",
    "Lab",
    "MillstreamError",
    "Processor",
    "ProcessorContext",
    "PunctuationType",
    "Record",
    "RecordContext",
    "RecordMetadata",
    "RemoteApplication",
    "Retry",
    "Retrying",
    "RunningApplication",
    "Serde",
    "SessionWindowedKStream",
    "SessionWindows",
    "SlidingWindows",
    "Status",
    "StoreReader",
    "StreamsBuilder",
    "Suppressed",
    "Tap",
    "TapRecord",
    "TaskId",
    "TimeWindowedKStream",
    "TopicPartition",
    "Topology",
    "TumblingWindows",
    "UnlimitedWindows",
    "ValueAndTimestamp",
    "ValueTransformer",
    "VersionedRecord",
    "Windowed",
    "Windows",
    "col",
    "connect",
    "dead_letter",
    "delay",
    "errors",
    "on_window_close",
    "on_window_update",
    "read_store",
    "retry",
    "secret",
    "serdes",
    "skip",
    "spark",
    "stores",
    "stream_time",
    "struct",
    "testing",
    "timestamps",
    "tracing",
    "wall_clock",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'millstream' has no attribute {name!r}")
    try:
        module = import_module(_LATER[name])
    except ModuleNotFoundError as error:
        from millstream.edge.spark.required_packages import explained

        raise explained(error, f"ms.{name}") from None
    return getattr(module, name, module)
