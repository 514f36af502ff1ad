"""The log in Spark's state with real local copies of every engine: despite failures, a micro-batch sees the committed content.

A dict models Spark: an attempt gets the state of the last commit, and its writes are kept only if this attempt is committed.
Micro-batches run on two hosts, each with its own copy.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from millstream.core.model.ids import TaskId
from millstream.core.ports import (
    LocalCopy,
    Version,
)
from millstream.core.state.segments import compaction
from millstream.core.state.segments.log import Manifest, decode_manifest, encode_manifest
from millstream.drivers.spark.executor.statelog import StateLog
from unit.drivers.engines import COPIES, Engine
from unit.drivers.state import CutOffError, MapState, MortalCopy

from .engines import Visits, neighbours

Content = dict[str, dict[bytes, bytes]]
Changes = dict[str, dict[bytes, bytes | None]]
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A directory in memory, if there is one: on a disk, RocksDB would wait for the disk in each batch."""
STORES = ("s", "t")
KEYS = [b"", *neighbours(3, groups=2)]


def read(copy: LocalCopy) -> Content:
    try:
        view = copy.open_view()
        return {store: dict(view.open(store).scan(None, None)) for store in STORES}
    finally:
        copy.close_view()


def changed(content: Content, changes: Changes) -> Content:
    result = {store: dict(rows) for store, rows in content.items()}
    for store, rows in changes.items():
        for key, value in rows.items():
            result[store].pop(key, None)
            if value is not None:
                result[store][key] = value
    return result


class Commit:
    """A commit in Spark: the state of a batch, and a model of the content that it represents."""

    def __init__(self, head: bytes | None, state: Mapping[Any, Any], content: Content) -> None:
        self.head = head
        self.state = dict(state)
        self.content = content


def machine(visits: Visits, engine: Engine) -> type[RuleBasedStateMachine]:
    keys = st.sampled_from(KEYS)
    rows = st.dictionaries(keys, st.none() | st.binary(max_size=6), max_size=4)
    some_changes = st.fixed_dictionaries({}, optional=dict.fromkeys(STORES, rows))
    hosts = st.sampled_from([0, 1])

    class Batches(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.root = tempfile.mkdtemp(prefix="millstream-", dir=IN_MEMORY)
            self.directories = [f"{self.root}/host-{n}" for n in (0, 1)]
            self.now = Commit(None, {}, {store: {} for store in STORES})
            self.backups: list[Commit] = []
            self.kept: tuple[str, ...] = STORES

        def teardown(self) -> None:
            for directory in self.directories:
                engine.discard(directory)
            shutil.rmtree(self.root)

        def attempt(self, host: int, changes: Changes) -> Commit:
            """Run a batch on a host; return the commit that Spark would make."""
            copy = engine.open(self.directories[host])
            manifest, _ = decode_manifest(self.now.head)
            state = MapState(self.now.state)
            log = StateLog(state, TaskId(0, 0))
            manifest = self.restored(log, manifest, copy)
            kept = {store: rows for store, rows in changes.items() if store in self.kept}
            manifest = log.write(manifest, {store: list(rows.items()) for store, rows in kept.items()}, copy)
            return Commit(encode_manifest(manifest, {}), state.content, changed(self.now.content, kept))

        def restored(self, log: StateLog, manifest: Manifest, copy: LocalCopy) -> Manifest:
            manifest = log.forget_stores(manifest, self.kept)
            before = copy.version()
            fetched = log.restore(manifest, copy)
            assert read(copy) == self.now.content
            if manifest.version == 0:
                return manifest
            assert copy.version() == manifest.current
            visits["current"] += before == copy.version()
            visits["from parked changes"] += before != copy.version() and not fetched
            visits["built"] += before is None and bool(fetched)
            visits["caught up"] += before is not None and manifest.remembers(before) and bool(fetched)
            visits["thrown away"] += before is not None and not manifest.remembers(before)
            return manifest

        @initialize(changes=some_changes, host=hosts)
        def begin(self, changes: Changes, host: int) -> None:
            self.now = self.attempt(host, changes)

        @rule(host=hosts, changes=some_changes)
        def batch(self, host: int, changes: Changes) -> None:
            self.now = self.attempt(host, changes)

        @rule(host=hosts, many=st.lists(some_changes, min_size=2, max_size=15))
        def batches(self, host: int, many: list[Changes]) -> None:
            for changes in many:
                self.now = self.attempt(host, changes)

        @rule(
            lost=st.lists(st.tuples(hosts, some_changes), min_size=1, max_size=3),
            host=hosts,
            changes=some_changes,
        )
        def a_batch_runs_again(self, lost: list[tuple[int, Changes]], host: int, changes: Changes) -> None:
            """Run several attempts with different changes; only the last one is committed."""
            for lost_host, lost_changes in lost:
                self.attempt(lost_host, lost_changes)
            self.now = self.attempt(host, changes)
            visits["run again"] += any(dict(lost_changes) != dict(changes) for _, lost_changes in lost)

        @rule(attempts=st.lists(st.tuples(hosts, some_changes), min_size=2, max_size=3), data=st.data())
        def batch_of_rivals(self, attempts: list[tuple[int, Changes]], data: st.DataObject) -> None:
            """Run concurrent attempts, any of which may be committed."""
            commits = [self.attempt(host, changes) for host, changes in attempts]
            chosen = data.draw(st.integers(0, len(commits) - 1))
            visits["an earlier rival won"] += chosen < len(commits) - 1
            self.now = commits[chosen]

        @rule(host=hosts)
        def a_copy_is_deleted(self, host: int) -> None:
            if not engine.outlives:
                engine.die(self.directories[host])
            shutil.rmtree(self.directories[host], ignore_errors=True)
            visits["deleted"] += 1

        @rule(host=hosts, size=st.none() | st.integers(0, 20))
        def parked_changes_are_lost_or_cut(self, host: int, size: int | None) -> None:
            for path in Path(self.directories[host]).glob("parked-*"):
                if size is None:
                    path.unlink()
                else:
                    path.write_bytes(path.read_bytes()[:size])
                visits["parked lost" if size is None else "parked cut"] += 1

        @rule(host=hosts, writes=st.integers(0, 2))
        def a_process_dies_during_its_restore(self, host: int, writes: int) -> None:
            copy = engine.open(self.directories[host])
            manifest, _ = decode_manifest(self.now.head)
            log = StateLog(MapState(self.now.state), TaskId(0, 0))
            try:
                log.restore(log.forget_stores(manifest, self.kept), MortalCopy(copy, writes))
            except CutOffError:
                visits["cut off"] += 1

        @rule()
        def the_checkpoint_is_backed_up(self) -> None:
            self.backups.append(self.now)

        @rule(data=st.data())
        def the_checkpoint_is_brought_back(self, data: st.DataObject) -> None:
            if self.backups:
                self.now = data.draw(st.sampled_from(self.backups))
                self.now.content = {s: rows if s in self.kept else {} for s, rows in self.now.content.items()}
                visits["brought back"] += 1

        @rule(store=st.sampled_from(STORES), host=hosts)
        def a_store_leaves_and_comes_back_empty(self, store: str, host: int) -> None:
            visits["forgot a store"] += bool(self.now.content[store])
            self.kept = tuple(name for name in STORES if name != store)
            self.now = Commit(self.now.head, self.now.state, {**self.now.content, store: {}})
            self.now = self.attempt(host, {})
            self.kept = STORES

        @rule(host=hosts, number=st.integers(0, 70))
        def a_copy_of_an_earlier_run_exists(self, host: int, number: int) -> None:
            copy = engine.open(self.directories[host])
            copy.wipe()
            copy.apply({"s": [(b"ghost", b"1")]}, Version(number, "earlier"))

    return Batches


@pytest.mark.parametrize(
    ("name", "largest"), [*((name, compaction.LARGEST_CHANGES) for name in COPIES), ("lmdb", 2), ("lmdb", 12)]
)
def test_a_micro_batch_sees_the_committed_content(
    name: str, largest: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compaction, "LARGEST_CHANGES", largest)
    visits = Visits()
    caplog.set_level(logging.ERROR, "millstream.state")  # otherwise a thousand restores would be logged
    examples = 60 if name != "rocksdb" else 12  # RocksDB takes longest to open
    run_state_machine_as_test(
        machine(visits, COPIES[name]), settings=settings(max_examples=examples, stateful_step_count=25)
    )
    frequent = {
        "current": 20,
        "from parked changes": 50,
        "built": 10,
        "caught up": 10,
        "thrown away": 10,
        "run again": 20,
        "an earlier rival won": 10,
        "deleted": 10,
    }
    rare = {"parked lost": 5, "parked cut": 5, "cut off": 5, "brought back": 5, "forgot a store": 5}
    if examples == 60:
        visits.demand(**frequent, **rare)
    else:  # fewer examples may miss a rare event
        visits.demand(**{label: count * examples // 60 for label, count in frequent.items()})
