"""Sends the dead letter of a record that stops the application, before the error leaves the Python worker.

A failed micro-batch may undo what it sends. A dead letter is therefore sent at least once, outside any transaction. If Spark
retries the failed task, the letter may be sent again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.core.model.errors import MillstreamError
from millstream.core.ports import Sender


@contextmanager
def sending_dead_letters(sender: Sender | None) -> Iterator[None]:
    """Send the dead letter of an error that passes through. Without a sender, do nothing.

    Raises:
        MillstreamError: The error that passed through. Its message is extended if the dead letter could not be sent.
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
            message = f"{error.message}. The dead letter could not be sent to topic {topic!r}: {own}"
            raise type(error)(message) from error
        raise
