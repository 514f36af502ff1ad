"""What the harness has to know of an application: its topology, its workload, and what must come out.

The *workload* is what is written to the input topic, made from a seed. The *oracle* is a plain function that says what the
application must make of it: for every key of the output topic the values in order (its *journal*), and at the end the
content of every store. The oracle is given the records as the broker holds them, so it can rely on their order within a
partition, and nothing of Millstream takes part in the answer.

Stores are compared through a question: a record in the *ask* topic makes the application forward all entries of its stores
to the *contents* topic. So what is compared is what the running application itself reads from its stores. Rejected: reading
checkpoint or local copies from outside, which would test the reader, and a last start with ``until="end"``, which would
cost as much as a kill.
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

Entry = tuple[str, Any]
"""Where something is kept: the name of a store, and a key."""


@dataclass(frozen=True)
class Topics:
    """The topics of one run, all with the same number of partitions.

    Attributes:
        input: The workload.
        output: The results.
        ask: A record in each partition asks for the contents of the stores.
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
    """What an oracle says.

    Attributes:
        journals: For each key of the output topic the values in order.
        stores: For each store its entries, without timestamps.
        origins: For each key the records of the input that its values come from, as many as values. If they are given, each
            result must have the timestamp and the headers of its origin.
        updates: For stores with changelog topics, and each of their keys, all values in order. If they are given, the topic must
            hold them in that order, each at most once at exactly once; those that a micro-batch has overwritten may be missing.
    """

    journals: Mapping[Any, Sequence[Any]]
    stores: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    origins: Mapping[Any, Sequence[ConsumedRecord]] | None = None
    updates: Mapping[str, Mapping[Any, Sequence[Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class App:
    """An application that can be run under the harness.

    Attributes:
        name: What it is called in reports; letters, digits and dashes.
        topology: Makes the topology for given topics; crosses to the application's process as cloudpickle.
        workload: Makes the records of the input topic from their number and a seed.
        oracle: Says what must come out of the records of the input topic, which come by partition, then by offset; behind
            them those of the second input, likewise.
        key: Serde of the output's keys.
        value: Serde of the output's values.
        settings: Settings of the application, over those of the harness.
        merged: Whether a cache may merge results of a key within a micro-batch; then only the last of its values must come.
        output: Configuration of the output topic.
        history: Makes the records of a second input. With one, both inputs are written before the application starts: a
            backlog that it has to go through in the order of time.
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


@dataclass(frozen=True)
class Job:
    """What the application's process is given: see :mod:`millstream.edge.program`.

    Attributes:
        application_id: Its id.
        topology: Makes its topology.
        topics: For this.
        settings: Its settings.
        clock: Its wall clock; None: that of the host.
    """

    application_id: str
    topology: Callable[[Topics], Topology]
    topics: Topics
    settings: Mapping[str, Any]
    clock: Callable[[], int] | None = None


def tell_contents(topology: Topology, topics: Topics, stores: Iterable[str]) -> Topology:
    """Let a topology tell the contents of stores when it is asked.

    The stores meet in one processor and so in one sub-topology, whose input topics must have equal numbers of partitions.

    Args:
        topology: A topology that has the stores.
        topics: Where it is asked, and where it answers.
        stores: Names of stores that have ``all()``, with any serdes.

    Returns:
        The same topology.

    Raises:
        TopologyError: If it has no such store.

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
    """Forwards every entry of its stores for each record."""

    def __init__(self, stores: tuple[str, ...]) -> None:
        self._stores = stores

    def process(self, record: Record[Any, Any]) -> None:
        for store in self._stores:
            for key, value in self.context.state_store(store).all():
                plain = value.value if isinstance(value, ValueAndTimestamp) else value
                self.context.forward(Record((store, key), plain, record.timestamp))
