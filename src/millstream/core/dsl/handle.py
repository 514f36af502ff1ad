"""Handles: the objects that the DSL returns. A handle is a position in the graph, with the serdes known there.

The public handles derive from these bases. A handle knows the graph, but not the modules of the other handles.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn

from millstream.core.dsl.graph import Graph
from millstream.core.model.record import K, V
from millstream.core.model.serdes import Serde


class WithPythonNames:
    """An object of the DSL: the error for a method of Kafka Streams that it does not have names the method to use."""

    if not TYPE_CHECKING:  # for type checkers, unknown methods stay errors

        def __getattr__(self, name: str) -> NoReturn:
            # A copy that is being made has no attributes yet, so nothing that a private name asks for may be looked up.
            advice = "" if name.startswith("_") else self._advice(name, _python_name(name))
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{advice}", name=name, obj=self
            )

    def _advice(self, name: str, python_name: str) -> str:
        return f"; use {python_name}" if name != python_name and hasattr(type(self), python_name) else ""


def _python_name(name: str) -> str:
    return re.sub("(?<!^)(?=[A-Z])", "_", name).lower()


class Handle(WithPythonNames, Generic[K, V]):
    """The output of a node.

    Args:
        key: Serde of the keys, if known.
        value: Serde of the values, if known.
        rekeyed: Whether keys were changed since the records were last partitioned by key.
    """

    def __init__(
        self,
        graph: Graph,
        node: str,
        key: Serde[Any] | None,
        value: Serde[Any] | None,
        *,
        rekeyed: bool = False,
    ) -> None:
        self._graph = graph
        self._node = node
        self._key = key
        self._value = value
        self._rekeyed = rekeyed

    @property
    def _path(self) -> str:
        return self._graph.path(self._node, rekeyed=self._rekeyed)

    def _serdes(
        self, key: Serde[Any] | None = None, value: Serde[Any] | None = None
    ) -> tuple[Serde[Any], Serde[Any]]:
        """Return the given serdes, else those known from upstream, else the builder's defaults."""
        graph = self._graph
        return key or self._key or graph.default_key, value or self._value or graph.default_value


class StreamHandle(Handle[K, V]):
    """A stream of records."""

    advice_if_refused: ClassVar[str] = (
        "; to_table() turns a stream into a table, and group_by_key() groups it"
    )


class TableHandle(Handle[K, V]):
    """A table, as a stream of its changes."""

    advice_if_refused: ClassVar[str] = (
        "; to_stream() turns a table into a stream, and a stream is joined with a table by join() and left_join()"
    )

    def _advice(self, name: str, python_name: str) -> str:
        own = super()._advice(name, python_name)
        if own or not self._graph.streams_have(python_name):
            return own
        return f"; use to_stream().{python_name}(...)"
