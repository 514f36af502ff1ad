"""Transforming values: processors that leave keys as they are, and what turns the rows of a table into others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from penstock.core.topology.nodes import Process
from penstock.core.topology.processor import ProcessorContext

K = TypeVar("K")
V = TypeVar("V")
V2 = TypeVar("V2")


class ValueTransformer(Generic[K, V, V2]):
    """Base class of what ``KTable.transform_values`` runs: one new object per task and micro-batch, as a ``Processor``.

    It may use stores and schedule punctuators, but forwards nothing: a row has one value, the one that is returned.

    Source: ``org.apache.kafka.streams.kstream.ValueTransformerWithKey``.
    """

    context: ProcessorContext[Any, Any]

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        """Get ready; called once before the first row. Keeps the context as ``self.context``."""
        self.context = context

    def transform(self, key: K, value: V | None) -> V2 | None:
        """Give the new value of a row.

        Args:
            key: The row's key.
            value: Its value; None if the row was deleted.

        Returns:
            The new value; None deletes the new row.

        Raises:
            NotImplementedError: If the class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define transform(self, key, value)")

    def close(self) -> None:
        """Let go of what ``init`` acquired."""


@dataclass(frozen=True)
class ProcessValues(Process):
    """Runs a processor that leaves keys as they are (``FixedKeyProcessor``). Stream to stream."""


@dataclass(frozen=True)
class KeepStore(Process):
    """Runs the processor that alone writes to a store, which others only read (``addReadOnlyStateStore``). Stream to stream."""


@dataclass(frozen=True)
class TransformRows(Process):
    """Runs a value transformer on the changes of a table (``KTableTransformValues``). Table to table."""

    table: ClassVar[bool] = True
