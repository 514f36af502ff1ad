"""The boundary of a Spark process: errors cross it as text that the other side decodes, and the garbage collector pauses inside."""

from __future__ import annotations

import base64
import gc
import json
import re
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millstream.core.model import errors
from millstream.core.model.errors import MillstreamError, SparkRuntimeError
from millstream.drivers.spark.executor_id import where_it_runs

_MAX_TRACEBACK: Final = 20_000
_ERROR = re.compile(r"millstream-error:([A-Za-z0-9+/=]+):")


@contextmanager
def paused_gc() -> Iterator[None]:
    """Disable the cyclic garbage collector during a micro-batch.

    A micro-batch creates a few objects per record and no relevant cycles. The collector would scan them anyway, and take
    a third of the engine's time. Spark's worker collects between tasks.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class WorkerTraceback(Exception):  # noqa: N818 - the text of a traceback, not an error
    """The traceback of an error in another process, for display as its cause."""


@contextmanager
def crossing() -> Iterator[None]:
    """Encode an error of this package, so that :func:`find_error` finds it after the JVM, which keeps only text."""
    try:
        yield
    except MillstreamError as error:
        message = f"{error.message}{where_it_runs()}"
        described = json.dumps([type(error).__name__, message, _traceback_of(error)]).encode()
        encoded = base64.b64encode(zlib.compress(described)).decode()
        raise SparkRuntimeError(f"millstream-error:{encoded}: {message}") from error


def find_error(text: str) -> MillstreamError | None:
    """Return the error that :func:`crossing` encoded in an exception's text, or None if there is none. Its cause is its traceback."""
    match = _ERROR.search(text)
    if match is None:
        return None
    name, message, trace = json.loads(zlib.decompress(base64.b64decode(match.group(1))))
    error: MillstreamError = getattr(errors, name, MillstreamError)(message)
    error.__cause__ = WorkerTraceback(f'\n"""\n{trace}"""')
    return error


def _traceback_of(error: BaseException) -> str:
    """Return the traceback of an error and its causes; if it is long, without its middle."""
    text = "".join(traceback.format_exception(error))
    half = _MAX_TRACEBACK // 2
    return text if len(text) <= _MAX_TRACEBACK else f"{text[:half]}\n...\n{text[-half:]}"
