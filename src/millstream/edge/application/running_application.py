"""A running application, as its program uses it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Self

from millstream.core.metrics.metric import Numbers
from millstream.core.model.errors import ControlError
from millstream.core.queries.question import Answer, Question
from millstream.core.runtime.pausing import chosen_topics
from millstream.core.topology.analysis.ranges import AUTO, Workers
from millstream.core.topology.topology import Topology
from millstream.drivers.private import process_directory
from millstream.drivers.spark.control import ControlServer
from millstream.edge.application.application_run import ApplicationRun, Resources
from millstream.edge.application.spark_requests import SparkRequests
from millstream.edge.application.topology_edits import TopologyEdit
from millstream.edge.lab.html import status_html
from millstream.edge.queries.store_reader import StoreReader
from millstream.edge.status.application_status import Status
from millstream.edge.taps.tap import DEFAULT_LIMIT, Tap
from millstream.edge.web.listeners import Listeners

_STOP_WAIT_S = 60.0


class RunningApplication:
    """A running application. Made by :meth:`Application.start`; safe to use from several threads."""

    def __init__(self, application_id: str, resources: Resources) -> None:
        self.id = application_id
        self._run = ApplicationRun(application_id, resources)
        self._set_workers: Callable[[Workers], None] | None = None
        self._edit: Callable[..., TopologyEdit] | None = None
        self._requests = SparkRequests(self._run, self)
        self._run.control = ControlServer(self._requests.answer, secrets.token_bytes(16), process_directory())

    @property
    def listeners(self) -> Listeners:
        """What listens for requests of others, with addresses."""
        return self._run.listeners

    def stop(self, timeout_s: float = _STOP_WAIT_S, *, drain_timeout_s: float | None = None) -> None:
        """Finish the running micro-batch, commit it and stop; nothing is lost if the time does not suffice.

        Records that wait in asynchronous operators are carried over to the next start. With time to drain, external topics are no
        longer read, and micro-batches continue until these records are finished; those that are not finished in time, or wait for
        a later time, are carried over.

        Args:
            timeout_s: How long the running micro-batch may take before the query is stopped anyway.
            drain_timeout_s: How long it may take to finish unfinished records before that; None is the setting
                ``drain_timeout_ms``. A second call, from another thread, can shorten the time.
        """
        self._run.stop(timeout_s, drain_timeout_s)

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the application has ended.

        Args:
            timeout_s: How long to wait, None without end.

        Returns:
            Whether it has ended.

        Raises:
            MillstreamError: If it has failed.
        """
        return self._run.await_termination(timeout_s)

    def pause(
        self,
        topics: Collection[str] | None = None,
        *,
        subtopologies: Collection[int] | None = None,
        keep: bool = False,
    ) -> None:
        """Stop reading topics, in addition to those that are already paused; records that were read are processed.

        A sub-topology that nothing can reach any more does not punctuate either.

        Args:
            topics: Names of topics.
            subtopologies: Numbers of sub-topologies, as the plan in the log has them: the topics that each reads from the
                broker. Without topics and sub-topologies everything is paused.
            keep: Whether they are still paused when the application is started again.

        Raises:
            ControlError: If the application does not read such a topic or has no such sub-topology, cannot keep it, or has
                ended.

        Source: ``org.apache.kafka.streams.KafkaStreams.pause`` (KIP-834), which pauses everything.
        """
        self._run.flow_control.pause(chosen_topics(self._run.plan, topics, subtopologies), keep=keep)

    def resume(
        self, topics: Collection[str] | None = None, *, subtopologies: Collection[int] | None = None
    ) -> None:
        """Read topics again, now and after a restart.

        Args:
            topics: Names of topics.
            subtopologies: Numbers of sub-topologies. Without topics and sub-topologies everything is resumed.

        Raises:
            ControlError: If the application does not read such a topic or has no such sub-topology, or has ended.

        Source: ``org.apache.kafka.streams.KafkaStreams.resume`` (KIP-834).
        """
        self._run.flow_control.resume(chosen_topics(self._run.plan, topics, subtopologies))

    def throttle(self, topic: str, records_per_second: int | None) -> None:
        """Limit how many records per second are read from a topic, until the application ends.

        Args:
            topic: Its name.
            records_per_second: At least 1; None lifts the limit, also one of the setting ``max_records_per_second``.

        Raises:
            ControlError: If the application does not read such a topic, the rate cannot be, or the application has ended.
        """
        for known in chosen_topics(self._run.plan, [topic]):
            self._run.flow_control.throttle(known, records_per_second)

    def parallelism(self, workers: Workers) -> None:
        """Process each partition by another number of workers; the query starts again in place, with all state.

        Args:
            workers: Workers per partition, as the setting ``parallelism``. A number ends the automatic choice, and ``"auto"`` begins it
                with the current number.

        Raises:
            ControlError: If the number needs other key ranges than there are, or the application has ended.
        """
        if not self._run.resources.lease.held or self._set_workers is None:
            raise ControlError(
                f"application {self.id!r} is {self._run.state.now}, and its workers cannot change"
            )
        self._set_workers(workers)
        if workers != AUTO:
            self._run.query.restart(f"each partition has {workers} workers from now on")

    def edit(
        self, topology: Topology, *, preview: bool = False, renamed_stores: Mapping[str, str] | None = None
    ) -> TopologyEdit:
        """Go on with an edited topology, between two micro-batches, with the state of all stores that are still there.

        Args:
            topology: The edited topology.
            preview: Say only what the edit would do.
            renamed_stores: New name per old name of a store.

        Returns:
            What the edit does, when its first micro-batch is committed.

        Raises:
            IncompatibleTopologyError: If the topology cannot continue the state; nothing has changed.
            MillstreamError: If it does not start; the earlier topology continues.
            ControlError: If the application has ended, or runs to an end.

        Source: KIP-28: "pause the job and edit the topology on-the-fly".
        """
        if self._edit is None:
            raise ControlError(f"application {self.id!r} is {self._run.state.now}, and cannot be edited")
        return self._edit(topology, preview=preview, renamed_stores=renamed_stores)

    def status(self) -> Status:
        """Return what the application is doing."""
        return self._run.status()

    def metrics(self) -> dict[str, int]:
        """Return what has been counted since the start; see ``docs/reference/metrics.md``."""
        return self._run.reports.metrics()

    def measured(self) -> Numbers:
        """Return what tasks have counted, with labels; see ``millstream.core.metrics.metric``."""
        return self._run.reports.measured()

    def store(self, name: str, *, timestamps: bool = False, max_lag: int | None = None) -> StoreReader:
        """Return a store, to be read while the application runs.

        Args:
            name: The name of the store.
            timestamps: Whether values of a timestamped store come as ``ValueAndTimestamp``.
            max_lag: How many records the application may have left to process in the topics of the store; None is any number.

        Source: ``org.apache.kafka.streams.KafkaStreams.store`` and ``query`` (KIP-67, KIP-796).
        """
        return StoreReader(name, self.ask, timestamps=timestamps, max_lag=max_lag)

    def stores(self) -> Mapping[str, str]:
        """Return the stores that can be queried, with their kinds."""
        return self._run.answers.stores()

    def ask(self, question: Question) -> Answer:
        """Answer a question about a store; see :class:`StoreReader`."""
        return self._run.answers.answer(question)

    def tap(self, node: str, *, limit: int = DEFAULT_LIMIT) -> Tap:
        """Sample the records that reach a node, from the next micro-batch on, until the tap is closed.

        Each task samples up to 100 records per micro-batch, keeps plain data of them, and cuts what is too large. Results do not change.

        Args:
            node: The name of the node; of a source, the records that it reads.
            limit: How many samples are kept, the newest ones.

        Returns:
            The samples, to be read while the application runs.

        Raises:
            ControlError: If there is no such node, the limit is invalid, or the application has ended.

        Example:
            >>> with running.tap("totals") as tap:  # doctest: +SKIP
            ...     for record in tap:
            ...         print(record.key, record.value)
        """
        return Tap(node, limit, self._run.taps.answer)

    def _repr_html_(self) -> str:
        return status_html(vars(self.status()), self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
