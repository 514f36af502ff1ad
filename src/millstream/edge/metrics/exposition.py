"""The text that Prometheus scrapes. Needs the extra ``prometheus``."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from millstream.edge.metrics.application_metrics import EXPORTED, View


def exposition(view: View, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics of an application in a text format of Prometheus, and its content type.

    Args:
        accept: The request's ``Accept`` header, which determines the format.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(view))
    encoder, kind = choose_encoder(accept)
    return encoder(registry), kind


class _Families(Collector):
    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        found = self._view.by_metric()
        for metric in EXPORTED:
            if metric.name in found:
                names, samples = ["application", *metric.labels], found[metric.name]
                kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = kind(metric.exported, metric.help, labels=names)
                for labels, value in samples:
                    family.add_metric([self._view.application, *labels], value)
                yield family
