"""An application's answers from local copies in LMDB, without Spark and without a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from millstream.core.model.ids import TopicPartition
from millstream.core.ports import StoreChange
from millstream.core.runtime.task_report import StateReport, TaskReport
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from millstream.core.state.segments.log import Manifest, advanced
from millstream.core.topology.topology import Topology
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.edge.queries.store_answers import Answers
from millstream.edge.queries.store_hosts import StoreHosts
from millstream.edge.queries.task_copies import Copies
from millstream.edge.status.task_reports import TaskReports
from unit.drivers.engines import COPIES

NOW = 1_700_000_000_000
Fill = Callable[[Any], None]


class NoHosts:
    """A fake without other hosts."""

    def close(self) -> None:
        """Do nothing."""


def answers_of(topology: Topology, directory: Path, fill: Mapping[str, Fill]) -> Answers:
    """Return the answers of the application ``shop``, whose micro-batch 7 has filled stores.

    Args:
        fill: Writes the content of a store, by its name.
    """
    plan = topology.plan("shop")
    reports = TaskReports(plan=plan)
    committed = []
    for sub in plan.subtopologies:
        manifest, memory = advanced(Manifest(), "first"), {}
        changes: dict[str, Sequence[StoreChange]] = {}
        for name, spec in sub.stores.items():
            store = open_store(spec, MemoryStores())
            fill[name](store)
            changes.update(store.drain().changes)
            memory[name] = store.memory()
        write_copy(str(directory / f"{sub.id}_0" / "lmdb"), changes, manifest)
        state = StateReport(manifest.version, manifest.history, memory)
        offsets = {TopicPartition(topic, 0): 3 for topic in sub.source_topics}
        committed.append(TaskReport(f"{sub.id}_0", offsets, stream_time_ms=NOW, state=state))
    reports.planned({}, {})
    reports.record_batch(7, committed)
    engines = {name: "lmdb" for sub in plan.subtopologies for name in sub.stores}
    spec = CopiesSpec(str(directory), {}, engines, 0)
    return Answers("shop", Copies(lambda: spec, cast(StoreHosts, NoHosts())), reports, lambda: plan)


def write_copy(directory: str, changes: Mapping[str, Sequence[StoreChange]], manifest: Manifest) -> None:
    """Write a local copy and close it: LMDB lets a process open a file only once."""
    engine = COPIES["lmdb"]
    copy = engine.open(directory)
    copy.version()
    copy.apply(changes, manifest.current)
    engine.die(directory)
