"""The ports of an application: metrics, health and its page. Each is open only if a setting requires it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from millstream.core.model.errors import SettingsError
from millstream.core.topology.plan import Plan
from millstream.edge.settings.settings import Settings
from millstream.edge.spark.required_packages import is_installed
from millstream.edge.web.page_address import announce, delete_address

if TYPE_CHECKING:
    from millstream.edge.metrics.application_metrics import Measured
    from millstream.edge.web.health import Viewer
    from millstream.edge.web.page import Shown

log = logging.getLogger("millstream.http")

_PACKAGES: Final = {"prometheus_client": "prometheus-client", "opentelemetry.metrics": "opentelemetry-api"}


class Listeners:
    """The listeners of an application. Their modules are imported only if a setting requires them.

    Attributes:
        urls: The URLs by name: ``metrics`` and ``page``.
    """

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self._closing = ExitStack()
        self._measured: Viewer | None = None
        """What the port for metrics shows; None if it is not open."""

    def open(
        self, application: Shown, settings: Settings, say: Callable[..., None], plan: Callable[[], Plan]
    ) -> None:
        """Open the listeners that the settings require, and delete the address of an earlier run's page. The caller holds the lease.

        Args:
            say: Logs a URL; its arguments are the event, the text and fields.

        Raises:
            SettingsError: If a package is missing, or a port cannot be opened.
        """
        delete_address(settings.home(application.id))
        if settings.metrics_port is not None:
            self._metrics(application, settings.http_host, settings.metrics_port, say)
        if settings.opentelemetry:
            self._telemetry(application)
        if settings.page_port is not None:
            url, file = self._page(application, settings, settings.page_port, plan)
            say("listens", f"page at {url}; its address with the token is in {file}", page=url)

    def stand_by(self, standby: Measured, settings: Settings, say: Callable[..., None]) -> None:
        """Open the port for metrics and health, if the settings require it. :meth:`open` lets it show the application of this driver.

        The running driver may be on this host and have the same port. Then the standby waits without it.

        Args:
            say: As for :meth:`open`.

        Raises:
            SettingsError: If a package is missing, or the port cannot be opened for another reason.
        """
        if settings.metrics_port is None:
            return
        from millstream.edge.web.listener import PortInUseError

        try:
            self._metrics(standby, settings.http_host, settings.metrics_port, say)
        except PortInUseError as error:
            log.warning("%s: no metrics and no health while this driver stands by: %s", standby.id, error)

    def _metrics(self, application: Measured, host: str, port: int, say: Callable[..., None]) -> None:
        """Let the port for metrics and health show an application; open it, unless this driver was a standby and has it."""
        if self._measured is not None:
            self._measured.application = application
            return
        _check("prometheus_client", "metrics_port", "prometheus")
        from millstream.edge.web.health import metrics_routes
        from millstream.edge.web.listener import Listener

        viewer = self._viewer(application)
        listener = Listener(host, port, metrics_routes(viewer))
        self._closing.callback(listener.close)
        self._measured, self.urls["metrics"] = viewer, listener.url
        say("listens", f"metrics at {listener.url}/metrics", metrics=listener.url)

    def _telemetry(self, application: Shown) -> None:
        _check("opentelemetry.metrics", "opentelemetry=True", "opentelemetry")
        from millstream.edge.metrics.telemetry import observe

        self._closing.callback(observe(self._viewer(application).now))

    def _page(
        self, application: Shown, settings: Settings, port: int, plan: Callable[[], Plan]
    ) -> tuple[str, str]:
        from millstream.edge.web.listener import Listener
        from millstream.edge.web.page import guard_of, page_routes

        token, home = secrets.token_urlsafe(24), settings.home(application.id)
        routes = page_routes(application, self._viewer(application), plan, settings.policies)
        listener = Listener(settings.http_host, port, routes, guard_of(token))
        self._closing.callback(listener.close)
        file = announce(home, listener.url, token)
        self._closing.callback(delete_address, home)
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
    if not is_installed(module):
        raise SettingsError(
            f"{setting} needs the package {_PACKAGES[module]}, which is not installed here: pip install "
            f"'millstream[{extra}]'"
        )
