"""Exactly-once delivery. Implements ``Publisher`` and ``Delivery``.

Per Spark partition and micro-batch there is one Kafka transaction. It carries the records, the offsets of what was
processed, and a *mark*: the number of the batch. The mark is what makes a batch that is run again harmless, because Spark
commits a batch only after Kafka has, and may die in between. Per Spark partition:

* The transactional id is ``<application>-<partition>``. Whoever gets ready to send takes it over: the broker then refuses
  every other producer of that id (a zombie: an executor that was thought lost, a speculative copy), and ends its open
  transaction.
* Only then the mark is read. A batch that is already marked was delivered by an earlier attempt; it is not sent again.
* A mark of another checkpoint, or of another run of the application, means that a later start has taken it over: nothing is sent
  any more.
* Reading the mark waits for a transaction that is being ended, so it is never read too early.

What has happened to a transaction is not what the client says, but what the mark says. The client may have been fenced because
the broker has ended a transaction that was open for too long, its call may not return (see ``overdue``), and an answer may be lost.
Then the delivery is begun again with a new producer, which takes the id over and finds the mark, or does not.

A new run claims all partitions in the same way, one after the other. The run that claims the first one continues with the next;
a run that finds it claimed by another one gives up.

``marks`` describes where marks are stored.

Source: KIP-98, KIP-447; Kafka Streams ``StreamsProducer``.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.model.errors import OtherCheckpointError, ProductionError
from millstream.core.ports import BatchId
from millstream.drivers.kafka.clients import check
from millstream.drivers.kafka.delivery import Transaction, TransactionSpec
from millstream.drivers.kafka.marks import Mark, owner_of
from millstream.drivers.kafka.produce import FailingProducer

_CLAIMS = 5
"""Attempts to claim a partition while deliveries of the previous checkpoint abort the claim."""


class KafkaTransactions(TransactionSpec):
    """Sends records exactly once. Picklable."""

    def delivery(self, partition: int) -> Transaction:
        """Take over the transactional id of a Spark partition.

        Raises:
            BrokerUnavailableError: If no broker answers for ``patience_s``.
            MillstreamError: If the broker refuses, for example because of missing permissions.
        """
        return Transaction(self, partition)

    def check(self) -> None:
        """Check the settings without connecting.

        Raises:
            SettingsError: If librdkafka does not take a setting.
        """
        check(FailingProducer, self.producer_settings(0))

    def end_open(self, partitions: int) -> None:
        """End the transactions that an earlier run has left open, instead of waiting until the broker does.

        While one is open, the committed offsets are unknown.

        Args:
            partitions: Number of Spark partitions of the earlier run.

        Raises:
            BrokerUnavailableError: If no broker answers for ``patience_s``.
        """
        for partition in range(partitions):
            self.delivery(partition)

    def claim(self, newest: BatchId, known: Mapping[int, Mark], partitions: int) -> None:
        """Make this run the owner of all partitions; other runs and checkpoints can no longer deliver.

        Args:
            newest: The last planned micro-batch of the run's checkpoint; -1 for a new checkpoint.
            known: The marks on which the decision to claim is based.
            partitions: Number of partitions.

        Raises:
            OtherCheckpointError: If another start has claimed one since.
            BrokerUnavailableError: If no broker answers for ``patience_s``.
        """
        for partition in range(partitions):
            before = known.get(partition)
            if owner_of(before) != (newest.checkpoint, self.run):
                self._claim(partition, newest, before)

    def _claim(self, partition: int, newest: BatchId, before: Mark | None) -> None:
        for attempt in range(1, _CLAIMS + 1):
            try:
                if self.delivery(partition).claim(newest, before):
                    return
            except ProductionError:
                if attempt == _CLAIMS:
                    raise
                continue
            raise OtherCheckpointError(
                f"application {self.application_id!r} was started somewhere else at the same moment, and that start was "
                "first. Nothing was read or sent here. Stop the other one, or leave this one stopped"
            )
