"""The log of transactions, read from bytes that a coordinator of Kafka 4 has written."""

from __future__ import annotations

import struct

from millstream.testing.crash.broker_topics import TRANSACTIONS, transaction_lines
from millstream.testing.kafka import ConsumedRecord


def value(state: int, partitions: bytes) -> bytes:
    return struct.pack(">hqhib", 1, 7, 36, 60_000, state) + partitions + struct.pack(">qq", 1, 1) + b"\x00"


def test_transaction_lines_show_state_producer_and_partitions() -> None:
    key = b"\x00\x00\x00\x03t-0"
    partitions = (
        b"\x03"
        b"\x04out\x02" + struct.pack(">i", 1) + b"\x00" + b"\x03in\x03" + struct.pack(">ii", 0, 2) + b"\x00"
    )
    records = [
        ConsumedRecord(TRANSACTIONS, 0, 0, 1_000, key, value(0, b"\x01")),
        ConsumedRecord(TRANSACTIONS, 0, 1, 2_000, key, value(1, partitions)),
        ConsumedRecord(TRANSACTIONS, 0, 2, 3_000, key, None),
    ]
    assert transaction_lines(records, last=3) == (
        "00:00:01.000 t-0: empty, producer 7, epoch 36, no partitions",
        "00:00:02.000 t-0: ongoing, producer 7, epoch 36, out-1, in-0, in-2",
        "00:00:03.000 t-0: deleted",
    )
    assert len(transaction_lines(records, last=1)) == 1
