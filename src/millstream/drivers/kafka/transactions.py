"""Exactly-once delivery. Implements ``Publisher`` and ``Delivery``.

There is one Kafka transaction per Spark partition and micro-batch. It contains the records, the offsets of the processed input, and a
*mark*, which is the number of the micro-batch. Spark commits a micro-batch only after Kafka has committed, and may fail in
between. The mark makes the repeated micro-batch harmless. For each Spark partition:

* The transactional id is ``<application>-<partition>``. A delivery takes it over before it sends. The broker then refuses every other
  producer with this id (a zombie, such as an executor considered lost, or a speculative copy) and ends its open transaction.
* Only then does the delivery read the mark. If the micro-batch is already marked, an earlier attempt has delivered it, and it is not sent
  again.
* A mark of another checkpoint, or of another run of the application, means that a later start has taken over. The delivery sends nothing.
* Reading the mark waits for a transaction that is being committed or aborted, so the mark is never read too early.

Only the mark decides whether a transaction was committed, not the client. The client may have been fenced because the broker ended
a transaction that was open for too long, its call may not return (see ``overdue``), or a response may be lost. The delivery then
starts again with a new producer, which takes over the id and checks whether the mark exists.

A new run claims all partitions in the same way: first one alone, then the others, several at once because each takes several round trips.
So the first partition decides between two starts. A run that finds a partition claimed by another run stops.

``marks`` describes how marks are stored.

Source: KIP-98, KIP-447; Kafka Streams ``StreamsProducer``.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.model.errors import OtherCheckpointError, ProductionError
from millstream.core.ports import BatchId
from millstream.drivers.kafka.clients import check
from millstream.drivers.kafka.concurrent_calls import call_for_each
from millstream.drivers.kafka.delivery import Transaction, TransactionSpec
from millstream.drivers.kafka.marks import Mark, owner_of
from millstream.drivers.kafka.produce import FailingProducer

_CLAIMS = 5
"""Attempts to claim a partition while deliveries of the previous checkpoint abort the claim."""


class KafkaTransactions(TransactionSpec):
    """Sends records exactly once. Picklable."""

    def delivery(self, partition: int) -> Transaction:
        """Take over the transactional id of a Spark partition."""
        return Transaction(self, partition)

    def check(self) -> None:
        check(FailingProducer, self.producer_settings(0))

    def end_open(self, partitions: int) -> None:
        """End the transactions that an earlier run has left open, instead of waiting until they time out.

        While a transaction is open, the committed offsets are unknown.
        """
        call_for_each(self.delivery, range(partitions))

    def claim(self, newest: BatchId, known: Mapping[int, Mark], partitions: int) -> None:
        """Make this run the owner of all partitions. Other runs and checkpoints can no longer deliver.

        Args:
            newest: The last planned micro-batch of the run's checkpoint; -1 for a new checkpoint.
            known: The marks on which the decision to claim is based.

        Raises:
            OtherCheckpointError: If another start has claimed a partition in the meantime.
        """
        unclaimed = [
            partition
            for partition in range(partitions)
            if owner_of(known.get(partition)) != (newest.checkpoint, self.run)
        ]

        def claim(partition: int) -> None:
            self._claim(partition, newest, known.get(partition))

        for first in unclaimed[:1]:  # before any other: of two starts, only one claims it
            claim(first)
        call_for_each(claim, unclaimed[1:])

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
                f"application {self.application_id!r} was started elsewhere at the same time, and that instance started "
                "first. Nothing was read or sent here. Stop the other instance, or leave this one stopped"
            )
