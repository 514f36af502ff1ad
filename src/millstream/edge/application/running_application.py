"""The handle through which a program controls its running application."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from millstream.core.metrics.metric import Numbers
from millstream.core.model.errors import ControlError
from millstream.core.model.serdes import Serde
from millstream.core.queries.question import Answer, Question
from millstream.core.runtime.lifecycle import PROCESSING
from millstream.core.runtime.pausing import chosen_topics
from millstream.core.topology.analysis.ranges import Workers
from millstream.core.topology.topology import Topology
from millstream.drivers.private import process_directory
from millstream.drivers.spark.control import ControlServer
from millstream.edge.application.application_run import ApplicationRun, Resources
from millstream.edge.application.spark_requests import SparkRequests
from millstream.edge.application.topology_edits import TopologyEdit
from millstream.edge.lab.display_rows import Rows
from millstream.edge.lab.html import status_html
from millstream.edge.queries.store_reader import StoreReader
from millstream.edge.records.topic_serdes import serdes_of
from millstream.edge.status.application_status import Status
from millstream.edge.taps.tap import DEFAULT_LIMIT, Tap
from millstream.edge.web.listeners import Listeners

_STOP_WAIT_S = 60.0


class RunningApplication:
    """A running application. Created by :meth:`Application.start`; safe to use from several threads.

    The end of a ``with`` statement stops it. The pages ``docs/how-to/pause-and-throttle.md``, ``query-a-store.md`` and
    ``change-a-topology.md`` have tested examples of its methods.

    Source: ``org.apache.kafka.streams.KafkaStreams``, after its start.
    """

    def __init__(self, application_id: str, resources: Resources) -> None:
        self.id = application_id
        self._run = ApplicationRun(application_id, resources)
        self._set_workers: Callable[[Workers], None] | None = None
        self._edit: Callable[..., TopologyEdit] | None = None
        self._requests = SparkRequests(self._run, self)
        self._run.control = ControlServer(self._requests.answer, secrets.token_bytes(16), process_directory())

    @property
    def listeners(self) -> Listeners:
        """The application's HTTP listeners, with their addresses."""
        return self._run.listeners

    def stop(self, timeout_s: float = _STOP_WAIT_S, *, drain_timeout_s: float | None = None) -> None:
        """Finish the running micro-batch, commit it and stop; nothing is lost if the time is too short.

        Records in flight in asynchronous operators are carried over to the next start. With a drain timeout, the application first
        stops reading external topics, and micro-batches continue until these records are finished. Records that are not finished in
        time, or whose retry or delay is due later, are carried over. After a failure, it only releases what the application still holds, so
        that this process can start it again.

        Args:
            timeout_s: How long the running micro-batch may take before the query is stopped in any case, seconds.
            drain_timeout_s: How long the application may first wait for in-flight records, seconds; None for the setting
                ``drain_timeout_ms``. A second call, from another thread, can shorten the time.

        Source: ``org.apache.kafka.streams.KafkaStreams.close``.
        """
        self._run.stop(timeout_s, drain_timeout_s)

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the application has ended.

        Args:
            timeout_s: How long to wait, seconds; None for no limit.

        Returns:
            Whether the application has ended.

        Raises:
            MillstreamError: If the application has failed.

        Source: Spark's ``StreamingQuery.awaitTermination``.
        """
        return self._run.await_termination(timeout_s)

    def pause(
        self,
        topics: Collection[str] | None = None,
        *,
        subtopologies: Collection[int] | None = None,
        keep: bool = False,
    ) -> None:
        """Stop reading topics, in addition to those that are already paused. Records that were already read are processed.

        A sub-topology that no record can reach any more does not punctuate either.

        Args:
            topics: Names of topics.
            subtopologies: Numbers of sub-topologies, from the plan in the log: pauses the topics that each of them reads from the
                broker. Without topics and sub-topologies, everything is paused.
            keep: Whether the topics stay paused after a restart of the application.

        Raises:
            ControlError: If the application does not read such a topic, has no such sub-topology, cannot store the pause, or has
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
            subtopologies: Numbers of sub-topologies. Without topics and sub-topologies, everything is resumed.

        Raises:
            ControlError: If the application does not read such a topic or has no such sub-topology, or has ended.

        Source: ``org.apache.kafka.streams.KafkaStreams.resume`` (KIP-834).
        """
        self._run.flow_control.resume(chosen_topics(self._run.plan, topics, subtopologies))

    def throttle(self, topic: str, records_per_second: int | None) -> None:
        """Limit how many records per second are read from a topic, until the application ends.

        Args:
            topic: The name of the topic.
            records_per_second: At least 1; None removes the limit, also a limit from the setting ``max_records_per_second``.

        Raises:
            ControlError: If the application does not read such a topic, the rate is invalid, or the application has ended.

        Source: KIP-28, the requirement to control the rate of an input; Kafka Streams has no counterpart.
        """
        for known in chosen_topics(self._run.plan, [topic]):
            self._run.flow_control.throttle(known, records_per_second)

    def parallelism(self, workers: Workers) -> None:
        """Change the number of workers per partition; the query restarts in place, with all state.

        If the number needs more key ranges than there are, the state is divided first. Fewer workers keep the key ranges. Returns after
        the first micro-batch with the new number is committed.

        Args:
            workers: Workers per partition, as in the setting ``parallelism``. A number ends the automatic choice; ``"auto"`` begins
                it from the current number.

        Raises:
            SettingsError: If it is neither a whole number from 1 to 256 nor ``"auto"``; nothing has changed.
            TopologyError: If the topology cannot be divided into key ranges; nothing has changed.
            IncompatibleTopologyError: If the state cannot be divided into more key ranges; nothing has changed.
            MillstreamError: If the query does not start with the new number; the application continues with the earlier one.
            ControlError: If the application has ended, or was started with an end (``until=``).

        Source: ``KafkaStreams.addStreamThread`` and ``removeStreamThread`` (KIP-663), up to the number of partitions.
        """
        if not self._run.resources.lease.is_held or self._set_workers is None:
            raise ControlError(
                f"application {self.id!r} is {self._run.state.now}, so its workers cannot be changed"
            )
        self._set_workers(workers)

    def edit(
        self, topology: Topology, *, preview: bool = False, renamed_stores: Mapping[str, str] | None = None
    ) -> TopologyEdit:
        """Replace the topology with an edited one, between two micro-batches. Stores that remain in it keep their state.

        Args:
            topology: The edited topology.
            preview: Whether only to return what the edit would do. It does not know which records will be in flight or buffered when
                the query stops; the edit itself refuses to lose them.
            renamed_stores: Old names of stores, with their new names.

        Returns:
            What the edit does, after its first micro-batch is committed.

        Raises:
            TopologyError: If the topology is not valid, or is no topology, such as a builder; nothing has changed.
            IncompatibleTopologyError: If the topology cannot continue the state; nothing has changed.
            MillstreamError: If the edited topology does not start; the earlier topology continues.
            ControlError: If the application has ended, or was started with an end (``until=``).

        Source: KIP-28: "pause the job and edit the topology on-the-fly".
        """
        if self._edit is None or self._run.state.now not in PROCESSING:
            raise ControlError(
                f"application {self.id!r} is {self._run.state.now}, so its topology cannot be edited"
            )
        return self._edit(topology, preview=preview, renamed_stores=renamed_stores)

    def status(self) -> Status:
        """Return what the application is doing.

        Source: ``KafkaStreams.state`` and ``metadataForLocalThreads``.
        """
        return self._run.status()

    def metrics(self) -> dict[str, int]:
        """Return the counters since the start; see ``docs/reference/metrics.md``.

        Source: ``KafkaStreams.metrics``, for totals only.
        """
        return self._run.reports.metrics()

    def measured(self) -> Numbers:
        """Return the measurements of the tasks, with labels; ``docs/reference/metrics.md`` lists them.

        Source: ``KafkaStreams.metrics``.
        """
        return self._run.reports.measured()

    def store(
        self, name: str, *, timestamps: bool = False, max_lag: int | None = None
    ) -> StoreReader[Any, Any]:
        """Return a reader of a store, for queries while the application runs.

        Annotate the reader with its types for a type checker; see :class:`StoreReader`, which also has an example.

        Args:
            name: The name of the store.
            timestamps: Whether to return values of a timestamped store as ``ValueAndTimestamp``.
            max_lag: The maximum number of unprocessed records in the topics of the store; None for no limit.

        Returns:
            The reader. Its methods raise ``StoreError`` if there is no such store.

        Source: ``org.apache.kafka.streams.KafkaStreams.store`` and ``query`` (KIP-67, KIP-796).
        """
        return StoreReader(name, self._run.answers.answer, timestamps=timestamps, max_lag=max_lag)

    def stores(self) -> Mapping[str, str]:
        """Return the queryable stores, with their kinds.

        Returns:
            Kind, such as ``key-value``, by name of the store.
        """
        return self._run.answers.stores()

    def ask(self, question: Question) -> Answer:
        """Answer a question about a store; :class:`StoreReader` asks it.

        Args:
            question: The store, a method and its arguments.

        Returns:
            The value, with the micro-batch, offsets and lag to which it belongs.

        Raises:
            StoreError: If the store cannot answer.
        """
        return self._run.answers.answer(question)

    def read(
        self, topic: str, last: int = 20, *, key: Serde[Any] | None = None, value: Serde[Any] | None = None
    ) -> Rows:
        """Return the last records of each partition of a topic; commits no offsets.

        Args:
            topic: The name of the topic.
            last: The number of records per partition.
            key: Serde of the keys; None for the serde of the node that writes or reads the topic.
            value: Serde of the values; None for the serde of the node that writes or reads the topic.

        Returns:
            Rows of partition, offset, timestamp (ms since the epoch), key and value, in order of time.

        Raises:
            TopicNotFoundError: If the topic does not exist, or no serdes are given and the topology neither writes nor reads it.
            DeserializationError: If a record does not fit the serdes.

        Source: KIP-28: "check the results and intermediate values".
        """
        serdes = serdes_of(self._run.plan, topic, key, value, sent=False)
        found = self._run.resources.last_records(topic, last, serdes)
        return Rows(("partition", "offset", "timestamp", "key", "value"), tuple(found))

    def tap(self, node: str, *, limit: int = DEFAULT_LIMIT) -> Tap:
        """Sample the records that reach a node, from the next micro-batch until the tap is closed.

        Each task samples up to 100 records per micro-batch, keeps them as plain data, and truncates large values. Results do not change.

        Args:
            node: The name of the node. At a source, the tap samples the records that it reads.
            limit: How many of the newest samples are kept.

        Returns:
            The tap, to read samples from while the application runs.

        Raises:
            ControlError: If there is no such node, the limit is invalid, or the application has ended.

        Source: KIP-28: "check the results and intermediate values".

        Example:
            >>> with running.tap("totals") as tap:  # doctest: +SKIP
            ...     for record in tap:
            ...         print(record.key, record.value)
        """
        return Tap(node, limit, self._run.taps.answer)

    def __repr__(self) -> str:
        return f"<RunningApplication {self.id!r}: {self.status().state}>"

    def _repr_html_(self) -> str:
        return status_html(vars(self.status()), self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
