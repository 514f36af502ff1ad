"""BranchedKStream: a stream that is being split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Generic

from millstream.core.dsl.handle import StreamHandle, WithPythonNames
from millstream.core.model.arguments import checked_methods
from millstream.core.model.errors import TopologyError
from millstream.core.model.record import K, V
from millstream.core.topology import nodes

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KStream


@checked_methods
class BranchedKStream(WithPythonNames, Generic[K, V]):
    """A stream that is being split. Returned by ``KStream.split``.

    :meth:`branch` adds each branch immediately. :meth:`default` and :meth:`no_default` return the branches. A split that ends with neither
    also has its branches, and drops the records that match none of them.

    Source: ``org.apache.kafka.streams.kstream.BranchedKStream`` (KIP-418).
    """

    def __init__(self, stream: StreamHandle[K, V], name: str | None) -> None:
        self._stream = stream
        self._prefix = name or ""
        self._node = stream._graph.name("KSTREAM-BRANCH", name or None)
        self._names: list[str] = []
        self._ended = False
        self._results: dict[str, KStream[K, V]] = {}
        self._branch = nodes.Branch(self._node, (stream._node,), (), ())
        stream._graph.add(self._branch)

    def branch(
        self,
        predicate: Callable[[K, V], object],
        *,
        name: str | None = None,
        then: Callable[[KStream[K, V]], KStream[K, V] | None] | None = None,
    ) -> BranchedKStream[K, V]:
        """Add a branch.

        Args:
            predicate: ``(key, value) -> bool``.
            name: Follows the prefix of ``split``; None uses the number of the branch, from 1.
            then: Called immediately with the stream of the branch. The returned stream replaces the branch in the results; None removes
                the branch from the results.

        Returns:
            This split.

        Raises:
            TopologyError: If two branches have the same name, or the split already has a default branch.

        Source: ``BranchedKStream.branch``; ``Branched.withFunction`` and ``withConsumer`` for ``then`` (KIP-418).

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> split = builder.stream("in").split().branch(lambda k, v: not v, then=lambda empty: empty.to("empty"))
            >>> list(split.default(name="rest"))
            ['rest']
        """
        return self._add(predicate, name, len(self._names) + 1, then)

    def default(
        self,
        *,
        name: str | None = None,
        then: Callable[[KStream[K, V]], KStream[K, V] | None] | None = None,
    ) -> dict[str, KStream[K, V]]:
        """Add a branch for the records that match no other branch, and return all branches.

        Args:
            name: As in :meth:`branch`; None uses ``0``.
            then: As in :meth:`branch`.

        Returns:
            The streams by prefix and name.

        Raises:
            TopologyError: If a branch already has the name, or the split already has a default branch.

        Source: ``BranchedKStream.defaultBranch``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> branches = builder.stream("in").split().branch(lambda key, value: len(value) > 3, name="long").default(name="short")
            >>> branches["short"].to("short")
            >>> driver = ms.testing.TopologyTestDriver(builder.build())
            >>> for value in ("tea", "coffee"):
            ...     driver.pipe("in", "k", value)
            >>> [record.value for record in driver.read("short")]
            ['tea']
        """
        self._add(None, name, 0, then)
        self._ended = True
        return dict(self._results)

    def no_default(self) -> dict[str, KStream[K, V]]:
        """Drop the records that match no branch, and return the branches.

        Returns:
            The streams by prefix and name.

        Source: ``BranchedKStream.noDefaultBranch``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> sorted(builder.stream("in").split().branch(lambda key, value: len(value) > 3).no_default())
            ['1']
        """
        return dict(self._results)

    def _add(
        self,
        predicate: Callable[[K, V], object] | None,
        given: str | None,
        number: int,
        then: Callable[[KStream[K, V]], KStream[K, V] | None] | None,
    ) -> BranchedKStream[K, V]:
        stream, graph = self._stream, self._stream._graph
        name = str(number) if given is None else given
        if self._ended:
            raise TopologyError(
                f"the split already has a default branch, so no record would reach the branch {name!r}"
            )
        if name in self._names:
            raise TopologyError(
                f"two branches of a split have the name {name!r}; branch names must be unique"
            )
        self._names.append(name)
        route = self._node + name
        graph.name("KSTREAM-BRANCH")  # Kafka Streams counts each branch
        self._branch = replace(
            self._branch,
            predicates=(*self._branch.predicates, predicate),
            routes=(*self._branch.routes, route),
        )
        graph.topology.replace(self._branch)
        graph.add(nodes.Pass(route, (self._node,)))
        if self._prefix:
            graph.names.begin(route, route)
        elif given is not None:
            graph.names.begin(route, f"{graph.path(stream._node)}-{name}")
        branch = graph.stream(route, stream._key, stream._value, rekeyed=stream._rekeyed)
        result = branch if then is None else then(branch)
        if result is not None:
            self._results[self._prefix + name] = result
        return self
