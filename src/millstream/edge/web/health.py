"""``/metrics``, ``/healthz`` and ``/readyz``: the endpoints for Prometheus and Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from typing import Final

from millstream.core.runtime.lifecycle import FINAL, State
from millstream.edge.metrics.application_metrics import Measured, View
from millstream.edge.web.listener import HttpRequest, HttpResponse, Route

_WAIT_S: Final = 10.0
_READY: Final = frozenset({State.RUNNING, State.DRAINING})


class Viewer:
    """Takes views of the application for requests, in one thread, because each thread that calls Spark opens a JVM connection.

    Attributes:
        application: What the next view shows. A standby that is elected is replaced by the application that it runs.
    """

    def __init__(self, application: Measured) -> None:
        self.application = application
        self._thread = ThreadPoolExecutor(1, "millstream-view")

    def now(self) -> View:
        looked: Future[View] = self._thread.submit(View.of, self.application)
        return looked.result(_WAIT_S)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def metrics_routes(viewer: Viewer) -> Mapping[tuple[str, str], Route]:
    from millstream.edge.metrics.exposition import exposition

    def metrics(request: HttpRequest) -> HttpResponse:
        return HttpResponse(*exposition(viewer.now(), request.headers.get("accept", "")))

    return {("GET", "/metrics"): metrics, **health_routes(viewer)}


def health_routes(viewer: Viewer) -> Mapping[tuple[str, str], Route]:

    def healthz(request: HttpRequest) -> HttpResponse:
        state = viewer.now().status.state
        return HttpResponse.text(state, HTTPStatus.SERVICE_UNAVAILABLE if state in FINAL else HTTPStatus.OK)

    def readyz(request: HttpRequest) -> HttpResponse:
        state = viewer.now().status.state
        return HttpResponse.text(state, HTTPStatus.OK if state in _READY else HTTPStatus.SERVICE_UNAVAILABLE)

    return {("GET", "/healthz"): healthz, ("GET", "/readyz"): readyz}
