"""Letters: the dead letter of a record that stops the application is sent before the error leaves the worker.

A micro-batch that fails may take back what it sends. So such a letter is sent at least once, outside of any transaction. Where Spark
tries a failed task again, it may be sent more than once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.core.model.errors import MillstreamError
from millstream.core.ports import Sender


@contextmanager
def sending_dead_letters(sender: Sender | None) -> Iterator[None]:
    """Send the dead letter of an error that passes; without a sender, do nothing.

    Raises:
        MillstreamError: The error that passed; its message says if the dead letter could not be sent.
    """
    try:
        yield
    except MillstreamError as error:
        if sender is None or error.letter is None:
            raise
        (topic, records), error.letter = error.letter, None
        try:
            sender.publish(topic, records)
            sender.flush()
        except Exception as own:
            message = f"{error.message}. Its dead letter could not be sent to topic {topic!r}: {own}"
            raise type(error)(message) from error
        raise
