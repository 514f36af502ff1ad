"""Subscriptions: the messages between the two sides of a foreign-key join, and their format in the internal topics.

A left row *subscribes* to the right row that it references. The task with the right row stores the subscriptions. It *answers* with the
right value when a row subscribes, and whenever the right row changes. Each subscription carries a *mark* (a hash) of the left value, and
each answer returns it, so that an answer to a value that has since been replaced is recognised as stale.

A changed left row must receive an answer to its newest value, even where Kafka Streams sends none because the result would not change:
an answer to the previous value that is still in transit would be stale on arrival, and the result would stay wrong. Such answers are
*quiet*: they delete an existing result, and emit nothing if there is none.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import Any, Final, NamedTuple

from millstream.core.model.serdes import Serde

_HAS_VALUE: Final = 1
_QUIET: Final = 2
_MARK_BYTES: Final = 16


class Instruction(IntEnum):
    """The request of a left row.

    Source: ``SubscriptionWrapper.Instruction``.
    """

    LEAVE = 0
    """Unsubscribe, without an answer: the row has subscribed to another row."""
    END = 1
    """Unsubscribe, and answer that there is no right row."""
    END_QUIETLY = 2
    """Like ``END``, with a quiet answer."""
    JOIN = 3
    """Subscribe, and answer with the right row, or that there is none."""
    JOIN_QUIETLY = 4
    """Like ``JOIN``, but an answer that there is no right row is quiet."""


class Subscription(NamedTuple):
    """A message from a left row, keyed by the right row, or without a key if it references no right row.

    Attributes:
        mark: Mark of the left value; None if the row was deleted.
        subscriber: Serialised key of the left row.
    """

    instruction: Instruction
    mark: bytes | None
    subscriber: bytes


class SubscriptionAnswer(NamedTuple):
    """The answer, keyed by the left row.

    Attributes:
        value: The right value; None if there is none.
        quiet: Whether the answer emits nothing if there is no result.
    """

    mark: bytes | None
    value: Any
    quiet: bool


def mark_of(value: bytes) -> bytes:
    """Return the mark of a serialised left value.

    Example:
        >>> len(mark_of(b"any value")), mark_of(b"a") == mark_of(b"b")
        (16, False)
    """
    return hashlib.blake2b(value, digest_size=_MARK_BYTES).digest()


def _with_mark(head: int, mark: bytes | None, rest: bytes) -> bytes:
    return bytes((head, 0 if mark is None else _MARK_BYTES)) + (mark or b"") + rest


def _split(data: bytes) -> tuple[int, bytes | None, bytes]:
    head, size = data[0], data[1]
    return head, data[2 : 2 + size] if size else None, data[2 + size :]


def _write_subscription(sent: Subscription) -> bytes:
    return _with_mark(sent.instruction, sent.mark, sent.subscriber)


def _read_subscription(data: bytes) -> Subscription:
    head, mark, subscriber = _split(data)
    return Subscription(Instruction(head), mark, subscriber)


SUBSCRIPTION: Final[Serde[Subscription]] = Serde(
    "subscription", _write_subscription, _read_subscription, True, (Subscription,)
)
"""instruction (1) | length of the mark (1) | mark | serialised key of the left row"""


def answer_serde(right: Serde[Any]) -> Serde[SubscriptionAnswer]:
    """Create the serde of answers: flags (1) | length of the mark (1) | mark | serialised right value.

    Example:
        >>> from millstream.core.model import serdes
        >>> serde = answer_serde(serdes.string)
        >>> serde.deserialize(serde.serialize(SubscriptionAnswer(None, "row", quiet=False)))
        SubscriptionAnswer(mark=None, value='row', quiet=False)
    """

    def write(sent: SubscriptionAnswer) -> bytes:
        flags = (_QUIET if sent.quiet else 0) | (0 if sent.value is None else _HAS_VALUE)
        return _with_mark(flags, sent.mark, b"" if sent.value is None else right.serialize(sent.value))

    def read(data: bytes) -> SubscriptionAnswer:
        flags, mark, value = _split(data)
        return SubscriptionAnswer(
            mark, right.deserialize(value) if flags & _HAS_VALUE else None, bool(flags & _QUIET)
        )

    return Serde(f"answer({right.name})", write, read, right.immutable)
