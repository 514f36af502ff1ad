"""Letters: the dead letter of a record that stops the application is sent before the error leaves the worker.

What a micro-batch sends goes through its sink, and a micro-batch that fails has none. So such a letter has a producer of its own,
outside of any transaction. Where Spark tries a failed task again, it may be sent more than once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.core.model.errors import MillstreamError
from millstream.core.ports import Publisher


@contextmanager
def sending_letters(publisher: Publisher | None) -> Iterator[None]:
    """Send the dead letter of an error that passes.

    Args:
        publisher: Sends; None sends nothing.

    Raises:
        MillstreamError: The error that passed; if its letter could not be sent, its message says so.
    """
    try:
        yield
    except MillstreamError as error:
        if publisher is None or error.letter is None:
            raise
        (topic, records), error.letter = error.letter, None
        try:
            delivery = publisher.delivery(0)
            delivery.publish(topic, records)
            delivery.commit({})
        except Exception as own:
            message = f"{error.message}. Its dead letter could not be sent to topic {topic!r}: {own}"
            raise type(error)(message) from error
        raise
