"""Metrics for OpenTelemetry. Millstream uses only the API; the program provides the SDK with its exporters and settings.

Instruments of OpenTelemetry cannot be removed, and a process has one instrument per name. Therefore they are created once, and observe
the applications that are currently running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation, get_meter

from millstream.core.metrics.metric import Metric
from millstream.edge.metrics.application_metrics import EXPORTED, View

_FRESH_S: Final = 1.0
_TOTAL: Final = "_total"


class Observed:
    """An observed application. All instruments of one collection read the same view.

    Args:
        look: Returns the current view.
    """

    def __init__(self, look: Callable[[], View]) -> None:
        self._look = look
        self._read_s = float("-inf")
        self._values: Mapping[str, Sequence[tuple[tuple[str, ...], float]]] = {}
        self._application = ""

    def observations(self, metric: Metric) -> Iterable[Observation]:
        if time.monotonic() - self._read_s > _FRESH_S:
            view = self._look()
            self._application, self._values = view.application, view.by_metric()
            self._read_s = time.monotonic()
        for labels, value in self._values.get(metric.name, ()):
            labels_of = dict(zip(metric.labels, labels))
            yield Observation(value, {"application": self._application, **labels_of})


_OBSERVED: Final[list[Observed]] = []


def observe(look: Callable[[], View]) -> Callable[[], None]:
    """Let OpenTelemetry observe an application.

    Returns:
        The function that ends the observation.
    """
    _instruments()
    observed = Observed(look)
    _OBSERVED.append(observed)

    def end() -> None:
        if observed in _OBSERVED:
            _OBSERVED.remove(observed)

    return end


@cache
def _instruments() -> Sequence[object]:
    """Create one instrument per metric. Names of counters omit ``_total``, because exporters for Prometheus add it."""
    meter = get_meter("millstream")
    made: list[object] = []
    for metric in EXPORTED:
        create = (
            meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        )
        made.append(
            create(metric.exported.removesuffix(_TOTAL), [_callback(metric)], description=metric.help)
        )
    return made


def _callback(metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observations(options: CallbackOptions) -> Iterable[Observation]:
        return [observation for observed in list(_OBSERVED) for observation in observed.observations(metric)]

    return observations
