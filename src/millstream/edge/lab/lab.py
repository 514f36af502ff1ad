"""The lab: runs a topology on a broker and on Spark, controlled from a notebook or a shell."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from html import escape
from typing import TYPE_CHECKING, Any, Final, Self

from millstream.core.model.errors import ControlError
from millstream.core.model.serdes import Serde
from millstream.core.runtime.lifecycle import FINAL
from millstream.core.topology.describe import parts_of
from millstream.core.topology.pictures.svg import svg
from millstream.core.topology.plan import Plan
from millstream.core.topology.topology import Topology
from millstream.edge.application.application import Application
from millstream.edge.application.draining import unread
from millstream.edge.application.running_application import RunningApplication
from millstream.edge.application.topology_edits import TopologyEdit
from millstream.edge.lab.display_rows import Rows
from millstream.edge.queries.store_reader import StoreReader
from millstream.edge.records.topic_records import broker_of, send_records
from millstream.edge.records.topic_serdes import serdes_of
from millstream.edge.settings.setting_sources import servers_are_named
from millstream.edge.settings.settings import Settings
from millstream.edge.settings.settings_loading import settings_from
from millstream.edge.status.application_status import Status
from millstream.edge.taps.tap import DEFAULT_LIMIT, Tap

if TYPE_CHECKING:
    from millstream.testing.kafka import EmbeddedKafka

_CHECK_S: Final = 0.05
_COUNTED: Final = {"Source": "topic_records_consumed_total", "Sink": "topic_records_produced_total"}
_QUIET_CHECKS: Final = 10
"""How many consecutive checks must find no unread records: only a later plan sees what a micro-batch writes to an internal topic."""

_OPEN: Final[dict[str, Lab]] = {}
"""The labs of this process that have deployed a topology, by application id. A cell that makes a lab may run again, while outputs of
other cells still refer to the earlier lab; without this reference, the broker could be deleted under a running application."""


class Lab:
    """Runs one topology at a time; each :meth:`deploy` replaces it. A context manager; :meth:`close` stops everything.

    A process has one lab with each application id: the first :meth:`deploy` of a new one closes the earlier one.

    Without ``bootstrap_servers``, as an argument or in the environment, the lab starts its own broker, creates the topics that a
    topology reads and writes, and deletes everything at the end.

    Args:
        application_id: The application's id.
        **settings: As for :class:`Application`.

    Example:
        >>> with Lab("words") as lab:  # doctest: +SKIP
        ...     lab.deploy(topology)
        ...     lab.send("lines", "to be or not to be")
        ...     lab.wait()
        ...     lab.store("counts").all()

    Source: KIP-28: "make an initial topology, deploy and run, check the results and intermediate values, and pause the job and edit the
    topology on-the-fly".
    """

    def __init__(self, application_id: str = "lab", **settings: Any) -> None:
        self.id = application_id
        self._settings = settings
        self._broker: EmbeddedKafka | None = None
        self._broker_settings: dict[str, str] = {}
        self._running: RunningApplication | None = None
        self._topology: Topology | None = None
        self._cleanup = ExitStack()

    # The application.

    def deploy(self, topology: Topology, *, renamed_stores: Mapping[str, str] | None = None) -> Self:
        """Run a topology, or edit the running application to use it. Deploying the same topology object again changes nothing.

        For an example, see :class:`Lab`.

        Args:
            topology: The topology.
            renamed_stores: Old names of stores, with their new names.

        Returns:
            This lab.

        Raises:
            MillstreamError: As :meth:`Application.start` and :meth:`RunningApplication.edit`; the earlier topology continues.
        """
        if topology is self._topology and self._at_work:
            return self
        application = self._prepare(topology, renamed_stores)
        self._replace_earlier_lab()
        if self._at_work:
            self.running.edit(topology, renamed_stores=renamed_stores)
        else:
            if self._running is not None:  # it has failed, and still has the lease
                self._running.stop()
            self._running = application.start()
        self._topology = topology
        return self

    def preview(self, topology: Topology, *, renamed_stores: Mapping[str, str] | None = None) -> TopologyEdit:
        """Return what :meth:`deploy` would do to the running application. Creates the same topics as :meth:`deploy`.

        Args:
            topology: The topology.
            renamed_stores: Old names of stores, with their new names.

        Returns:
            The effects of the edit on tasks and stores.

        Raises:
            IncompatibleTopologyError: If the topology cannot continue the state.
            ControlError: If the application does not run.
        """
        running = self.running
        self._prepare(topology, renamed_stores)
        return running.edit(topology, preview=True, renamed_stores=renamed_stores)

    @property
    def running(self) -> RunningApplication:
        """The running application.

        Raises:
            ControlError: If nothing has been deployed.
        """
        if self._running is None:
            raise ControlError("nothing has been deployed in this lab; call lab.deploy(topology)")
        return self._running

    def pause(self) -> None:
        """Stop reading records until :meth:`resume`.

        Raises:
            ControlError: If nothing has been deployed.

        Source: KIP-28: "pause the job"; ``KafkaStreams.pause`` (KIP-834).
        """
        self.running.pause()

    def resume(self) -> None:
        """Read records again.

        Raises:
            ControlError: If nothing has been deployed.

        Source: ``KafkaStreams.resume`` (KIP-834).
        """
        self.running.resume()

    def status(self) -> Status:
        """Return what the application is doing.

        Raises:
            ControlError: If nothing has been deployed.
        """
        return self.running.status()

    def stop(self) -> None:
        """Stop the application; the next :meth:`deploy` continues where it ended."""
        if self._running is not None:
            self._running.stop()
            self._topology = None

    def close(self) -> None:
        """Stop the application, and the broker if the lab started it. A later :meth:`deploy` starts anew."""
        try:
            self.stop()
        finally:
            if _OPEN.get(self.id) is self:
                del _OPEN[self.id]
            self._running = None
            self._broker, self._broker_settings = None, {}
            self._cleanup.close()

    # Records and stores.

    def send(
        self, topic: str, *records: Any, key: Serde[Any] | None = None, value: Serde[Any] | None = None
    ) -> None:
        """Write records to a topic. For an example, see :class:`Lab`.

        Args:
            topic: The name of the topic.
            *records: Each is a value, a pair of key and value, or a tuple of key, value and timestamp (ms since the epoch).
            key: Serde of the keys; None for the serde of the source that reads the topic.
            value: Serde of the values; None for the serde of the source that reads the topic.

        Raises:
            TopicNotFoundError: If the topology does not read the topic, and no serdes are given.
            ProductionError: If a record is not acknowledged.
        """
        serdes = serdes_of(self._plan, topic, key, value, sent=True)
        send_records(self._resolved_settings, topic, records, serdes)

    def read(
        self, topic: str, last: int = 20, *, key: Serde[Any] | None = None, value: Serde[Any] | None = None
    ) -> Rows:
        """Return the last records of each partition of a topic; see :meth:`RunningApplication.read`.

        Args:
            topic: The name of the topic.
            last: The number of records per partition.
            key: Serde of the keys; None for the serde of the node that writes or reads the topic.
            value: Serde of the values; None as for ``key``.

        Returns:
            Rows of partition, offset, timestamp (ms since the epoch), key and value, in order of time.

        Raises:
            ControlError: If nothing has been deployed.
            MillstreamError: As :meth:`RunningApplication.read`.
        """
        return self.running.read(topic, last, key=key, value=value)

    def store(self, name: str, *, timestamps: bool = False) -> StoreReader[Any, Any]:
        """Return a reader of a store; see :meth:`RunningApplication.store`.

        Args:
            name: The name of the store.
            timestamps: Whether to return values of a timestamped store as ``ValueAndTimestamp``.

        Raises:
            ControlError: If nothing has been deployed.
        """
        return self.running.store(name, timestamps=timestamps)

    def entries(self, name: str, limit: int = 20) -> Rows:
        """Return the first entries of a store as rows of key and value; of a versioned store, the latest versions.

        Args:
            name: The name of the store.
            limit: The maximum number of entries.

        Returns:
            The entries, which notebooks show as a table.

        Raises:
            ControlError: If nothing has been deployed.
            StoreError: If there is no such store, or it cannot be read.
        """
        return Rows(("key", "value"), tuple(self.store(name).all(limit=limit)))

    def tap(self, node: str, *, limit: int = DEFAULT_LIMIT) -> Tap:
        """Sample the records that reach a node; see :meth:`RunningApplication.tap`.

        Args:
            node: The name of the node.
            limit: How many of the newest samples are kept.

        Returns:
            The tap.

        Raises:
            ControlError: If nothing has been deployed, there is no such node, or the limit is invalid.
        """
        return self.running.tap(node, limit=limit)

    def wait(self, timeout_s: float = 60.0) -> None:
        """Wait until the application has processed all records that are in the topics now.

        Args:
            timeout_s: The maximum time to wait, seconds.

        Raises:
            MillstreamError: If the application has failed.
            TimeoutError: If the time is exceeded.
        """
        deadline, quiet = time.monotonic() + timeout_s, 0
        topics = [topic for topic in self._plan.broker_topics if topic not in self._plan.internal_topics]
        broker = broker_of(self._resolved_settings)
        ends = broker.end_offsets(broker.partition_counts(topics))
        checks = _QUIET_CHECKS if self._plan.internal_topics else 1
        while quiet < checks:
            status = self.running.status()
            if status.state in FINAL:
                self.running.await_termination()
                raise ControlError(
                    f"application {self.id!r} was stopped before it had processed all records; deploy() starts it again"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.id}: {_unprocessed(status, timeout_s)}; see lab.status()")
            behind = unread(self.running._run.reports.positions, ends, topics) or sum(status.lag.values())
            quiet = 0 if behind else quiet + 1
            time.sleep(_CHECK_S)  # an application has no event for its progress

    # Displays.

    def picture(self) -> str:
        """Draw the topology as SVG, with the numbers of records that its sources have read and its sinks have written.

        Returns:
            The drawing, as an ``<svg>`` element.

        Raises:
            ControlError: If nothing has been deployed.
        """
        numbers, records = self.running.measured(), dict[str, str]()
        for part in parts_of(self._plan):
            for shape in part.shapes:
                # Records that pass through Spark's shuffle are not counted.
                own = [
                    count
                    for (task, topic), count in numbers.of(_COUNTED.get(shape.kind, "")).items()
                    if task.startswith(f"{part.number}_") and (topic in shape.topics or shape.pattern)
                ]
                if own:
                    records[shape.name] = f"{round(sum(own)):,} records"
        return svg(self._plan, records)

    def _replace_earlier_lab(self) -> None:
        if (earlier := _OPEN.get(self.id)) is not None and earlier is not self:
            earlier.close()
        _OPEN[self.id] = self

    @property
    def _at_work(self) -> bool:
        return self._running is not None and self._running.status().state not in FINAL

    @property
    def _plan(self) -> Plan:
        return self.running._run.plan

    @property
    def _resolved_settings(self) -> Settings:
        return settings_from(self._settings_with_broker())

    def _settings_with_broker(self) -> Mapping[str, Any]:
        """Return the settings of the application; on the first call, start a broker if the settings name none."""
        known = {**self._broker_settings, **self._settings}
        if "bootstrap_servers" in known or servers_are_named():
            return known
        from millstream.testing.kafka import EmbeddedKafka

        home = self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="millstream-lab-"))
        self._broker = self._cleanup.enter_context(EmbeddedKafka())
        self._broker_settings = {"bootstrap_servers": self._broker.bootstrap_servers, "state_dir": home}
        return self._settings_with_broker()

    def _prepare(self, topology: Topology, renamed_stores: Mapping[str, str] | None) -> Application:
        """Check a topology, and create the topics that it needs."""
        application = Application(
            self.id, topology, renamed_stores=renamed_stores, **self._settings_with_broker()
        )
        self._create_topics(application.plan)
        return application

    def _create_topics(self, plan: Plan) -> None:
        """Create the topics that a topology reads and writes, if the lab started the broker."""
        if self._broker is None:
            return
        existing = broker_of(self._resolved_settings).partition_counts()
        wanted = {*plan.broker_topics, *plan.sink_topics, *plan.global_part_of} - {
            *plan.internal_topics,
            *existing,
        }
        for topic in sorted(wanted):
            self._broker.create_topic(topic, 1)

    def __repr__(self) -> str:
        state = "nothing deployed" if self._running is None else self._running.status().state
        return f"<Lab {self.id!r}: {state}>"

    def _repr_html_(self) -> str:
        if self._running is None:
            return f"<p><b>{escape(self.id)}</b>: nothing deployed</p>"
        return self._running._repr_html_() + self.picture()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _unprocessed(status: Status, timeout_s: float) -> str:
    paused = f"; paused: {', '.join(status.paused)}" if status.paused else ""
    return f"not all records are processed after {timeout_s:g} s{paused}"
