"""Hanging transactions, as found by Kafka's own tool ``kafka-transactions``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class HangingTransaction(NamedTuple):
    """A transaction that is open in one partition although its coordinator no longer knows it.

    Attributes:
        start_offset: The transaction's first offset in the partition.
    """

    topic: str
    partition: int
    start_offset: int


def find_hanging(tool: Callable[..., str], nodes: Iterable[int]) -> list[HangingTransaction]:
    """Ask brokers for open transactions that their coordinators do not know.

    Args:
        tool: Runs a Kafka command line tool, given its name and arguments.

    Returns:
        One entry per partition, regardless of how many replicas report it.
    """
    hanging: dict[HangingTransaction, None] = {}
    for node in nodes:
        asked = ["--broker-id", str(node), "--max-transaction-timeout", "0"]
        for line in tool("kafka-transactions", "find-hanging", *asked).splitlines()[1:]:
            topic, partition, _, _, _, start, *_ = line.split()
            hanging[HangingTransaction(topic, int(partition), int(start))] = None
    return list(hanging)
