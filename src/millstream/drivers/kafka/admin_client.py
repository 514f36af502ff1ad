"""An admin client that knows why requests get no answer.

librdkafka reports a rejected password or certificate only to a callback, and tries to connect again; the request times out. The
consumer also tries again if it may not see its group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from millstream.drivers.kafka.clients import ClientSettings


class ExplainingAdminClient(AdminClient):
    """An admin client that keeps the last problem of its connections."""

    def __init__(self, settings: ClientSettings) -> None:
        self._problem: KafkaError | None = None
        self._error_cb: Callable[[KafkaError], Any] | None = settings.get("error_cb")
        complete: dict[str, Any] = {**settings, "error_cb": self._on_error}
        super().__init__(complete)

    def last_problem(self) -> KafkaError | None:
        """Return the last problem since the previous call; None if there was none."""
        self.poll(0)  # calls the callback
        problem, self._problem = self._problem, None
        return problem

    def check_group(self, group: str, timeout_s: float) -> None:
        """Ask for a description of a consumer group.

        Raises:
            KafkaException: If this user may not see the group, or no broker answers in time.
        """
        self.describe_consumer_groups([group], request_timeout=timeout_s)[group].result()

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # follows from the others
            self._problem = error
        if self._error_cb is not None:
            self._error_cb(error)
