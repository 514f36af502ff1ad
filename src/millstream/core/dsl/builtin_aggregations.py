"""Folding: the aggregations of all grouped streams: reduce, sum, min, max and mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millstream.core.dsl.handle import WithPythonNames
from millstream.core.dsl.operators.aggregation import MEAN, GroupedAggregation, Grouping, folding, reducing
from millstream.core.model import serdes
from millstream.core.model.arguments import checked_methods
from millstream.core.model.record import V
from millstream.core.topology.folds import Fold
from millstream.core.topology.stores import StoreLike

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KTable

R = TypeVar("R")


@checked_methods
class Folding(WithPythonNames, ABC, Generic[R, V]):
    """The aggregations of a grouped stream that are the same with and without windows.

    Results are by key, or by key and window or session. Built-in aggregations drop and count records without a value, and the engine can
    compute them without a function call per record. Kafka Streams has only ``count`` and ``reduce``, which can express the others.

    Each method raises ``ArgumentError`` if an argument has a wrong type, and ``TopologyError`` if a name is in use, or if the retention
    of a window or session store is too short for the windows.
    """

    _grouping: Grouping

    def reduce(
        self, reducer: Callable[[V, V], V | None], *, store: StoreLike | None = None, name: str | None = None
    ) -> KTable[R, V]:
        """Combine the values. The first value of a key, a window or a session is its first result.

        Args:
            reducer: ``(current value, new value) -> value``, also applied to two sessions that are merged; None deletes the entry.
            store: Name of the store of the results, or ``ms.stores.options(name, ...)``.
            name: As in :meth:`sum`.

        Returns:
            A table from key to result, with the serde of the values.

        Raises:
            TopologyError: If the store's retention is too short for the windows; see ``count``.

        Source: ``KGroupedStream.reduce``, ``TimeWindowedKStream.reduce``, ``SessionWindowedKStream.reduce``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("bids", value=ms.serdes.int64).group_by_key().reduce(max, store="highest").to_stream().to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for bid in (3, 7, 5):
            ...     driver.pipe("bids", "vase", bid)
            >>> [record.value for record in driver.read("out")]
            [3, 7, 7]
        """
        return self._aggregated(reducing(reducer, self._grouping.value), store, name)

    def sum(self, *, store: StoreLike | None = None, name: str | None = None) -> KTable[R, V]:
        """Sum the values, like ``reduce`` with ``operator.add``.

        Args:
            store: Name of the store of the sums.
            name: Name of the node; without ``store``, also the first part of the store's name.

        Returns:
            A table from key to sum, with the serde of the values.

        Source: Kafka Streams has no sum; it is ``KGroupedStream.reduce`` with addition.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("paid", value=ms.serdes.int64).group_by_key().sum(store="sums").to_stream().to("sums")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for amount in (3, 4):
            ...     driver.pipe("paid", "ann", amount)
            >>> [record.value for record in driver.read("sums")]
            [3, 7]
        """
        return self._folded(store, name, Fold.SUM)

    def min(self, *, store: StoreLike | None = None, name: str | None = None) -> KTable[R, V]:
        """Keep the smallest value, and the first of equal values.

        Args:
            store: Name of the store of the values.
            name: As in :meth:`sum`.

        Returns:
            A table from key to smallest value, with the serde of the values.

        Source: Kafka Streams has no minimum; it is ``KGroupedStream.reduce`` with ``min``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("bids", value=ms.serdes.int64).group_by_key().min(store="lowest").to_stream().to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for bid in (5, 7, 3):
            ...     driver.pipe("bids", "vase", bid)
            >>> [record.value for record in driver.read("out")]
            [5, 5, 3]
        """
        return self._folded(store, name, Fold.MIN)

    def max(self, *, store: StoreLike | None = None, name: str | None = None) -> KTable[R, V]:
        """Keep the largest value, and the first of equal values.

        Args:
            store: Name of the store of the values.
            name: As in :meth:`sum`.

        Returns:
            A table from key to largest value, with the serde of the values.

        Source: Kafka Streams has no maximum; it is ``KGroupedStream.reduce`` with ``max``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> builder.stream("bids", value=ms.serdes.int64).group_by_key().max(store="highest").to_stream().to("out")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for bid in (5, 3, 7):
            ...     driver.pipe("bids", "vase", bid)
            >>> [record.value for record in driver.read("out")]
            [5, 5, 7]
        """
        return self._folded(store, name, Fold.MAX)

    def mean(self, *, store: StoreLike | None = None, name: str | None = None) -> KTable[R, float]:
        """Compute the mean of the values, which must be int or float.

        Args:
            store: Name of the store, which contains the sum and the count of the values. Integers are summed exactly.
            name: As in :meth:`sum`.

        Returns:
            A table from key to mean, with ``serdes.float64``.

        Source: Kafka Streams has no mean; it is ``KGroupedStream.aggregate`` with sum and count.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> paid = builder.stream("paid", value=ms.serdes.int64).group_by_key()
            >>> paid.windowed_by(ms.TumblingWindows(1000, grace=0)).mean(store="means").to_stream().to("means")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for timestamp, amount in ((0, 3), (999, 4), (1000, 5)):
            ...     driver.pipe("paid", "ann", amount, timestamp)
            >>> [(record.key.start, record.value) for record in driver.read("means")]
            [(0, 3.0), (0, 3.5), (1000, 5.0)]
        """
        return self._folded(store, name, Fold.MEAN).map_values(MEAN, value=serdes.float64)

    def _folded(self, store: StoreLike | None, name: str | None, fold: Fold) -> KTable[R, Any]:
        """Add a built-in aggregation. For a mean, the values in the store are sums."""
        return self._aggregated(folding(fold, self._grouping.value), store, name)

    @abstractmethod
    def _aggregated(
        self, aggregation: GroupedAggregation, store: StoreLike | None, name: str | None
    ) -> KTable[R, Any]: ...
