"""Reading a partition with fan-out: one epoch after the other, so that the records of a key are processed in the order of its logs."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple, Protocol

from millstream.core.fanout.epochs import Epoch, History
from millstream.core.model.ids import TopicPartition


class EpochReader(Protocol):
    """Reads the epochs of the partitions that were ever split. Picklable until it is read."""

    def histories(self) -> tuple[History, ...]:
        """Return all epochs that had begun before the call.

        Raises:
            BrokerUnavailableError: If no broker answers in time.
        """
        ...


class EpochRead(NamedTuple):
    """The epoch of a partition that an application reads now."""

    history: History
    epoch: Epoch


def reading(
    history: History, positions: Mapping[TopicPartition, int], buffered: Container[TopicPartition]
) -> Epoch:
    """Return the epoch whose logs a reader reads now: the first with records that are not yet processed.

    A reader that is beyond the end of an epoch in one of its logs has processed the epoch. Records in the buffer are then from a later one.

    Args:
        positions: The next offset of each log that the reader knows.
        buffered: The logs of which records have been read, but not yet processed.
    """
    for epoch in history.epochs[:-1]:
        for stretch in epoch.stretches:
            known, end = positions.get(stretch.log, -1), stretch.end or 0
            if known < end or (known == end and stretch.log in buffered):
                return epoch
    return history.current


def limits(
    history: History, epoch: Epoch, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    """Return how far each log may be read while a reader reads an epoch. None: to its end.

    Example:
        >>> orders = History.new(TopicPartition("orders", 0))
        >>> first, second = orders.logs(2)
        >>> split = orders.changed(2, {orders.primary: 100, first: 0, second: 0})
        >>> def shown(positions):
        ...     epoch = reading(split, positions, buffered=())
        ...     return {str(log): limit for log, limit in sorted(limits(split, epoch, positions).items())}
        >>> shown({orders.primary: 99, first: 0, second: 0})
        {'orders-0': 100, 'orders-fanout-0-0': 0, 'orders-fanout-0-1': 0}
        >>> shown({orders.primary: 100, first: 0, second: 0})
        {'orders-0': 100, 'orders-fanout-0-0': None, 'orders-fanout-0-1': None}
    """
    ends = {stretch.log: stretch.end for stretch in epoch.stretches}
    return {log: ends[log] if log in ends else positions.get(log, 0) for log in history.used_logs}
