"""Traces through records: the headers of records carry the trace context, in the format of OpenTelemetry's propagators.

Operators pass headers on, so the headers of results contain the context of their input record. A processor continues the trace with
:func:`extract`; with :func:`inject`, its results belong to the span that it has started. Millstream uses only OpenTelemetry's API; the
program provides the SDK, also in Spark's workers.

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
    """Lets a propagator read the headers of a record."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        """Return the values of a header as text; None without values."""
        found = [value for name, value in carrier if name.lower() == key.lower() and value is not None]
        return [value.decode(errors="replace") for value in found] or None

    def keys(self, carrier: Headers) -> list[str]:
        """Return the names of all headers."""
        return [name for name, _ in carrier]


_GETTER: Final = _OfHeaders()


def extract(headers: Iterable[tuple[str, bytes | None]]) -> Context:
    """Return the trace context of a record. For an example, see the module.

    Args:
        headers: The headers of the record.

    Returns:
        The context, for ``tracer.start_as_current_span(..., context=...)``; without a trace if the headers contain none.

    Source: OpenTelemetry's ``TextMapPropagator.extract``.
    """
    return _extract(tuple(headers), getter=_GETTER)


def inject(headers: Iterable[tuple[str, bytes | None]], context: Context | None = None) -> Headers:
    """Return headers with a trace context. For an example, see the module.

    Args:
        headers: The headers of the record; an existing trace context in them is replaced.
        context: The trace context; None for the current one.

    Returns:
        The other headers, then those of the trace context.

    Source: OpenTelemetry's ``TextMapPropagator.inject``.
    """
    carrier: dict[str, str] = {}
    _inject(carrier, context)
    fields = {name.lower() for name in get_global_textmap().fields}
    kept = tuple(header for header in headers if header[0].lower() not in fields)
    return (*kept, *((name, value.encode()) for name, value in carrier.items()))
