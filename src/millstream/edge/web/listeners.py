"""What of an application listens: nothing, unless its settings ask for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

from millstream.core.model.errors import SettingsError
from millstream.edge.settings import Settings

if TYPE_CHECKING:
    from millstream.edge.metrics.application import Measured


class Listeners:
    """The listeners of an application. Their modules are imported only when a setting asks for them.

    Attributes:
        urls: The address of each: ``metrics``.
    """

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self._closing = ExitStack()

    def open(self, application: Measured, settings: Settings, say: Callable[..., None]) -> None:
        """Listen as the settings ask.

        Args:
            application: The application.
            settings: Its settings.
            say: Says where; takes an event, a line, and facts.

        Raises:
            SettingsError: If a package is missing, or a port cannot be listened on.
        """
        if settings.metrics_port is None:
            return
        _check("prometheus_client", "metrics_port", "prometheus")
        from millstream.edge.web.health import Viewer, metrics_routes
        from millstream.edge.web.listener import Listener

        viewer = Viewer(application)
        self._closing.callback(viewer.close)
        listener = Listener(settings.http_host, settings.metrics_port, metrics_routes(viewer))
        self._closing.callback(listener.close)
        self.urls["metrics"] = listener.url
        say("listens", f"metrics at {listener.url}/metrics", metrics=listener.url)

    def close(self) -> None:
        """Stop listening."""
        self._closing.close()


def _check(module: str, setting: str, extra: str) -> None:
    if find_spec(module) is None:
        raise SettingsError(
            f"{setting} needs the package {module.replace('_', '-')}, which is not installed here: pip install "
            f"'millstream[{extra}]'"
        )
