"""The stores and the status of an application in another process of this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from millstream.core.model.errors import ControlError
from millstream.core.model.topics import checked_name
from millstream.core.queries.question import Answer, Question
from millstream.edge.control.control_client import ask, send
from millstream.edge.control.control_file import has_ended_in_order
from millstream.edge.lab.display_rows import Rows
from millstream.edge.queries.store_reader import StoreReader
from millstream.edge.settings.settings_loading import settings_from
from millstream.edge.taps.tap import DEFAULT_LIMIT, Tap
from millstream.edge.taps.tap_buffers import QUESTION as TAP_QUESTION

QUESTION: Final = "store"
"""The name of requests about stores; their data is a question, or None for the list of stores."""
RECORDS_QUESTION: Final = "records"
"""The name of requests for the last records of a topic; their data is the topic and the number of records per partition."""
_TAP_LEASE_S: Final = 300.0


class RemoteApplication:
    """An application in another process; safe to use from several threads. Created by :func:`connect`, which has an example.

    Args:
        application_id: The application's id.
        home: The application's directory.

    Source: interactive queries of a remote instance (KIP-67).
    """

    def __init__(self, application_id: str, home: Path) -> None:
        self.id = application_id
        self._home = home

    def store(
        self, name: str, *, timestamps: bool = False, max_lag: int | None = None
    ) -> StoreReader[Any, Any]:
        """Return a reader of a store; see :meth:`RunningApplication.store`.

        Args:
            name: The name of the store.
            timestamps: Whether to return values of a timestamped store as ``ValueAndTimestamp``.
            max_lag: The maximum number of unprocessed records in the topics of the store; None for no limit.

        Returns:
            The reader. Its methods raise ``ControlError`` if the application does not answer.
        """
        return StoreReader(name, self.ask, timestamps=timestamps, max_lag=max_lag)

    def stores(self) -> Mapping[str, str]:
        """Return the queryable stores.

        Returns:
            Kind, such as ``key-value``, by name of the store.

        Raises:
            ControlError: If the application does not answer.
        """
        stores: dict[str, str] = self._ask(QUESTION, None)
        return stores

    def ask(self, question: Question) -> Answer:
        """Ask a question about a store; :class:`StoreReader` asks it.

        Args:
            question: The store, a method and its arguments.

        Returns:
            The value, with the micro-batch, offsets and lag to which it belongs.

        Raises:
            ControlError: If the application does not answer, or the answer contains a class that this process cannot import.
            StoreError: If the store cannot answer.
        """
        answer: Answer = self._ask(QUESTION, question)
        return answer

    def read(self, topic: str, last: int = 20) -> Rows:
        """Return the last records of each partition of a topic of the application, read with its serdes.

        Args:
            topic: The name of the topic.
            last: The number of records per partition.

        Returns:
            Rows as of :meth:`RunningApplication.read`.

        Raises:
            ControlError: If the application does not answer, or a record contains a class that this process cannot import.
            TopicNotFoundError: If the topic does not exist, or the topology neither writes nor reads it.
        """
        rows: Rows = self._ask(RECORDS_QUESTION, (topic, last))
        return rows

    def status(self) -> Mapping[str, Any]:
        """Return what the application is doing, as plain data; see ``ms.Status``.

        Raises:
            ControlError: If the application does not answer.
        """
        return asdict(send(self._home, self.id, "status"))

    def tap(self, node: str, *, limit: int = DEFAULT_LIMIT) -> Tap:
        """Sample the records that reach a node; see :meth:`RunningApplication.tap`.

        Args:
            node: The name of the node.
            limit: How many of the newest samples are kept.

        Returns:
            The tap. It ends if it is not read for five minutes.

        Raises:
            ControlError: If the application does not answer, has no such node, or cannot keep so many samples.
        """

        def asked(action: str, arguments: Mapping[str, Any]) -> Any:
            return ask(self._home, self.id, TAP_QUESTION, (action, arguments))

        return Tap(node, limit, asked, lease_s=_TAP_LEASE_S, has_ended=lambda: has_ended_in_order(self._home))

    def __repr__(self) -> str:
        return f"<RemoteApplication {self.id!r}>"

    def _ask(self, question: str, data: Any) -> Any:
        try:
            return ask(self._home, self.id, question, data)
        except (AttributeError, ImportError) as error:
            raise ControlError(
                f"the answer has a class that this process cannot import ({error}); import its module here, and define it in a module "
                "instead of the program"
            ) from None


def connect(application_id: str, state_dir: str | Path | None = None) -> RemoteApplication:
    """Return an application that runs in another process of this host, under the same user.

    Args:
        application_id: The application's id.
        state_dir: The application's ``state_dir``; None for the setting of this process.

    Returns:
        The application. Its methods raise ``ControlError`` if it does not run.

    Raises:
        SettingsError: If a setting is invalid.

    Source: interactive queries of a remote instance (KIP-67).

    Example:
        >>> connect("shop").store("counts").get("tea")
        Traceback (most recent call last):
        ...
        millstream.core.model.errors.ControlError: application 'shop' is not running ...
    """
    given = {} if state_dir is None else {"state_dir": state_dir}
    settings = settings_from({"bootstrap_servers": "not needed for this", **given})
    return RemoteApplication(application_id, settings.home(checked_name(application_id, "application")))
