"""The metrics of an application as a whole. ``millstream.drivers.spark.executor.measures`` has the metrics of its tasks.

As there, each row declares a metric and the function that reads its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from millstream.core.metrics.metric import Metric, Number, Numbers
from millstream.core.runtime.lifecycle import State
from millstream.drivers.spark.executor.measures import RESTORING, TASK_METRICS
from millstream.edge.status.application_status import STANDBY, Status
from millstream.edge.status.async_status import CallStatus

STATES: Final = (STANDBY, *State)


class Measured(Protocol):
    """An application whose metrics are shown."""

    id: str

    def status(self) -> Status: ...

    def metrics(self) -> Mapping[str, int]: ...

    def measured(self) -> Numbers: ...


@dataclass(frozen=True)
class View:
    """The status and the metrics of an application at one moment."""

    application: str
    status: Status
    metrics: Mapping[str, int]
    numbers: Numbers

    @classmethod
    def of(cls, application: Measured) -> View:
        return cls(application.id, application.status(), application.metrics(), application.measured())

    def by_metric(self) -> dict[str, list[tuple[tuple[str, ...], float]]]:
        """Return the values of each metric with their labels, except the label ``application``."""
        numbers = Numbers(self.numbers)
        numbers.take(_read(self))
        found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        for (name, labels), value in sorted(numbers.items()):
            found.setdefault(name, []).append((labels, value))
        return found


class MetricsReading(NamedTuple):
    """A metric of an application, with the function that reads its values from a view."""

    metric: Metric
    of: Callable[[View], Iterable[tuple[tuple[str, ...], float]]]


def _per_name(values: Mapping[str, float]) -> Iterable[tuple[tuple[str, ...], float]]:
    return [((name,), value) for name, value in values.items()]


def _unlabelled(value: float | None) -> Iterable[tuple[tuple[str, ...], float]]:
    return [] if value is None else [((), value)]


def _calls(view: View, figure: Callable[[CallStatus], float]) -> Iterable[tuple[tuple[str, ...], float]]:
    return _per_name({task: figure(calls) for task, calls in view.status.calls.items()})


def _waiting_calls(view: View) -> Iterable[tuple[tuple[str, ...], float]]:
    for task, calls in view.status.calls.items():
        yield from (((task, reason), count) for reason, count in calls.reasons.items())


def _ceilings(view: View) -> Iterable[tuple[tuple[str, ...], float]]:
    for task, calls in view.status.calls.items():
        for operator, key in calls.hottest.items():
            if key.ceiling_per_s is not None:
                yield (task, operator), key.ceiling_per_s


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


_WHOLE: Final = (
    MetricsReading(
        Metric("state", ("state",), "1 for the state of the application, 0 for the others", "state"),
        lambda view: [((state,), float(state == view.status.state)) for state in STATES],
    ),
    MetricsReading(
        Metric("tasks", (), "tasks that have reported so far", "task-created-total"),
        lambda view: _unlabelled(view.status.tasks),
    ),
    MetricsReading(
        Metric("workers", (), "Spark partitions that run the tasks", "alive-stream-threads"),
        lambda view: _unlabelled(view.status.workers),
    ),
    MetricsReading(
        Metric(
            "commit_total",
            (),
            "number of the last micro-batch plus one, counted over the life of the checkpoint",
            "commit-total",
        ),
        lambda view: _unlabelled(view.metrics["batches"]),
    ),
    MetricsReading(
        Metric(
            "commit_latency_seconds",
            (),
            "duration of the last micro-batch, from plan to commit; absent before the first",
            "commit-latency",
        ),
        lambda view: _unlabelled(view.status.batch_s),
    ),
    MetricsReading(
        Metric(
            "last_commit_timestamp_seconds",
            (),
            "when the last micro-batch was reported, seconds since the epoch; absent before the first",
        ),
        lambda view: _unlabelled(_seconds(view.metrics.get("last_batch_ms"))),
    ),
    MetricsReading(
        Metric("task_runs_total", (), "runs of tasks: one per task and micro-batch with work for it"),
        lambda view: _unlabelled(view.metrics["task_runs"]),
    ),
    MetricsReading(
        Metric("task_moved_total", (), "runs of tasks on another executor than before"),
        lambda view: _unlabelled(view.metrics["moved_tasks"]),
    ),
    MetricsReading(
        Metric("waiting_tasks", (), "tasks that have records and wait for another input"),
        lambda view: _unlabelled(len(view.status.waiting)),
    ),
)

_TOPICS: Final = (
    MetricsReading(
        Metric(
            "topic_records_lag",
            ("topic",),
            "records in the topic that are not processed, or not finished by asynchronous operators",
            "records-lag",
        ),
        lambda view: _per_name(view.status.lag),
    ),
    MetricsReading(
        Metric("topic_paused", ("topic",), "1 for a topic that is paused; absent for others"),
        lambda view: _per_name(dict.fromkeys(view.status.paused, 1)),
    ),
    MetricsReading(
        Metric(
            "topic_records_per_second_limit",
            ("topic",),
            "maximum records per second of a topic that is throttled; absent for others",
        ),
        lambda view: _per_name(view.status.throttled),
    ),
    MetricsReading(
        Metric(
            "throttled_seconds_total",
            (),
            "time during which a throttled topic had more records than its limit allowed, summed over topics",
        ),
        lambda view: _unlabelled(_seconds(view.metrics["throttled_ms"])),
    ),
)

_CALLS: Final = (
    MetricsReading(
        Metric("task_calls_running", ("task",), "running calls of asynchronous operators"),
        lambda view: _calls(view, lambda calls: calls.running),
    ),
    MetricsReading(
        Metric(
            "task_calls_waiting",
            ("task", "reason"),
            "in-flight records whose call waits, by reason: retry, delay, key (earlier records of the key), "
            "limit (max_in_flight), rate (rate limit), breaker (open circuit breaker), time (due within two seconds)",
        ),
        _waiting_calls,
    ),
    MetricsReading(
        Metric("task_event_loop_lag_seconds", ("task",), "recent delay of the event loop of an async worker"),
        lambda view: _calls(view, lambda calls: calls.loop_lag_ms / 1000),
    ),
    MetricsReading(
        Metric(
            "operator_records_per_second_ceiling",
            ("task", "operator"),
            "maximum records per second, of all keys together, that the hottest key allows; absent until known",
        ),
        _ceilings,
    ),
    MetricsReading(
        Metric(
            "task_thread_records_total",
            ("task",),
            "records whose functions were called by threads, for tasks that have several",
        ),
        lambda view: _per_name(
            {task: sum(threads.executed) for task, threads in view.status.threads.items()}
        ),
    ),
)

READINGS: Final = (*_WHOLE, *_TOPICS, *_CALLS)

EXPORTED: Final = (*(reading.metric for reading in READINGS), *TASK_METRICS, RESTORING)
"""All exported metrics."""


def _read(view: View) -> Iterator[Number]:
    for metric, of in READINGS:
        for labels, value in of(view):
            yield metric.name, labels, value
