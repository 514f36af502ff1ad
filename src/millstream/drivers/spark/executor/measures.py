"""Measures: the metrics of tasks. Each row declares one metric and reads its value from a step. No other code lists the metrics.

A task's report carries the values to the application. The application combines them by name (``millstream.core.metrics.metric``) and
shows them in ``RunningApplication.metrics()``, Prometheus, OpenTelemetry and its page. A test compares ``docs/reference/metrics.md`` with
the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millstream.core.asynchronous.operator_state import CallFigures
from millstream.core.engine.step_outcome import Outcome, TaskMetrics
from millstream.core.metrics.metric import Metric, Number
from millstream.core.ports import store_of
from millstream.core.state.segments.log import Manifest
from millstream.drivers.spark.executor.global_restore import GlobalRestoreCounts

REMOVED: Final = "unfinished record of a removed operator"
"""The drop reason of in-flight records of a removed asynchronous operator."""

_NOTHING: Final = Outcome((), {}, {}, None, -1, commit_requested=False, metrics=TaskMetrics())


@dataclass(frozen=True)
class StepFacts:
    """What a task did in a micro-batch. The input of the measures.

    Attributes:
        removed: In-flight records of removed operators, by store.
        restored: Changes applied from the log to the local copies, except those of the previous micro-batch.
        manifest: The log of the task's stores. None if it has no log.
        seconds: Time of the task on its executor, including restore, sends and writes.
    """

    task: str
    outcome: Outcome = _NOTHING
    read: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    restored_global: GlobalRestoreCounts = field(default_factory=GlobalRestoreCounts)
    removed: Mapping[str, int] = field(default_factory=dict)
    restored: int = 0
    manifest: Manifest | None = None
    stores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0


Values = Iterable[tuple[tuple[str, ...], float]]
"""Label values and the metric's value."""


class Measure(NamedTuple):
    """A metric of tasks, with the function that reads it from a step. Counters of 0 are not reported."""

    metric: Metric
    of: Callable[[StepFacts], Values]


READ: Final = "topic_records_consumed_total"
READ_BYTES: Final = "topic_bytes_consumed_total"
PROCESSED: Final = "task_process_total"
SECONDS: Final = "task_process_seconds_total"
STORE_BYTES: Final = "store_bytes"
DROPPED: Final = "task_dropped_records_total"
ENFORCED: Final = "task_enforced_processing_total"

_TASK: Final = ("task",)
_TOPIC: Final = ("task", "topic")
_STORE: Final = ("task", "store")
_OPERATOR: Final = ("task", "operator")


def _of_task(step: StepFacts, value: float) -> Values:
    return [((step.task,), value)]


def _per_label(step: StepFacts, values: Mapping[str, float]) -> Values:
    return [((step.task, name), value) for name, value in values.items()]


def _calls(step: StepFacts, figure: Callable[[CallFigures], float | None]) -> Values:
    values = ((operator, figure(calls)) for operator, calls in step.outcome.calls.items())
    return [((step.task, operator), value) for operator, value in values if value is not None]


def _drops(step: StepFacts) -> Values:
    yield from (((step.task, reason), count) for reason, count in step.outcome.metrics.dropped.items())
    yield from step.restored_global.dropped.items()


def _sent_records(outcome: Outcome) -> Mapping[str, float]:
    sent: Counter[str] = Counter()
    for topic, records in outcome.sends:
        sent[topic] += len(records)
    return sent


def _buffered(outcome: Outcome) -> Mapping[str, float]:
    records: Counter[str] = Counter()
    for queue, size in outcome.buffered.items():
        records[queue.partition.topic] += size.records
    return records


def _store_bytes(manifest: Manifest | None) -> Mapping[str, float]:
    sizes: Counter[str] = Counter()
    for group, segments in ({} if manifest is None else manifest.segments).items():
        sizes[store_of(group[0])] += sum(segment.size for segment in segments)
    return sizes


def _store_changes(outcome: Outcome) -> Mapping[str, float]:
    changes: Counter[str] = Counter()
    for byte_store, changed in outcome.changes.items():
        changes[store_of(byte_store)] += len(changed)
    return changes


_RECORDS: Final = (
    Measure(
        Metric(READ, _TOPIC, "records read from topics", "records-consumed-total", "read_records"),
        lambda step: _per_label(step, {topic: records for topic, (records, _) in step.read.items()}),
    ),
    Measure(
        Metric(READ_BYTES, _TOPIC, "bytes of their keys and values", "bytes-consumed-total", "read_bytes"),
        lambda step: _per_label(step, {topic: size for topic, (_, size) in step.read.items()}),
    ),
    Measure(
        Metric(
            PROCESSED,
            _TASK,
            "records taken from the queues of tasks; a record that crosses a repartition counts once on each side",
            "process-total",
            "processed_records",
        ),
        lambda step: _of_task(step, step.outcome.metrics.processed),
    ),
    Measure(
        Metric(
            "task_combined_records_total",
            _TASK,
            "processed records that a reader combined with a later record of the same key",
            "",
            "combined_records",
        ),
        lambda step: _of_task(step, step.outcome.metrics.combined),
    ),
    Measure(
        Metric(
            "topic_records_produced_total",
            _TOPIC,
            "records passed to sinks, including those of repartitions",
            "records-produced-total",
            "sent_records",
        ),
        lambda step: _per_label(step, _sent_records(step.outcome)),
    ),
    Measure(
        Metric(
            DROPPED,
            ("task", "reason"),
            "records dropped on purpose",
            "dropped-records-total",
            "dropped_records",
            part="reason",
        ),
        _drops,
    ),
    Measure(
        Metric(
            "processor_count_total",
            ("task", "name"),
            "counts of processors with `context.count(name)`. Excludes processors of global stores",
            "sensors of the user",
            "counted",
            part="name",
            whole=False,
        ),
        lambda step: _per_label(step, step.outcome.metrics.counted),
    ),
)

_FAILED: Final = Measure(
    Metric(
        "operator_failed_records_total",
        _OPERATOR,
        "records that failed in an operator, under the policies `skip` and `dead_letter`",
    ),
    lambda step: _per_label(step, step.outcome.metrics.failed),
)

_TASKS: Final = (
    Measure(
        Metric(
            SECONDS,
            _TASK,
            "execution time of tasks on their executors, including restores, sends and writes",
            "process-latency",
        ),
        lambda step: _of_task(step, step.seconds),
    ),
    Measure(
        Metric(
            ENFORCED,
            _TASK,
            "records processed while an empty input could still have had an earlier one",
            "enforced-processing-total, which counts calls",
            "enforced_records",
        ),
        lambda step: _of_task(step, step.outcome.metrics.enforced),
    ),
    Measure(
        Metric(
            "task_active_buffer_count",
            _TOPIC,
            "records that are buffered now because tasks wait for another input",
            "active-buffer-count",
            "buffered_records",
        ),
        lambda step: _per_label(step, _buffered(step.outcome)),
    ),
    Measure(
        Metric(
            "task_active_buffer_count_max",
            (),
            "maximum number of buffered records of one partition at the end of a micro-batch",
            "",
            "buffered_records_max",
        ),
        lambda step: [((), max((queue.records for queue in step.outcome.buffered.values()), default=0))],
    ),
    Measure(
        Metric("task_punctuate_total", _TASK, "punctuator calls", "punctuate-total", "punctuations"),
        lambda step: _of_task(step, step.outcome.metrics.punctuated),
    ),
    Measure(
        Metric(
            "task_stream_time_seconds",
            _TASK,
            "stream time, seconds since the epoch; absent until a record has been seen",
            "record-lateness, which is relative to it",
        ),
        lambda step: _of_task(step, ms / 1000) if (ms := step.outcome.stream_time_ms) >= 0 else (),
    ),
)

_STATE: Final = (
    Measure(
        Metric(
            "task_merged_updates_total",
            _TASK,
            "table updates that were not forwarded because a later update of the same row was",
            "",
            "merged_updates",
        ),
        lambda step: _of_task(step, step.outcome.metrics.merged),
    ),
    Measure(
        Metric(
            "task_cache_size_bytes_max",
            (),
            "maximum size of the caches of one task, approximately",
            "cache-size-bytes-total, which is the current size",
            "cache_bytes_max",
        ),
        lambda step: [((), step.outcome.metrics.cache_bytes)],
    ),
    Measure(
        Metric(
            "task_restore_total",
            _TASK,
            "changes fetched from the log to update local copies; 0 unless a local copy was lost",
            "restore-total",
            "restored_changes",
        ),
        lambda step: _of_task(step, step.restored),
    ),
    Measure(
        Metric(
            "task_global_records_total",
            _TASK,
            "records read into copies of global stores, on each host",
            "",
            "global_records",
        ),
        lambda step: _of_task(step, step.restored_global.records),
    ),
    Measure(
        Metric(
            STORE_BYTES, _STORE, "compressed size of the log", "total-sst-files-size, nearly", "state_bytes"
        ),
        lambda step: _per_label(step, _store_bytes(step.manifest)),
    ),
    Measure(
        Metric(
            "store_changes_total",
            _STORE,
            "rows that micro-batches changed; a row that a micro-batch changes several times counts once",
            "put-rate",
        ),
        lambda step: _per_label(step, _store_changes(step.outcome)),
    ),
)

_CALLS: Final = (
    Measure(
        Metric("operator_calls_total", _OPERATOR, "completed attempts of calls"),
        lambda step: _calls(step, lambda calls: calls.settled),
    ),
    Measure(
        Metric("operator_call_retries_total", _OPERATOR, "attempts that were followed by another"),
        lambda step: _calls(step, lambda calls: calls.retries),
    ),
    Measure(
        Metric(
            "operator_dead_letters_total",
            _OPERATOR,
            "records whose call failed for good and that were sent to a dead-letter topic",
        ),
        lambda step: _calls(step, lambda calls: calls.dead_letters),
    ),
    Measure(
        Metric("operator_unfinished_records", _OPERATOR, "in-flight records of asynchronous operators"),
        lambda step: _calls(step, lambda calls: calls.unfinished),
    ),
    Measure(
        Metric(
            "operator_oldest_record_timestamp_seconds",
            _OPERATOR,
            "when the oldest in-flight record arrived, seconds since the epoch; absent without one",
        ),
        lambda step: _calls(step, lambda calls: None if calls.oldest_ms is None else calls.oldest_ms / 1000),
    ),
)

MEASURES: Final = (*_RECORDS, _FAILED, *_TASKS, *_STATE, *_CALLS)

TASK_METRICS: Final = tuple(measure.metric for measure in MEASURES)

RESTORING: Final = Metric(
    "task_restore_remaining_records",
    _STORE,
    "records that a running restore still has to apply; absent without one",
    "restore-remaining-records-total",
)
"""Reported during a micro-batch by ``millstream.drivers.spark.executor.restore_progress``."""

OF_EACH_TASK: Final = tuple(
    metric for metric in TASK_METRICS if metric.labels == _TASK and metric.kind == "counter"
)
"""The counters that every task reports from its first report on."""


def measured(step: StepFacts) -> list[Number]:
    return list(_measured(step))


def _measured(step: StepFacts) -> Iterator[Number]:
    if removed := sum(step.removed.values()):
        yield DROPPED, (step.task, REMOVED), removed
    for metric, of in MEASURES:
        for labels, value in of(step):
            if value or metric.kind == "gauge":
                yield metric.name, labels, value
