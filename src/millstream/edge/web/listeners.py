"""The ports of an application: metrics, health and its page. Each is open only if a setting requires it."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.core.model.errors import SettingsError
from millstream.core.topology.plan import Plan
from millstream.edge.application.periodic_task import PeriodicTask
from millstream.edge.settings.settings import Settings
from millstream.edge.spark.required_packages import is_installed
from millstream.edge.web.page_address import announce, delete_address

if TYPE_CHECKING:
    from millstream.edge.metrics.application_metrics import Measured
    from millstream.edge.web.health import Viewer
    from millstream.edge.web.listener import Listener
    from millstream.edge.web.page import Shown

log = logging.getLogger("millstream.http")

_RETRY_S: Final = 5.0
_PACKAGES: Final = {"prometheus_client": "prometheus-client", "opentelemetry.metrics": "opentelemetry-api"}


class Listeners:
    """The listeners of an application. Their modules are imported only if a setting requires them.

    Attributes:
        urls: The URLs by name: ``metrics`` and ``page``.
        takes_over: Whether another driver ran the application while this one stood by. On the same host, that driver may still have the
            ports, for example while it is suspended.
    """

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self.takes_over = False
        self._closing = ExitStack()
        self._closed = False
        self._lock = threading.Lock()
        """Held while a port is opened later, in another thread, and while everything is closed."""
        self._measured: Viewer | None = None
        """What the port for metrics shows; None if it is not open."""

    def open(
        self, application: Shown, settings: Settings, say: Callable[..., None], plan: Callable[[], Plan]
    ) -> None:
        """Open the listeners that the settings require, and delete the address of an earlier run's page. The caller holds the lease.

        A driver that takes over does not fail because of a port that is in use: it opens the port later.

        Args:
            say: Logs a URL; its arguments are the event, the text and fields.

        Raises:
            SettingsError: If a package is missing, or a port cannot be opened.
        """
        delete_address(settings.home(application.id))
        if settings.metrics_port is not None:
            self._open_port(
                partial(self._metrics, application, settings.http_host, settings.metrics_port, say)
            )
        if settings.opentelemetry:
            self._telemetry(application)
        if settings.page_port is not None:
            self._open_port(partial(self._page, application, settings, settings.page_port, say, plan))

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

    def _open_port(self, listen: Callable[[], None]) -> None:
        """Open a port now; in a driver that takes over, as soon as it is free.

        Raises:
            SettingsError: As for :meth:`open`.
        """
        from millstream.edge.web.listener import PortInUseError

        try:
            listen()
        except PortInUseError:
            if not self.takes_over:
                raise
            self._open_later(listen)

    def _open_later(self, listen: Callable[[], None]) -> None:
        def retry() -> None:
            with self._lock:
                if not self._closed:
                    listen()
            task.close()

        task = PeriodicTask(retry, _RETRY_S)
        self._closing.callback(task.close)
        task.wake()  # it logs why it fails

    def _metrics(self, application: Measured, host: str, port: int, say: Callable[..., None]) -> None:
        """Let the port for metrics and health show an application; open it, unless this driver was a standby and has it."""
        if self._measured is not None:
            self._measured.application = application
            return
        _check("prometheus_client", "metrics_port", "prometheus")
        from millstream.edge.web.health import Viewer, metrics_routes
        from millstream.edge.web.listener import Listener

        viewer = Viewer(application)
        listener = Listener(host, port, metrics_routes(viewer))
        self._close_later(listener, viewer)
        self._measured, self.urls["metrics"] = viewer, listener.url
        say("listens", f"metrics at {listener.url}/metrics", metrics=listener.url)

    def _telemetry(self, application: Shown) -> None:
        _check("opentelemetry.metrics", "opentelemetry=True", "opentelemetry")
        from millstream.edge.metrics.telemetry import observe
        from millstream.edge.web.health import Viewer

        viewer = Viewer(application)
        self._closing.callback(viewer.close)
        self._closing.callback(observe(viewer.now))

    def _page(
        self,
        application: Shown,
        settings: Settings,
        port: int,
        say: Callable[..., None],
        plan: Callable[[], Plan],
    ) -> None:
        from millstream.edge.web.health import Viewer
        from millstream.edge.web.listener import Listener
        from millstream.edge.web.page import guard_of, page_routes

        token, home, viewer = secrets.token_urlsafe(24), settings.home(application.id), Viewer(application)
        routes = page_routes(application, viewer, plan, settings.policies)
        listener = Listener(settings.http_host, port, routes, guard_of(token))
        self._close_later(listener, viewer)
        file = announce(home, listener.url, token)
        self._closing.callback(delete_address, home)
        self.urls["page"] = listener.url
        say(
            "listens",
            f"page at {listener.url}; its address with the token is in {file}",
            page=listener.url,
        )

    def _close_later(self, listener: Listener, viewer: Viewer) -> None:
        self._closing.callback(viewer.close)
        self._closing.callback(listener.close)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._closing.close()


def _check(module: str, setting: str, extra: str) -> None:
    if not is_installed(module):
        raise SettingsError(
            f"{setting} needs the package {_PACKAGES[module]}, which is not installed here: pip install "
            f"'millstream[{extra}]'"
        )
