"""Traces through records: the context of a trace in the headers of records, as OpenTelemetry's propagators write it.

Operators pass headers on, so the context of an input record is in the headers of its results. A processor continues the trace with
:func:`extract`, and with :func:`inject` its results belong to the span that it has begun. The program provides OpenTelemetry's SDK, also in
Spark's workers; here is only the API.

Example:
    >>> from opentelemetry import trace
    >>> headers = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("tenant", b"a"))
    >>> trace.get_current_span(extract(headers)).get_span_context().trace_id == 0x4bf92f3577b34da6a3ce929d0e0e4736
    True
    >>> inject(headers, extract(headers)) == (headers[1], headers[0])
    True
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millstream.core.model.record import Headers

try:
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract as _extract
    from opentelemetry.propagate import get_global_textmap
    from opentelemetry.propagate import inject as _inject
    from opentelemetry.propagators.textmap import Getter
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "ms.tracing needs the package opentelemetry-api, which is not installed here: pip install 'millstream[opentelemetry]'",
        name=missing.name,
    ) from None

__all__ = ["extract", "inject"]


class _OfHeaders(Getter[Headers]):
    """Reads the headers of a record for a propagator."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        """Return the values of a header that are text."""
        found = [value for name, value in carrier if name.lower() == key.lower() and value is not None]
        return [value.decode(errors="replace") for value in found] or None

    def keys(self, carrier: Headers) -> list[str]:
        """Return the names of all headers."""
        return [name for name, _ in carrier]


_GETTER: Final = _OfHeaders()


def extract(headers: Iterable[tuple[str, bytes | None]]) -> Context:
    """Return the context of the trace that a record belongs to.

    Args:
        headers: The headers of the record.

    Returns:
        The context, for ``tracer.start_as_current_span(..., context=...)``; of no trace if the headers have none.
    """
    return _extract(tuple(headers), getter=_GETTER)


def inject(headers: Iterable[tuple[str, bytes | None]], context: Context | None = None) -> Headers:
    """Return the headers of a record that belongs to a trace.

    Args:
        headers: The other headers; those of a trace in them are replaced.
        context: The context of the trace; None is the current one.
    """
    carrier: dict[str, str] = {}
    _inject(carrier, context)
    fields = {name.lower() for name in get_global_textmap().fields}
    kept = tuple(header for header in headers if header[0].lower() not in fields)
    return (*kept, *((name, value.encode()) for name, value in carrier.items()))
