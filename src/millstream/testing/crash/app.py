"""The description of an application for the harness: topology, workload and expected results.

The *workload* consists of the records of the input topic, generated from a seed. The *oracle* is a plain function that computes the
expected results: for every key of the output topic the values in order (its *journal*), and the final content of every store. Its
argument is the records as stored on the broker, so it can rely on their order within a partition. It does not use Millstream.

Stores are compared by a query: a record in the *ask* topic makes the application forward all entries of its stores to the *contents*
topic. The comparison therefore uses what the running application itself reads from its stores. Rejected: reading the checkpoint or local
copies from outside, which would test the reader; and a final start with ``until="end"``, which would cost as much as a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from millstream.core.model import serdes
from millstream.core.model.record import Record, ValueAndTimestamp
from millstream.core.model.serdes import Serde
from millstream.core.topology.processor import Processor
from millstream.core.topology.topology import Topology
from millstream.testing.kafka import ConsumedRecord, Outgoing

Guarantee = Literal["at_least_once", "exactly_once"]
"""The values of the setting ``processing_guarantee``."""

Change = Literal["splits", "workers"]
"""What changes while an application runs: the key ranges of a split partition, or the number of workers per partition."""

Entry = tuple[str, Any]
"""The name of a store, and a key."""


@dataclass(frozen=True)
class Topics:
    """The topics of one run, all with the same number of partitions.

    Attributes:
        input: The workload.
        output: The results.
        ask: Queries. A record in each partition requests the contents of the stores.
        contents: The answers.
        history: A second input, for applications that have one.
    """

    input: str
    output: str
    ask: str
    contents: str
    history: str = "history"


@dataclass(frozen=True)
class Expected:
    """The results that an oracle expects.

    Attributes:
        journals: For each key of the output topic, its values in order.
        stores: For each store, its entries without timestamps.
        origins: For each key, the input record of each of its values. If given, each result must have the timestamp and the headers
            of its origin.
        updates: For stores with changelog topics, all values of each key in order. If given, the topic must contain them in that
            order, each at most once under exactly once; values that a micro-batch overwrites may be missing.
    """

    journals: Mapping[Any, Sequence[Any]]
    stores: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    origins: Mapping[Any, Sequence[ConsumedRecord]] | None = None
    updates: Mapping[str, Mapping[Any, Sequence[Any]]] = field(default_factory=dict)


class Journals:
    """Collects what an oracle expects, with the record from which each value comes."""

    def __init__(self) -> None:
        self.values: dict[str, list[Any]] = {}
        self._origins: dict[str, list[ConsumedRecord]] = {}

    def add(self, key: str, origin: ConsumedRecord, value: Any) -> None:
        self.values.setdefault(key, []).append(value)
        self._origins.setdefault(key, []).append(origin)

    def last_value(self, key: str, otherwise: Any) -> Any:
        return self.values[key][-1] if key in self.values else otherwise

    def expected(self, **stores: Mapping[Any, Any]) -> Expected:
        return Expected(self.values, stores, self._origins)

    def part(self, index: int) -> dict[str, list[Any]]:
        return {key: [value[index] for value in values] for key, values in self.values.items()}


@dataclass(frozen=True)
class App:
    """An application that the harness can run.

    Attributes:
        name: The name in reports; letters, digits and dashes.
        topology: Builds the topology for given topics. It is sent to the application's process with cloudpickle.
        workload: Creates the records of the input topic, from their number and a seed.
        oracle: Computes the expected results from the records of the input topic, by partition, then by offset, followed by those
            of the second input in the same order.
        key: Serde of the output's keys.
        value: Serde of the output's values.
        settings: Settings of the application, which override those of the harness.
        merged: Whether a cache may merge results of a key within a micro-batch; then only the last value is required.
        output: Configuration of the output topic.
        history: Creates the records of a second input. If given, both inputs are written before the application starts, as a backlog
            that must be processed in the order of time.
        changes: What changes again and again during the run. With ``splits``, a partition of the input topic is split and merged; the
            topology reads it with ``fan_out=True``, and the oracle receives its records in the order in which they were sent.
    """

    name: str
    topology: Callable[[Topics], Topology]
    workload: Callable[[int, int], Sequence[Outgoing]]
    oracle: Callable[[Sequence[ConsumedRecord]], Expected]
    key: Serde[Any] = serdes.string
    value: Serde[Any] = serdes.string
    settings: Mapping[str, Any] = field(default_factory=dict)
    merged: bool = False
    output: Mapping[str, str] = field(default_factory=dict)
    history: Callable[[int, int], Sequence[Outgoing]] | None = None
    changes: Change | None = None

    @property
    def splits(self) -> bool:
        """Whether a partition of the input topic is split and merged."""
        return self.changes == "splits"


@dataclass(frozen=True)
class Job:
    """The job of the application's process; see :mod:`millstream.edge.application.job_process`.

    Attributes:
        topology: Builds the topology.
        clock: The application's wall clock; None uses the clock of the host.
        standby: Whether the program is one of several drivers, of which one is elected.
    """

    application_id: str
    topology: Callable[[Topics], Topology]
    topics: Topics
    settings: Mapping[str, Any]
    clock: Callable[[], int] | None = None
    standby: bool = False


def tell_contents(topology: Topology, topics: Topics, stores: Iterable[str]) -> Topology:
    """Add a processor to a topology that forwards the contents of stores on request.

    The stores are connected to one processor and are therefore in one sub-topology, whose input topics must have equal partition counts.

    Args:
        topology: A topology that has the stores.
        topics: The topics of the run. Requests are read from ``ask``, answers go to ``contents``.
        stores: Names of stores that have ``all()``, with any serdes.

    Returns:
        The same topology.

    Raises:
        TopologyError: If the topology has no such store.

    Example:
        >>> import millstream as ms
        >>> topics = Topics("clicks", "counts", "ask", "contents")
        >>> builder = ms.StreamsBuilder()
        >>> builder.stream("clicks").group_by_key().count(store="n").to_stream().to("counts", value=ms.serdes.int64)
        >>> driver = ms.testing.TopologyTestDriver(tell_contents(builder.build(), topics, ["n"]))
        >>> driver.pipe("clicks", "ann", "x", 1)
        >>> driver.pipe("ask", None, "", 1)
        >>> driver.read("contents")
        [Record(key=('n', 'ann'), value=1, timestamp=1, headers=())]
    """
    names = tuple(stores)
    topology.add_source("ask-contents", topics.ask)
    topology.add_processor("tell-contents", lambda: _Teller(names), "ask-contents", stores=names)
    return topology.add_sink(
        "contents", topics.contents, "tell-contents", key=serdes.pickle, value=serdes.pickle
    )


class _Teller(Processor[Any, Any, Entry, Any]):
    def __init__(self, stores: tuple[str, ...]) -> None:
        self._stores = stores

    def process(self, record: Record[Any, Any]) -> None:
        for store in self._stores:
            for key, value in self.context.state_store(store).all():
                plain = value.value if isinstance(value, ValueAndTimestamp) else value
                self.context.forward(Record((store, key), plain, record.timestamp))
