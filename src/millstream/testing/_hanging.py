"""Transactions that partitions wait for in vain, as Kafka's own tool finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class HangingTransaction(NamedTuple):
    """A transaction that one partition waits for in vain.

    Attributes:
        topic: The topic.
        partition: Its partition.
        start_offset: The transaction's first offset there.
    """

    topic: str
    partition: int
    start_offset: int


def find_hanging(tool: Callable[..., str], nodes: Iterable[int]) -> list[HangingTransaction]:
    """Ask brokers for the transactions of which their coordinators know nothing.

    Args:
        tool: Runs a tool of Kafka's, given its name and its arguments.
        nodes: Ids of the brokers.

    Returns:
        One entry per partition; its replicas on other brokers do not count again.
    """
    found: dict[HangingTransaction, None] = {}
    for node in nodes:
        asked = ["--broker-id", str(node), "--max-transaction-timeout", "0"]
        for line in tool("kafka-transactions", "find-hanging", *asked).splitlines()[1:]:
            topic, partition, _, _, _, start, *_ = line.split()
            found[HangingTransaction(topic, int(partition), int(start))] = None
    return list(found)
