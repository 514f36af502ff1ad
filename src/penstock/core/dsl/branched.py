"""BranchedKStream: a stream that is being split."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from penstock.core.model.errors import TopologyError
from penstock.core.plan import nodes

if TYPE_CHECKING:
    from penstock.core.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")


class BranchedKStream(Generic[K, V]):
    """A stream that is being split; ends with :meth:`default` or :meth:`no_default` (``BranchedKStream``)."""

    def __init__(self, stream: KStream[K, V], name: str | None) -> None:
        self._stream = stream
        self._prefix = name or ""
        self._node = stream._graph.name("KSTREAM-BRANCH", name or None)
        self._branches: list[_Branch] = []
        self._named: set[str] = set()

    def branch(
        self,
        predicate: Callable[[K, V], object],
        *,
        name: str | None = None,
        then: Callable[[KStream[K, V]], KStream[K, V] | None] | None = None,
    ) -> BranchedKStream[K, V]:
        """Add a branch.

        Args:
            predicate: Of key and value.
            name: Comes behind the prefix of ``split``; None is the number of the branch, from 1.
            then: Called with the stream of the branch when the split ends. The stream that it gives takes the place of the
                branch; if it gives None, the branch is not among the results.

        Raises:
            TopologyError: If two branches have one name.

        Source: ``Branched.withFunction`` and ``withConsumer`` (KIP-418) for ``then``.

        Example:
            >>> import penstock as ps
            >>> builder = ps.StreamsBuilder()
            >>> split = builder.stream("in").split().branch(lambda k, v: not v, then=lambda empty: empty.to("empty"))
            >>> list(split.default(name="rest"))
            ['rest']
        """
        return self._add(predicate, name, len(self._branches) + 1, then)

    def default(
        self,
        *,
        name: str | None = None,
        then: Callable[[KStream[K, V]], KStream[K, V] | None] | None = None,
    ) -> dict[str, KStream[K, V]]:
        """Send what fits no branch to one more; give all branches by prefix and name (its own name: ``0``).

        For the arguments see :meth:`branch`.
        """
        return self._add(None, name, 0, then).no_default()

    def no_default(self) -> dict[str, KStream[K, V]]:
        """Leave out what fits no branch; give the branches by prefix and name."""
        from penstock.core.dsl.kstream import KStream  # a stream is split and its branches are streams

        stream, graph, node = self._stream, self._stream._graph, self._node
        routes = tuple(node + branch.name for branch in self._branches)
        predicates = tuple(branch.predicate for branch in self._branches)
        graph.add(nodes.Branch(node, (stream._node,), predicates, routes))
        result = {}
        for route, branch in zip(routes, self._branches):
            graph.add(nodes.Pass(route, (node,)))
            self._begin_path(route, branch.name)
            made = KStream[K, V](graph, route, stream._key, stream._value, rekeyed=stream._rekeyed)
            given = made if branch.then is None else branch.then(made)
            if given is not None:
                result[self._prefix + branch.name] = given
        return result

    def _begin_path(self, route: str, name: str) -> None:
        """Let the path of a branch begin with its name, if it has one; a split without a name is not in it."""
        graph = self._stream._graph
        if self._prefix:
            graph.names.begin(route, route)
        elif name in self._named:
            graph.names.begin(route, f"{graph.path(self._stream._node)}-{name}")

    def _add(
        self,
        predicate: Callable[[K, V], object] | None,
        given: str | None,
        number: int,
        then: Callable[[Any], Any] | None,
    ) -> BranchedKStream[K, V]:
        name = str(number) if given is None else given
        if any(name == other.name for other in self._branches):
            raise TopologyError(f"two branches of a split are called {name!r}")
        self._branches.append(_Branch(predicate, name, then))
        self._stream._graph.name("KSTREAM-BRANCH")  # Kafka Streams counts each branch
        if given is not None:
            self._named.add(name)
        return self


class _Branch(NamedTuple):
    """A branch: what goes there, its name, and what makes of its stream what is given back."""

    predicate: Callable[[Any, Any], object] | None
    name: str
    then: Callable[[Any], Any] | None
