"""Folding: the aggregations of grouped streams that need no function of the user: sum, min, max and mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millstream.core.model import means, serdes
from millstream.core.model.arguments import checked_methods
from millstream.core.model.expressions import applied, col
from millstream.core.topology.folds import Fold
from millstream.core.topology.stores import Kept

if TYPE_CHECKING:
    from millstream.core.dsl.ktable import KTable

R = TypeVar("R")
V = TypeVar("V")

MEAN = applied(means.mean_of, col())
"""The mean as an expression of its sums."""


@checked_methods
class Folding(ABC, Generic[R, V]):
    """A grouped stream, with or without windows, whose values can be added up and compared.

    The results are by key; where there are windows, by key and window or session. Records without a value are left out and
    counted as dropped. The engine knows these aggregations, so it need not call a function for each record.

    Kafka Streams has ``count`` and ``reduce``, by which it says the others.
    """

    def sum(self, *, store: Kept | None = None, name: str | None = None) -> KTable[R, V]:
        """Add up the values, as ``reduce`` with ``operator.add`` does.

        Args:
            store: Name of the store of the sums.
            name: Name of the node, and without ``store`` first part of that of the store.

        Returns:
            A table from key to sum, with the serde of the values.

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

    def min(self, *, store: Kept | None = None, name: str | None = None) -> KTable[R, V]:
        """Keep the smallest value; of equal ones the first.

        Args:
            store: Name of the store of the values.
            name: As in :meth:`sum`.
        """
        return self._folded(store, name, Fold.MIN)

    def max(self, *, store: Kept | None = None, name: str | None = None) -> KTable[R, V]:
        """Keep the largest value; of equal ones the first.

        Args:
            store: Name of the store of the values.
            name: As in :meth:`sum`.
        """
        return self._folded(store, name, Fold.MAX)

    def mean(self, *, store: Kept | None = None, name: str | None = None) -> KTable[R, float]:
        """Give the mean of the values, which are numbers (int or float).

        Args:
            store: Name of the store. It keeps the sum of the numbers and how many they are; whole numbers are added up exactly.
            name: As in :meth:`sum`.

        Returns:
            A table from key to mean, with ``serdes.float64``.

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

    @abstractmethod
    def _folded(self, store: Kept | None, name: str | None, fold: Fold) -> KTable[R, Any]:
        """Add the aggregation; a mean's values are sums."""
