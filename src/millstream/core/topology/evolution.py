"""Evolution: how an edited topology continues from the checkpoint of an earlier topology.

State is looked up by *task*, and therefore by the number of the sub-topology. ``split`` numbers sub-topologies in program order, and a
source that is added before others changes that order. A checkpoint therefore contains the *parts* that have state: for each number, the
topics and the stores of the sub-topology. An edited topology takes its numbers from these parts:

1. A sub-topology takes the number of the part with its stores. Stores are identified by name, so the match is unambiguous. If its
   stores come from two parts, or two sub-topologies match one part, state would have to move between tasks, which is refused.
2. Any other sub-topology takes the number of the part with which it shares the most source topics.
3. The remaining sub-topologies are new and receive numbers that no part has ever had.

Records must reach the tasks of a part with stores in the same way as before; see ``millstream.core.topology.routing``.

A part whose sub-topology has been removed keeps its number for ever, without topics: its state is deleted, and its number is not
reused, so that a new sub-topology never finds old state. In a plan, such a number is a sub-topology without nodes.

See docs/decisions/0018-edited-topologies-keep-their-state.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from millstream.core.model.errors import IncompatibleTopologyError, SettingsError
from millstream.core.model.ids import TaskId
from millstream.core.model.positions import Offsets, positions_from_json
from millstream.core.model.topics import checked_name
from millstream.core.topology.internal import repartition_topic
from millstream.core.topology.layout import Layout
from millstream.core.topology.patterns import mark_of
from millstream.core.topology.plan import Plan, SubTopology, counted
from millstream.core.topology.routing import Routing

V = TypeVar("V")


class ComparedPart(NamedTuple):
    """The entry of a sub-topology in a checkpoint.

    Attributes:
        topics: Its source topics and the marks of its patterns; empty if the sub-topology has been removed.
        tasks: The largest number of tasks that it has ever had.
    """

    topics: tuple[str, ...]
    stores: tuple[str, ...]
    tasks: int


_REMOVED: Final = ComparedPart((), (), 0)


@dataclass(frozen=True)
class Remembered:
    """The topology of a checkpoint, from its last offset; empty if there is no checkpoint.

    Attributes:
        internal: Number of partitions by repartition topic.
        topic_ids: Topic id, assigned by the broker, of each topic that was read.
        positions: First unplanned offset by topic and partition.
        unfinished: The kind of the asynchronous operator by store of its unfinished records; empty if an older version wrote the offset.
        routing: How records reach tasks.
    """

    stores: Mapping[str, str] = field(default_factory=dict)
    internal: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[int, ComparedPart] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    positions: Offsets = field(default_factory=dict)
    unfinished: Mapping[str, str] = field(default_factory=dict)
    routing: Routing = field(default_factory=Routing)

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> Remembered:
        """Decode an offset of the planner. Fields that an older version of Millstream did not write are empty."""
        return cls(
            offset.get("stores", {}),
            offset.get("internal", {}),
            parts_from_json(offset.get("parts", {})),
            offset.get("topic_ids", {}),
            positions_from_json(offset.get("topics", {})),
            _kinds_from_json(offset.get("unfinished", {})),
            Routing.from_json(offset["routing"]) if "routing" in offset else Routing(),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the entries of an offset other than the positions, as JSON-compatible data."""
        parts = {
            str(number): [*map(list, part[:2]), part.tasks] for number, part in sorted(self.parts.items())
        }
        data: dict[str, Any] = {"stores": dict(self.stores), "internal": dict(self.internal)}
        if self.unfinished:
            data["unfinished"] = dict(sorted(self.unfinished.items()))
        data.update(parts=parts, topic_ids=dict(self.topic_ids), routing=self.routing.to_json())
        return data

    def with_parts_of(self, previous: Remembered) -> Remembered:
        """Return a copy with the parts of the micro-batch before that this topology removed.

        A micro-batch that removes parts may fail. If the earlier topology then repeats it, the parts continue with their state. If the
        micro-batch was completed, the state of removed parts is empty.
        """
        kept = {store for part in self.parts.values() for store in part.stores}
        removed = {
            number: part._replace(stores=tuple(store for store in part.stores if store not in kept))
            for number, part in previous.parts.items()
            if part.topics and not self.parts.get(number, _REMOVED).topics
        }
        internal = {**previous.internal, **self.internal}
        return replace(self, parts={**self.parts, **removed}, internal=internal) if removed else self

    def renamed(self, names: Mapping[str, str], application_id: str) -> Remembered:
        """Return a copy with new names of stores and of the repartitions that are named after them.

        Raises:
            IncompatibleTopologyError: If an old name does not exist, or its new name already exists.
        """
        for old, new in names.items():
            _check_rename(old, new, self.stores)
        parts = {
            number: part._replace(stores=tuple(names.get(store, store) for store in part.stores))
            for number, part in self.parts.items()
        }
        topics = {
            repartition_topic(application_id, a): repartition_topic(application_id, b)
            for a, b in names.items()
        }
        internal = {**with_new_names(self.internal, topics), **self.internal}
        stores = with_new_names(self.stores, names)
        unfinished = with_new_names(self.unfinished, names)
        routing = self.routing.renamed(names, topics)
        return replace(
            self, stores=stores, internal=internal, parts=parts, unfinished=unfinished, routing=routing
        )


@dataclass(frozen=True)
class Lineage:
    """What a running topology writes to the checkpoint, and what it has taken over under new names.

    Attributes:
        topic_ids: Topic id, assigned by the broker, of each topic that is read or was read before, if the broker has topic ids.
        appeared: Topics that a pattern matches now, or that belong to a split partition, and that did not exist at the last start.
    """

    parts: Mapping[int, ComparedPart] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    renamed_stores: Mapping[str, str] = field(default_factory=dict)
    appeared: frozenset[str] = frozenset()
    routing: Routing = field(default_factory=Routing)

    def gone_tasks(self) -> list[TaskId]:
        return _tasks([number for number, part in self.parts.items() if not part.topics], self.parts)


def parts_from_json(data: Mapping[str, Any]) -> dict[int, ComparedPart]:
    return {
        int(n): ComparedPart(tuple(topics), tuple(stores), tasks)
        for n, (topics, stores, tasks) in data.items()
    }


def _kinds_from_json(data: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Decode the kinds of operators by store. Older versions listed the stores only."""
    return dict(data) if isinstance(data, Mapping) else dict.fromkeys(data, "")


def continued(plan: Plan, before: Mapping[int, ComparedPart]) -> Plan:
    """Return a plan with the sub-topology numbers under which a checkpoint stores their state.

    Args:
        before: Parts of the checkpoint, with the new names of stores.

    Returns:
        The same plan with other numbers. Numbers of removed parts are sub-topologies without nodes.

    Raises:
        IncompatibleTopologyError: If state would have to move from one task to another.
    """
    number_of = _matched(plan.subtopologies, before)
    numbered = {number_of[sub.id]: replace(sub, id=number_of[sub.id]) for sub in plan.subtopologies}
    count = max([*numbered, *before], default=-1) + 1
    subs = tuple(numbered.get(number) or SubTopology(number, {}, {}) for number in range(count))
    internal = {
        name: replace(topic, upstream=number_of[topic.upstream], downstream=number_of[topic.downstream])
        for name, topic in plan.internal_topics.items()
    }
    global_parts = tuple(replace(part, id=number) for number, part in enumerate(plan.global_parts, count))
    return replace(plan, subtopologies=subs, internal_topics=internal, global_parts=global_parts)


def parts_of(plan: Plan, layout: Layout, before: Mapping[int, ComparedPart]) -> dict[int, ComparedPart]:
    """Return the parts for the checkpoint of a running plan.

    Args:
        plan: The plan, numbered by :func:`continued`.
    """
    tasks = {number: part.tasks for number, part in before.items()}
    for task in layout.tasks:
        tasks[task.subtopology] = max(tasks.get(task.subtopology, 0), task.partition + 1)
    return {
        sub.id: ComparedPart(sub.origins, tuple(sub.stores), tasks.get(sub.id, 0))
        for sub in plan.subtopologies
    }


def appeared(plan: Plan, before: Remembered) -> frozenset[str]:
    """Return the topics that patterns match now but did not match before, and new fan-out topics of topics that were read before.

    The stream includes all their records.
    """
    known = {topic for part in before.parts.values() for topic in part.topics}
    matching = (
        topic
        for sub in plan.subtopologies
        for source in sub.sources
        if source.pattern is not None and mark_of(source.pattern) in known
        for topic in source.topics
    )
    of_split = (topic for topic, split in plan.fan_outs.items() if split.topic in before.positions)
    return frozenset(topic for topic in (*matching, *of_split) if topic not in before.positions)


def check_stores(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that the topology can read the stores of the checkpoint.

    Raises:
        IncompatibleTopologyError: If a store has another kind or other serdes, or has moved to another sub-topology.
    """
    for store, fingerprint in before.items():
        if store in now and now[store] != fingerprint:
            raise IncompatibleTopologyError(
                f"store {store!r} is {now[store]!r} in this topology, but {fingerprint!r} in the checkpoint, so its content "
                "cannot be read. Give the changed store a new name (it starts empty), go back to the old topology, or "
                "start over with another application id or checkpoint_location"
            )


def changed_kinds(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the stores of unfinished records whose operator has become one of another kind."""
    return sorted(store for store in before.keys() & now.keys() if before[store] not in ("", now[store]))


def check_kinds(before: Mapping[str, str], now: Mapping[str, str], left: Mapping[str, int]) -> None:
    """Check that unfinished records continue in an operator of the same kind.

    Args:
        left: Number of unfinished records by store.

    Raises:
        IncompatibleTopologyError: If the operator has become one of another kind, which would lose or misread them.
    """
    for store in changed_kinds(before, now):
        if left.get(store):
            raise IncompatibleTopologyError(
                f"the operator that keeps its unfinished records in {store!r} is {now[store]} in this topology, but {before[store]} in "
                f"the checkpoint, and left {counted(left[store], 'record')} there that only {before[store]} can finish. Finish them with the "
                "old topology first (stop(drain_timeout_s=...); in a test, advance the wall clock), or give the new operator another name "
                "and keep the old one until it has finished them"
            )


def newly_gone(before: Mapping[int, ComparedPart], after: Mapping[int, ComparedPart]) -> list[TaskId]:
    """Return the tasks whose state must be deleted in the micro-batch between two plans, from the parts of both."""
    gone = [n for n, part in before.items() if part.topics and n in after and not after[n].topics]
    return _tasks(gone, before)


def _tasks(numbers: Iterable[int], parts: Mapping[int, ComparedPart]) -> list[TaskId]:
    return [TaskId(number, index) for number in sorted(numbers) for index in range(parts[number].tasks)]


def _matched(subs: Iterable[SubTopology], before: Mapping[int, ComparedPart]) -> dict[int, int]:
    """Return the number in the checkpoint by number assigned by ``split``."""
    subs = list(subs)
    numbers = _by_stores(subs, before)
    unmatched = [sub for sub in subs if sub.id not in numbers]
    common = sorted(
        (-len(shared), number, sub.id)
        for sub in unmatched
        for number, part in before.items()
        if (shared := set(part.topics).intersection(sub.origins))
    )
    for _, number, sub_id in common:
        if sub_id not in numbers and number not in numbers.values():
            numbers[sub_id] = number
    unused = max(before, default=-1) + 1
    for sub in unmatched:
        if sub.id not in numbers:
            numbers[sub.id], unused = unused, unused + 1
    return numbers


def _by_stores(subs: Iterable[SubTopology], before: Mapping[int, ComparedPart]) -> dict[int, int]:
    part_of = {store: number for number, part in before.items() for store in part.stores}
    numbers: dict[int, int] = {}
    taken: dict[int, str] = {}
    for sub in subs:
        known = {store: part_of[store] for store in sub.stores if store in part_of}
        if len(set(known.values())) > 1:
            raise _would_move(
                f"{_quoted_names(known)} are in one sub-topology of this topology",
                "in different sub-topologies",
            )
        for store, number in known.items():
            if taken.get(number, store) not in sub.stores:
                raise _would_move(
                    f"{_quoted_names([taken[number], store])} are in different sub-topologies of this topology",
                    "in one sub-topology",
                )
            taken[number] = store
            numbers[sub.id] = number
    return numbers


def _would_move(now: str, before: str) -> IncompatibleTopologyError:
    return IncompatibleTopologyError(
        f"the stores {now}, but the checkpoint has them {before}: their content would have to move from one task to another, "
        "which is not possible. Give one of them a new name (it starts empty), go back to the old topology, or start over "
        "with another application id or checkpoint_location"
    )


def _quoted_names(names: Iterable[str]) -> str:
    return " and ".join(map(repr, names))


def with_new_names(by_store: Mapping[str, V], names: Mapping[str, str]) -> dict[str, V]:
    """Return a mapping by store, or by numbered user of a store (``counts#1``), with new names of stores.

    Example:
        >>> with_new_names({"seen": 1, "seen#1": 2, "counts": 3}, {"seen": "visitors"})
        {'visitors': 1, 'visitors#1': 2, 'counts': 3}
    """
    return {_with_new_name(store, names): value for store, value in by_store.items()}


def _with_new_name(store: str, names: Mapping[str, str]) -> str:
    name, mark, number = store.partition("#")
    return names.get(name, name) + mark + number


def checked_renames(names: Mapping[str, str], stores: Collection[str]) -> dict[str, str]:
    """Check new names of stores against the topology that uses them.

    Raises:
        SettingsError: If a new name is not a store of the topology, an old name still is, or two stores receive the same name.
    """
    for old, new in names.items():
        checked_name(old, "store")
        if new not in stores:
            raise SettingsError(
                f"renamed_stores maps {old!r} to {new!r}, but the topology has no store {new!r}; its stores are "
                f"{', '.join(map(repr, sorted(stores))) or 'none'}"
            )
        if old in stores:
            raise SettingsError(
                f"renamed_stores maps {old!r} to {new!r}, but the topology still has a store {old!r}. Rename in one "
                "start, and reuse the old name in a later one, when renamed_stores no longer has it"
            )
    if len(set(names.values())) < len(names):
        raise SettingsError(
            "renamed_stores maps two old stores to one new name; a store can take over the content of only one of them"
        )
    return dict(names)


def _check_rename(old: str, new: str, known: Mapping[str, str]) -> None:
    if old in known and new in known:
        raise IncompatibleTopologyError(
            f"renamed_stores maps {old!r} to {new!r}, but the checkpoint has both, so it is unclear which content to "
            f"keep. To keep {new!r} and drop {old!r}, leave it out of renamed_stores"
        )
    if known and old not in known and new not in known:
        raise IncompatibleTopologyError(
            f"renamed_stores maps {old!r} to {new!r}, but the checkpoint has neither; its stores are "
            f"{', '.join(map(repr, sorted(known)))}. Correct the old name, or remove it from renamed_stores"
        )
