"""Metric declarations. A metric is declared once, beside the function that reads its value; everything else follows from the declaration.

Numbers travel in a single map, from the name of a metric and the values of its labels to a number. The suffix of the name determines how
numbers of the same metric and labels are combined, as is usual in Prometheus: ``_total`` adds, ``_max`` keeps the largest, and any other
name keeps the last value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "millstream_"

Kind = Literal["counter", "peak", "gauge"]
Key = tuple[str, tuple[str, ...]]
"""The name of a metric, and the values of its labels in the declared order."""
Number = tuple[str, tuple[str, ...], float]

_TOTAL: Final = "_total"
_MAX: Final = "_max"


@dataclass(frozen=True)
class Metric:
    """The declaration of a metric.

    Attributes:
        name: Name without ``millstream_``. For metrics of Kafka Streams, group and name.
        labels: Names of the labels. ``application`` is added when metrics leave the process.
        streams: The corresponding metric of Kafka Streams; empty if there is none.
        flat: Name in ``RunningApplication.metrics()``, summed over labels; empty to omit the metric.
        part: The label for which ``metrics()`` also contains ``<flat>: <value>``, or only that if ``whole`` is false.

    Example:
        >>> Metric("task_process_total", ("task",), "records processed").kind
        'counter'
    """

    name: str
    labels: tuple[str, ...]
    help: str
    streams: str = ""
    flat: str = ""
    part: str = ""
    whole: bool = True

    @property
    def kind(self) -> Kind:
        return kind_of(self.name)

    @property
    def exported(self) -> str:
        return PREFIX + self.name


def kind_of(name: str) -> Kind:
    if name.endswith(_TOTAL):
        return "counter"
    return "peak" if name.endswith(_MAX) else "gauge"


class Numbers(dict[Key, float]):
    """Numbers by metric and labels.

    Example:
        >>> numbers = Numbers()
        >>> numbers.take([("read_total", ("0_0",), 2), ("size_max", (), 5), ("open", (), 7)])
        >>> numbers.take([("read_total", ("0_0",), 3), ("size_max", (), 4), ("open", (), 1)])
        >>> sorted(numbers.values())
        [1, 5, 5]
    """

    def take(self, numbers: Iterable[Number]) -> None:
        """Add numbers. Numbers of the same metric and labels are combined by kind."""
        for name, labels, value in numbers:
            key, kind = (name, labels), kind_of(name)
            if kind == "counter":
                self[key] = self.get(key, 0) + value
            else:
                self[key] = max(self.get(key, value), value) if kind == "peak" else value

    def rows(self) -> list[Number]:
        return [(name, labels, value) for (name, labels), value in self.items()]

    def of(self, name: str) -> dict[tuple[str, ...], float]:
        return {labels: value for (known, labels), value in self.items() if known == name}

    def total(self, name: str) -> float:
        """Return one number for a metric: the largest for a peak, otherwise the sum."""
        found = self.of(name).values()
        return max(found, default=0) if kind_of(name) == "peak" else sum(found)

    def by(self, name: str, label: int) -> dict[str, float]:
        """Return the sums of a metric by the value of the label at an index, sorted."""
        found: dict[str, float] = {}
        for labels, value in sorted(self.of(name).items()):
            found[labels[label]] = found.get(labels[label], 0) + value
        return found


def total_of(numbers: Iterable[Number], name: str) -> float:
    return sum(value for known, _, value in numbers if known == name)


def without_labels(metrics: Collection[Metric], numbers: Numbers) -> dict[str, int]:
    """Return numbers without labels, under their names in ``RunningApplication.metrics()``.

    Example:
        >>> drops = Metric("drop_total", ("task", "reason"), "", flat="dropped", part="reason")
        >>> without_labels([drops], Numbers({("drop_total", ("0_0", "late")): 2, ("drop_total", ("0_1", "late")): 1}))
        {'dropped': 3, 'dropped: late': 3}
    """
    found: dict[str, int] = {}
    for metric in metrics:
        if metric.flat and metric.whole:
            found[metric.flat] = round(numbers.total(metric.name))
        if metric.part:
            parts = numbers.by(metric.name, metric.labels.index(metric.part))
            found |= {f"{metric.flat}: {part}": round(value) for part, value in parts.items()}
    return found


def summed(numbers: Iterable[Mapping[Key, float]]) -> Numbers:
    found = Numbers()
    for each in numbers:
        found.take((name, labels, value) for (name, labels), value in each.items())
    return found
