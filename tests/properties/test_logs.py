"""The log: every copy that catches up equals the store, from whichever version it starts.

The test takes the place of the log's driver: segments are lists in a dict, and compaction merges them according to the manifest.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from millstream.core.ports import StoreChange, Version
from millstream.core.state.segments import compaction
from millstream.core.state.segments.compaction import are_few, due_before_appending, due_for_compaction
from millstream.core.state.segments.key_groups import WHOLE_STORE, bits_of, key_group, lower_group
from millstream.core.state.segments.log import (
    Manifest,
    Step,
    advanced,
    appended,
    catch_up,
    compacted,
    decode_manifest,
    drops_deletions,
    emptied,
    encode_manifest,
    moved_down,
    without_stores,
)
from millstream.drivers import segments as codec

from .engines import Visits, neighbours

Content = dict[tuple[str, bytes], bytes]
Batch = dict[tuple[str, bytes], bytes | None]
UNLIMITED = 1 << 30
KEYS = neighbours(3, groups=2)


def grouped(changes: list[StoreChange], number: Callable[[bytes], int]) -> dict[int, list[StoreChange]]:
    groups: dict[int, list[StoreChange]] = {}
    for change in changes:
        groups.setdefault(number(change[0]), []).append(change)
    return groups


class Log:
    """The manifest with its segments, written as the driver writes them."""

    def __init__(self) -> None:
        self.manifest = Manifest()
        self.segments: dict[int, list[StoreChange]] = {}
        self.longest_step = self.splits = self.moves = self.moves_before_appending = 0

    def write(self, batch: Batch, budget: int) -> None:
        manifest = advanced(self.manifest, f"t{self.manifest.version + 1}")
        per_store: dict[str, list[StoreChange]] = {}
        for (store, key), value in batch.items():
            per_store.setdefault(store, []).append((key, value))
        for store, changes in per_store.items():
            size = sum(len(key) + len(value or b"") for key, value in changes)
            groups = {WHOLE_STORE: changes} if are_few(size, len(changes)) else grouped(changes, key_group)
            for number, part in groups.items():
                step = due_before_appending(manifest, (store, number))
                if step is not None:
                    manifest = self._compacted(manifest, step)
                    self.moves_before_appending += 1
                manifest, segment = appended(manifest, (store, number), len(codec.encode(part)), len(part))
                self.segments[segment.sequence] = part
        for step in list(due_for_compaction(manifest, budget)):
            manifest = self._compacted(manifest, step)
        self.manifest, extra = decode_manifest(
            json.dumps(json.loads(encode_manifest(manifest, {"x": 1}))).encode()
        )
        assert extra == {"x": 1}
        assert self.manifest == manifest

    def _compacted(self, manifest: Manifest, step: Step) -> Manifest:
        parts = [self.segments.pop(segment.sequence) for segment in step.merged]
        self.longest_step = max(self.longest_step, sum(map(len, parts)))
        if drops_deletions(step.merged):
            parts[0] = [change for change in parts[0] if change[1] is not None]
        changes = list(dict(chain.from_iterable(parts)).items())
        if not step.split:
            size = len(codec.encode(changes))
            manifest, segment = compacted(manifest, step.group, step.merged, size, len(changes))
            self.segments[segment.sequence] = changes
            return manifest
        manifest, base = emptied(manifest, step)
        self.splits += base
        self.moves += not base
        for lower, part in grouped(changes, partial(lower_group, step.group[1])).items():
            size, group = len(codec.encode(part)), (step.group[0], lower)
            manifest, segment = moved_down(manifest, group, step, size, len(part), base=base)
            self.segments[segment.sequence] = part
        return manifest

    def forget(self, kept: list[str]) -> None:
        self.manifest, removed = without_stores(self.manifest, kept)
        for segment in removed:
            del self.segments[segment.sequence]

    def size(self) -> int:
        return sum(len(codec.encode(changes)) for changes in self.segments.values())


class Copy:
    """A local copy: content and its stored version."""

    def __init__(self, version: Version | None, content: Content) -> None:
        self.version = version
        self.content = dict(content)

    def catch_up(self, log: Log, *, only: int | None = None) -> str:
        """Follow the manifest, or only some segments of it as an interrupted restore does; return what was needed."""
        needed = catch_up(log.manifest, self.version)
        how = "current" if not needed else "over a base" if any(s.base for _, s in needed) else "by changes"
        if self.version is None:
            how = "built"
        if needed is None:
            how = "rebuilt"
            self.version, self.content = None, {}
            needed = catch_up(log.manifest, None)
            assert needed is not None
        for (store, _), segment in needed if only is None else needed[:only]:
            for key, value in log.segments[segment.sequence]:
                self.content.pop((store, key), None)
                if value is not None:
                    self.content[store, key] = value
        if only is None:
            self.version = log.manifest.current
        elif self.version is None:
            self.version = Version(-1, "restoring")
        return how


def machine(visits: Visits) -> type[RuleBasedStateMachine]:
    keys = st.tuples(st.sampled_from(["s", "t"]), st.sampled_from(KEYS))
    batches = st.dictionaries(keys, st.none() | st.binary(max_size=9), min_size=1, max_size=6)

    class Histories(RuleBasedStateMachine):
        @initialize(batch=batches)
        def begin(self, batch: Batch) -> None:
            self.log = Log()
            self.model: Content = {}
            self.copies = [Copy(None, {})]
            self.write(batch, UNLIMITED)

        @rule(batch=batches, budget=st.sampled_from([0, 100, UNLIMITED]))
        def write(self, batch: Batch, budget: int) -> None:
            self.log.write(batch, budget)
            for entry, value in batch.items():
                self.model.pop(entry, None)
                if value is not None:
                    self.model[entry] = value

        @rule(key=keys, count=st.integers(2, 30), size=st.integers(0, 3))
        def write_a_key_often(self, key: tuple[str, bytes], count: int, size: int) -> None:
            for number in range(count):
                self.write({key: None if number % 3 == 2 else bytes(size)}, UNLIMITED)

        @rule(count=st.sampled_from([60, 70]))
        def let_time_pass(self, count: int) -> None:
            for number in range(count):
                self.write({("u", b"clock"): b"%d" % number}, UNLIMITED)

        @rule(
            later=st.lists(batches, max_size=4),
            budget=st.sampled_from([0, UNLIMITED]),
            immediately=st.booleans(),
        )
        def leave_a_copy_behind(self, later: list[Batch], budget: int, immediately: bool) -> None:
            copy = Copy(self.log.manifest.current, self.model)
            self.copies.append(copy)
            for batch in later:
                self.write(batch, budget)
            if immediately:
                self.follow(copy)

        @rule(in_steps=st.booleans())
        def empty_a_store_and_fill_it_again(self, in_steps: bool) -> None:
            self.copies.append(Copy(self.log.manifest.current, self.model))
            entries = [entry for entry in self.model if entry[0] == "s"]
            steps = [[entry] for entry in entries] if in_steps else [entries] if entries else []
            for step in steps:
                self.write(dict.fromkeys(step), UNLIMITED)
            self.write({("s", key): b"again" for key in KEYS[1:]}, UNLIMITED)

        @rule(data=st.data())
        def catch_a_copy_up(self, data: st.DataObject) -> None:
            self.follow(data.draw(st.sampled_from(self.copies)))

        def follow(self, copy: Copy) -> None:
            was_cut = copy.version == Version(-1, "restoring")
            visits[f"caught up: {copy.catch_up(self.log)}"] += 1
            visits["caught up: after a cut"] += was_cut
            assert copy.content == self.model
            assert copy.version == self.log.manifest.current

        @rule(data=st.data(), only=st.integers(0, 3))
        def cut_a_restore_off(self, data: st.DataObject, only: int) -> None:
            data.draw(st.sampled_from(self.copies)).catch_up(self.log, only=only)

        @rule(ahead=st.integers(-2, 2))
        def a_copy_of_another_history_is_rebuilt(self, ahead: int) -> None:
            foreign = Copy(Version(self.log.manifest.version + ahead, "foreign"), {("s", b"ghost"): b"1"})
            assert foreign.catch_up(self.log) == "rebuilt"
            assert foreign.content == self.model

        @rule(stores=st.sampled_from([[], [], [], ["t"], ["s", "t"]]))
        def stores_leave_the_topology(self, stores: list[str]) -> None:
            visits["forgot a store"] += any(store in stores for store, _ in self.model)
            for store in stores:
                self.copies.append(Copy(self.log.manifest.current, self.model))
                self.log.forget([name for name in ("s", "t", "u") if name != store])
                self.model = {entry: value for entry, value in self.model.items() if entry[0] != store}

        @invariant()
        def the_manifest_lists_all_segments(self) -> None:
            listed = [s for group in self.log.manifest.segments.values() for s in group]
            assert sorted(s.sequence for s in listed) == sorted(self.log.segments)
            assert sum(s.size for s in listed) == self.log.size()

        @invariant()
        def count_splits_and_moves(self) -> None:
            visits["split"] += self.log.splits
            visits["moved down"] += self.log.moves
            visits["moved down before newer changes"] += self.log.moves_before_appending
            self.log.splits = self.log.moves = self.log.moves_before_appending = 0

        @invariant()
        def segments_are_in_order_and_few(self) -> None:
            for (_, number), group in self.log.manifest.segments.items():
                assert [s.upto for s in group] == sorted({s.upto for s in group})
                assert not any(s.base for s in group[1:])
                keys = {key for s in group for key, _ in self.log.segments[s.sequence]}
                low = (1 << bits_of(number)) - 1
                assert {zlib.crc32(key) & low for key in keys} <= {number & low}

        @invariant()
        def the_log_alone_is_the_store(self) -> None:
            built = Copy(None, {})
            built.catch_up(self.log)
            assert built.content == self.model

        def teardown(self) -> None:
            for copy in self.copies:
                copy.catch_up(self.log)
                assert copy.content == self.model

    return Histories


@pytest.fixture(
    params=[compaction.LARGEST_CHANGES, 16, 4],
    ids=["large key groups", "key groups that split", "key groups that split at once"],
)
def largest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many changes a key group may have before it is split."""
    monkeypatch.setattr(compaction, "LARGEST_CHANGES", request.param)
    return int(request.param)


def test_every_copy_that_catches_up_equals_the_store(largest: int) -> None:
    visits = Visits()
    run_state_machine_as_test(machine(visits), settings=settings(max_examples=120, stateful_step_count=30))
    visits.demand(
        **{
            "caught up: current": 3,
            "caught up: by changes": 10,
            "caught up: over a base": 3,
            "caught up: rebuilt": 10,
            "caught up: built": 5,
            "caught up: after a cut": 3,
            "forgot a store": 5,
            **({"split": 5, "moved down": 5} if largest <= 16 else {}),
            **({"moved down before newer changes": 5} if largest == 16 else {}),
        }
    )


def test_compaction_leaves_few_segments_and_bases_larger_than_their_changes() -> None:
    log = Log()
    for number in range(500):
        log.write({("s", b"%d" % (number * number % 97)): b"x" * (number % 50)}, UNLIMITED)
        for group in log.manifest.segments.values():
            assert len(group) <= 13
            assert len(group) < 3 or sum(s.size for s in group[1:]) < group[0].size


def live_size(model: Content) -> int:
    """Return the size of the live data in one segment per key group, in bytes."""
    groups: dict[tuple[str, int], list[StoreChange]] = {}
    for (store, key), value in model.items():
        groups.setdefault((store, key_group(key)), []).append((key, value))
    return sum(len(codec.encode(changes)) for changes in groups.values())


def log_after(batches: list[Batch], budget: int = UNLIMITED) -> tuple[Log, Content]:
    log, model = Log(), {}
    for batch in batches:
        log.write(batch, budget)
        for entry, value in batch.items():
            model.pop(entry, None)
            if value is not None:
                model[entry] = value
    return log, model


class TestTheSizeOfTheLog:
    """The log stays within a few times the size of the live data."""

    def key(self, number: int) -> tuple[str, bytes]:
        return ("s", b"key-%06d" % number)

    def test_is_bounded_when_values_are_overwritten(self) -> None:
        batches: list[Batch] = [{self.key(n): b"x" * 200 for n in range(1000)}]
        batches += [
            {self.key((step * 37 + n * 101) % 1000): b"y" * 200 for n in range(50)} for step in range(200)
        ]
        log, model = log_after(batches)
        assert len(model) == 1000
        assert log.size() < 2.5 * live_size(model)

    def test_is_bounded_when_keys_come_and_go(self) -> None:
        batches: list[Batch] = []
        for step in range(300):
            batch: dict[tuple[str, bytes], Any] = {self.key(step * 50 + n): b"x" * 100 for n in range(50)}
            batch |= {self.key(step * 50 + n - 500): None for n in range(50) if step >= 10}
            batches.append(batch)
        log, model = log_after(batches)
        assert len(model) == 500
        assert log.size() < 2.5 * live_size(model)

    def test_is_bounded_after_large_values_were_deleted(self) -> None:
        batches: list[Batch] = [
            {self.key(step * 64 + n): b"x" * 10_000 for n in range(64)} for step in range(10)
        ]
        full, _ = log_after(batches)
        batches += [{self.key(step * 64 + n): None for n in range(64)} for step in range(10)]
        batches += [{self.key(n % 64): b"small"} for n in range(200)]
        log, model = log_after(batches)
        assert len(model) == 64
        assert log.size() < full.size() / 10, (
            f"{log.size()} bytes of log for {live_size(model)} bytes of live data"
        )

    def test_is_bounded_with_a_small_budget_per_batch(self) -> None:
        batches: list[Batch] = [{self.key(n): b"x" * 200 for n in range(1000)}]
        batches += [
            {self.key((step * 37 + n * 101) % 1000): b"y" * 200 for n in range(50)} for step in range(400)
        ]
        log, model = log_after(batches, budget=30_000)  # three times what a batch writes
        assert log.size() < 2.5 * live_size(model)


def test_a_compaction_step_does_not_grow_with_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LARGEST_CHANGES", 64)
    longest = []
    for keys in (3_000, 18_000):
        store = Log()
        for step in range(keys // 250):
            store.write({("s", b"%d" % (step * 250 + n)): b"x" * 30 for n in range(250)}, UNLIMITED)
        store.longest_step = 0
        for step in range(40):
            store.write(
                {("s", b"%d" % ((step * 7919 + n * 104_729) % keys)): b"y" * 30 for n in range(250)},
                UNLIMITED,
            )
        longest.append(store.longest_step)
        assert all(s.changes <= 2 * 64 for group in store.manifest.segments.values() for s in group)
    assert longest[1] <= 1.5 * longest[0]
