"""An admin client that knows why requests get no answer.

librdkafka reports a rejected password or certificate only to a callback, and tries to connect again; the request times out. The
consumer also tries again if it may not see its group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from millstream.drivers.kafka.clients import ClientSettings


class ExplainingAdminClient(AdminClient):
    """An admin client that keeps the last problem of its connections."""

    def __init__(self, settings: ClientSettings) -> None:
        self._problems: list[KafkaError] = []
        # A callback that refers to the client would leave its end to the garbage collector, in any thread.
        noting: dict[str, Any] = {"error_cb": partial(_note, self._problems, settings.get("error_cb"))}
        super().__init__({**settings, **noting})

    def last_problem(self) -> KafkaError | None:
        """Return the last problem since the previous call; None if there was none."""
        self.poll(0)  # calls the callback
        problem = self._problems[-1] if self._problems else None
        self._problems.clear()
        return problem

    def check_group(self, group: str, timeout_s: float) -> None:
        """Ask for a description of a consumer group, if any broker answers.

        Without a connection, librdkafka (issue 4605) may end the process when it describes a group.

        Raises:
            KafkaException: If this user may not see the group, or its coordinator does not answer in time.
        """
        try:
            self.list_topics(timeout=timeout_s)
        except KafkaException:
            return
        self.describe_consumer_groups([group], request_timeout=timeout_s)[group].result()


def _note(
    problems: list[KafkaError], error_cb: Callable[[KafkaError], Any] | None, error: KafkaError
) -> None:
    if error.code() != KafkaError._ALL_BROKERS_DOWN:  # follows from the others
        problems[:] = [error]
    if error_cb is not None:
        error_cb(error)
