"""The invariants that are checked at every commit and at the end of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from millstream.core.model.ids import TopicPartition
from millstream.core.model.record import Records
from millstream.core.state.changelog_records import from_records
from millstream.core.state.memory import MemoryStores
from millstream.core.topology.plan import Plan
from millstream.core.topology.stores import StoreSpec
from simulation.broker import Broker, Entry
from simulation.topologies import RESULTS, STORE, TOPIC, Kind, word_of


class WrongError(AssertionError):
    """An invariant is violated."""


class Watch:
    """Checks each commit when it happens.

    Args:
        broker: The model of the broker.
        kind: The kind of application.
        plan: The plan of the application.
        exactly_once: Whether the guarantee is exactly-once.
    """

    def __init__(self, broker: Broker, kind: Kind, plan: Plan, *, exactly_once: bool) -> None:
        self._broker = broker
        self._kind = kind
        self._plan = plan
        self._exactly_once = exactly_once
        self._delivered: dict[str, set[str]] = defaultdict(set)
        self._committed: dict[TopicPartition, int] = {}
        self.planned: Mapping[str, Mapping[int, int]] = {}
        """The end offsets of the micro-batches in the checkpoint."""
        broker.on_records = self.record
        broker.on_offsets = self.offsets

    def record(self, partition: TopicPartition, entry: Entry) -> None:
        """Register a committed record, which must be new if the guarantee is exactly-once."""
        if partition.topic in (RESULTS, *self._plan.repartition_topics):
            name = _newest(entry) if partition.topic == RESULTS else _text(entry.value)
            if self._exactly_once and name in self._delivered[partition.topic]:
                raise WrongError(f"{name} is in {partition.topic} twice")
            self._delivered[partition.topic].add(name)

    def offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Check that everything before the offsets of the application's group has been delivered."""
        if group != self._plan.application_id:
            return
        for partition, (offset, _) in offsets.items():
            if offset < self._committed.get(partition, 0):
                raise WrongError(f"the group's offset of {partition} goes back to {offset}")
            if partition.topic == TOPIC:
                self._check_delivered(partition, offset)
            self._committed[partition] = offset

    def _check_delivered(self, partition: TopicPartition, offset: int) -> None:
        if offset > self.planned.get(partition.topic, {}).get(partition.partition, 0):
            raise WrongError(f"offset {offset} of {partition} is committed, and no micro-batch goes so far")
        downstream = next(iter(self._plan.repartition_topics), RESULTS)
        if downstream == RESULTS and not self._kind.own_key and self._exactly_once:
            return  # a transaction commits the offsets that its Spark partition read; other transactions send the results
        before = self._committed.get(partition, 0)
        entries = self._broker.topics[partition.topic][partition.partition][before:offset]
        read = {_text(entry.value) for entry in entries if entry.state in ("plain", "committed")}
        if missing := read - self._delivered[downstream]:
            raise WrongError(f"offset {offset} of {partition} is committed without {sorted(missing)}")


def check_results(broker: Broker, kind: Kind, plan: Plan, *, exactly_once: bool) -> dict[str, str]:
    """Compare the output with the records of the input; return the newest result of each key.

    At least once, an abandoned attempt may send an old result again behind newer ones.
    """
    expected = _expected(broker, kind)
    actual: dict[str, list[str]] = defaultdict(list)
    for entry in _entries(broker, RESULTS):
        actual[_text(entry.key)].append(_text(entry.value))
    repeated = not exactly_once and bool(plan.repartition_topics)
    for key in expected.keys() | actual.keys():
        _check_key(
            key, expected.get(key, []), actual.get(key, []), kind, once=exactly_once, repeated=repeated
        )
    return {key: max(reversed(values), key=_count) for key, values in actual.items()}


def _check_key(
    key: str, expected: list[tuple[int, str]], actual: list[str], kind: Kind, *, once: bool, repeated: bool
) -> None:
    names = [value.partition("|")[2] for value in actual]
    if missing := {name for _, name in expected} - set(names):
        raise WrongError(f"{sorted(missing)} of key {key!r} are lost")
    if repeated:  # what is sent twice to a repartition topic counts twice
        return
    first = actual if once else list(dict.fromkeys(actual))
    counts = [_count(value) for value in first]
    if counts != list(range(1, len(expected) + 1)):
        raise WrongError(f"key {key!r} has {len(expected)} records, and the counts {counts}")
    result_names = [value.partition("|")[2] for value in first]
    for partition in {partition for partition, _ in expected}:
        sent = [name for source_partition, name in expected if source_partition == partition]
        sent_names = set(sent)
        if [name for name in result_names if name in sent_names] != sent:
            raise WrongError(
                f"key {key!r}: records of partition {partition} are out of order: {result_names}"
            )


def check_store(content: Mapping[bytes, bytes], newest: Mapping[str, str]) -> None:
    """Compare the store with the newest results."""
    if len(content) != len(newest):
        raise WrongError(f"the store has {len(content)} keys, and there are results of {len(newest)}")
    values = list(content.values())
    for key, value in newest.items():
        if not any(stored.endswith(value.encode()) for stored in values):
            raise WrongError(f"the newest result of {key!r} is {value}, and the store does not hold it")


def check_changelog(
    broker: Broker, topic: str, spec: StoreSpec, content: Mapping[bytes, bytes], *, exactly_once: bool
) -> None:
    """Compare the changelog topic with the store.

    At least once, an abandoned attempt may write an old value behind newer ones.
    """
    copy = MemoryStores()
    for partition in range(len(broker.topics[topic])):
        read = [entry for _, entry in broker.read(TopicPartition(topic, partition), committed=True)]
        if not exactly_once:
            read.sort(key=lambda entry: _count(_text(entry.value)))
        columns = Records(
            [entry.key for entry in read],
            [entry.value for entry in read],
            [entry.timestamp for entry in read],
        )
        columns.offsets = list(range(len(read)))
        copy.apply(from_records(spec, columns))
    restored = dict(copy.open(STORE).scan(None, None))
    if restored != content:
        raise WrongError(f"the changelog holds {restored}, and the store {content}")


def _expected(broker: Broker, kind: Kind) -> dict[str, list[tuple[int, str]]]:
    expected: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for partition in range(len(broker.topics[TOPIC])):
        for _, entry in broker.read(TopicPartition(TOPIC, partition), committed=True):
            name = _text(entry.value)
            expected[_text(entry.key) if kind.own_key else word_of(name)].append((partition, name))
    return expected


def _entries(broker: Broker, topic: str) -> Iterable[Entry]:
    for partition in range(len(broker.topics[topic])):
        for _, entry in broker.read(TopicPartition(topic, partition), committed=True):
            yield entry


def _count(result: str) -> int:
    return int(result.partition("|")[0])


def _newest(result: Entry) -> str:
    return _text(result.value).partition("|")[2]


def _text(data: bytes | None) -> str:
    assert data is not None
    return data.decode()
