"""The ports of an application: metrics, health and its page. Each is open only if a setting requires it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from millstream.core.model.errors import SettingsError
from millstream.core.topology.plan import Plan
from millstream.edge.settings.settings import Settings

if TYPE_CHECKING:
    from millstream.edge.metrics.application_metrics import Measured
    from millstream.edge.web.health import Viewer
    from millstream.edge.web.page import Shown

_PACKAGES: Final = {"prometheus_client": "prometheus-client", "opentelemetry": "opentelemetry-api"}


class Listeners:
    """The listeners of an application. Their modules are imported only if a setting requires them.

    Attributes:
        urls: The URLs by name: ``metrics`` and ``page``.
    """

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self._closing = ExitStack()

    def open(
        self, application: Shown, settings: Settings, say: Callable[..., None], plan: Callable[[], Plan]
    ) -> None:
        """Open the listeners that the settings require.

        Args:
            say: Logs a URL; its arguments are the event, the text and fields.

        Raises:
            SettingsError: If a package is missing, or a port cannot be opened.
        """
        if settings.metrics_port is not None:
            url = self._metrics(application, settings.http_host, settings.metrics_port)
            say("listens", f"metrics at {url}/metrics", metrics=url)
        if settings.opentelemetry:
            self._telemetry(application)
        if settings.page_port is not None:
            url, file = self._page(application, settings, settings.page_port, plan)
            say("listens", f"page at {url}; its address with the token is in {file}", page=url)

    def _metrics(self, application: Shown, host: str, port: int) -> str:
        _check("prometheus_client", "metrics_port", "prometheus")
        from millstream.edge.web.health import metrics_routes
        from millstream.edge.web.listener import Listener

        listener = Listener(host, port, metrics_routes(self._viewer(application)))
        self._closing.callback(listener.close)
        self.urls["metrics"] = listener.url
        return listener.url

    def _telemetry(self, application: Shown) -> None:
        _check("opentelemetry", "opentelemetry=True", "opentelemetry")
        from millstream.edge.metrics.telemetry import observe

        self._closing.callback(observe(self._viewer(application).now))

    def _page(
        self, application: Shown, settings: Settings, port: int, plan: Callable[[], Plan]
    ) -> tuple[str, str]:
        from millstream.edge.web.listener import Listener
        from millstream.edge.web.page import announce, guard_of, new_token, page_routes

        token = new_token()
        routes = page_routes(application, self._viewer(application), plan, settings.policies)
        listener = Listener(settings.http_host, port, routes, guard_of(token))
        self._closing.callback(listener.close)
        file = announce(settings.home(application.id), listener.url, token)
        self._closing.callback(file.unlink, missing_ok=True)
        self.urls["page"] = listener.url
        return listener.url, str(file)

    def _viewer(self, application: Measured) -> Viewer:
        from millstream.edge.web.health import Viewer

        viewer = Viewer(application)
        self._closing.callback(viewer.close)
        return viewer

    def close(self) -> None:
        self._closing.close()


def _check(module: str, setting: str, extra: str) -> None:
    if find_spec(module) is None:
        raise SettingsError(
            f"{setting} needs the package {_PACKAGES[module]}, which is not installed here: pip install "
            f"'millstream[{extra}]'"
        )
