"""Penstock: a processor client for Apache Kafka (KIP-28) whose pipelines run on Apache Spark.

Building a topology imports neither Spark nor a Kafka client: what needs them is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.core.asynchronous.effects import CallContext
from penstock.core.dsl.branched import BranchedKStream
from penstock.core.dsl.builder import StreamsBuilder
from penstock.core.dsl.cogrouped import CogroupedKStream
from penstock.core.dsl.global_table import GlobalKTable
from penstock.core.dsl.grouped import KGroupedStream
from penstock.core.dsl.join_windows import JoinWindows
from penstock.core.dsl.kstream import KStream
from penstock.core.dsl.ktable import KGroupedTable, KTable
from penstock.core.dsl.windowed import SessionWindowedKStream, TimeWindowedKStream
from penstock.core.engine.policy import ErrorContext, ErrorPolicies
from penstock.core.model import errors, serdes, timestamps
from penstock.core.model.calendars import UnlimitedWindows, Windows
from penstock.core.model.calls import Calls, CircuitBreaker, Retry, dead_letter, delay, retry, skip
from penstock.core.model.errors import PenstockError
from penstock.core.model.expressions import Expression, col, struct
from penstock.core.model.ids import TaskId, TopicPartition
from penstock.core.model.punctuation import Cancellable, PunctuationType, stream_time, wall_clock
from penstock.core.model.record import (
    ConsumerRecord,
    Record,
    RecordContext,
    RecordMetadata,
    ValueAndTimestamp,
)
from penstock.core.model.serdes import Serde
from penstock.core.model.suppressed import Suppressed
from penstock.core.model.windowed import VersionedRecord, Windowed
from penstock.core.model.windows import (
    EmitStrategy,
    HoppingWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    on_window_close,
    on_window_update,
)
from penstock.core.topology import stores
from penstock.core.topology.processor import Processor, ProcessorContext, ValueTransformer
from penstock.core.topology.topology import Topology

if TYPE_CHECKING:
    from penstock import secret, spark, testing
    from penstock.edge.app import Application
    from penstock.edge.running import RunningApplication
    from penstock.edge.status import Status

_LATER = {
    "Application": "penstock.edge.app",
    "RunningApplication": "penstock.edge.running",
    "Status": "penstock.edge.status",
    "secret": "penstock.secret",
    "spark": "penstock.spark",
    "testing": "penstock.testing",
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
    "PenstockError",
    "Processor",
    "ProcessorContext",
    "PunctuationType",
    "Record",
    "RecordContext",
    "RecordMetadata",
    "Retry",
    "RunningApplication",
    "Serde",
    "SessionWindowedKStream",
    "SessionWindows",
    "SlidingWindows",
    "Status",
    "StreamsBuilder",
    "Suppressed",
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
    "dead_letter",
    "delay",
    "errors",
    "on_window_close",
    "on_window_update",
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
    "wall_clock",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    try:
        module = import_module(_LATER[name])
    except ModuleNotFoundError as error:
        from penstock.edge.packages import explained

        raise explained(error, f"ps.{name}") from None
    return getattr(module, name, module)
