"""The manifest: appended segments, merges, and the segments that a local copy lacks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from millstream.core.model.errors import StoreError
from millstream.core.ports import Version
from millstream.core.state.segments.compaction import (
    LARGEST_BYTES,
    LARGEST_CHANGES,
    are_few,
    due_before_appending,
    due_for_compaction,
)
from millstream.core.state.segments.key_groups import (
    KEY_GROUPS,
    WHOLE_STORE,
    KeyGroup,
    bits_of,
    groups_above,
    key_group,
    lower_group,
)
from millstream.core.state.segments.log import (
    Manifest,
    Segment,
    Step,
    advanced,
    appended,
    catch_up,
    compacted,
    decode_manifest,
    encode_manifest,
    split_groups,
    with_renamed_stores,
    without_stores,
)

GROUP: KeyGroup = ("store", 5)
OTHER: KeyGroup = ("store", 6)
WHOLE: KeyGroup = ("store", WHOLE_STORE)
KEYS_OF_5 = [key for key in map(b"%d".__mod__, range(1000)) if key_group(key) == 5]


def grown(*sizes: int, group: KeyGroup = GROUP, manifest: Manifest | None = None) -> Manifest:
    """Append one segment per size, each in a separate version."""
    manifest = manifest or Manifest()
    for size in sizes:
        manifest = advanced(manifest, f"t{manifest.version + 1}")
        if size:
            manifest, _ = appended(manifest, group, size)
    return manifest


def sequences(needed: list[tuple[KeyGroup, Segment]] | None) -> list[int] | None:
    return None if needed is None else [segment.sequence for _, segment in needed]


def due(manifest: Manifest, budget: int = 1 << 30) -> list[tuple[KeyGroup, list[int]]]:
    return [(step.group, [s.sequence for s in step.merged]) for step in due_for_compaction(manifest, budget)]


class TestManifest:
    def test_begins_empty(self) -> None:
        assert (Manifest().current, Manifest().segments, catch_up(Manifest(), None)) == (
            Version(0, ""),
            {},
            [],
        )

    def test_a_version_has_a_token(self) -> None:
        assert grown(1, 1).current == Version(2, "t2")

    def test_remembers_recent_versions_of_its_own_history(self) -> None:
        manifest = grown(*[1] * 100)
        assert manifest.remembers(Version(100, "t100"))
        assert manifest.remembers(Version(37, "t37"))
        assert not manifest.remembers(Version(36, "t36"))  # too old
        assert not manifest.remembers(Version(50, "other"))
        assert not manifest.remembers(Version(101, "t101"))
        assert not manifest.remembers(Version(-1, "restoring"))

    def test_survives_json_encoding_with_additional_data(self) -> None:
        manifest, _ = compacted(grown(3, 4, 5), GROUP, grown(3, 4, 5).segments[GROUP], 9)
        manifest = grown(7, group=("other", 0), manifest=manifest)
        data = encode_manifest(manifest, {"task": [1, None], "stores": {"s": "x"}})
        assert decode_manifest(data) == (manifest, {"task": [1, None], "stores": {"s": "x"}})
        assert decode_manifest(None) == (Manifest(), {})

    def test_of_a_newer_millstream_is_refused(self) -> None:
        data = json.loads(encode_manifest(Manifest(), {}))
        data["log"]["format"] = 9
        with pytest.raises(StoreError, match=r"written by a newer Millstream \(log format 9\)"):
            decode_manifest(json.dumps(data).encode())

    def test_forgets_stores(self) -> None:
        manifest = grown(1, group=("b", 0), manifest=grown(1, 1, group=("a", 0)))
        left, removed = without_stores(manifest, ["b", "new"])
        assert [segment.sequence for segment in removed] == [0, 1]
        assert list(left.segments) == [("b", 0)]
        assert without_stores(left, ["b"]) == (left, [])

    def test_that_forgot_a_store_is_a_new_version_for_every_copy(self) -> None:
        manifest = grown(1, group=("b", 0), manifest=grown(1, group=("a", 0)))
        without_a, _ = without_stores(manifest, ["b"])
        without_both, _ = without_stores(without_a, [])
        versions = [manifest.current, without_a.current, without_both.current]
        assert len(set(versions)) == 3
        assert catch_up(without_a, manifest.current) is None
        assert catch_up(without_both, without_a.current) is None


class TestKeyGroups:
    def test_are_all_used(self) -> None:
        assert {key_group(b"%d" % n) for n in range(1000)} == set(range(KEY_GROUPS))

    def test_are_split_by_two_more_bits(self) -> None:
        lower = Counter(lower_group(5, key) for key in KEYS_OF_5)
        assert (bits_of(5), groups_above(5), len(lower)) == (6, (WHOLE_STORE,), 4)
        for key in KEYS_OF_5:
            number = lower_group(5, key)
            assert (bits_of(number), groups_above(number)) == (8, (5, WHOLE_STORE))
            lowest = lower_group(number, key)
            assert (bits_of(lowest), groups_above(lowest)) == (10, (number, 5, WHOLE_STORE))

    def test_have_the_group_of_the_whole_store_above_them(self) -> None:
        assert (bits_of(WHOLE_STORE), groups_above(WHOLE_STORE)) == (0, ())
        assert [lower_group(WHOLE_STORE, key) for key in KEYS_OF_5] == [5] * len(KEYS_OF_5)

    def test_that_were_split_are_all_groups_above_those_with_segments(self) -> None:
        lower = lower_group(5, KEYS_OF_5[0])
        lowest = lower_group(lower, KEYS_OF_5[0])
        manifest = grown(1, group=("store", lowest), manifest=grown(1, group=OTHER))
        assert split_groups(manifest.segments) == {("store", lower), ("store", 5), WHOLE}

    def test_below_the_whole_store_split_it_once_they_have_segments(self) -> None:
        assert split_groups([WHOLE]) == set()
        assert split_groups([GROUP]) == {WHOLE}


class TestAppending:
    def test_a_segment_covers_the_changes_of_its_version(self) -> None:
        manifest, segment = appended(advanced(grown(5), "x"), GROUP, 7)
        assert segment == Segment(sequence=1, since=1, upto=2, size=7, base=False)
        assert manifest.segments[GROUP][-1] == segment
        assert manifest.next_sequence == 2
        assert [each.size for each in manifest.segments[GROUP]] == [5, 7]

    def test_leaves_the_old_manifest_as_it_was(self) -> None:
        before = grown(5)
        appended(advanced(before, "x"), GROUP, 7)
        assert before == grown(5)


class TestWholeStore:
    """The key group of the whole store takes the changes of a micro-batch that has few of them."""

    @pytest.mark.parametrize(
        ("size", "changes", "few"),
        [
            (10, LARGEST_CHANGES // 4 - 1, True),
            (10, LARGEST_CHANGES // 4, False),
            (LARGEST_BYTES // 4 - 1, 3, True),
            (LARGEST_BYTES // 4, 3, False),
        ],
    )
    def test_takes_only_changes_that_need_not_move_down_at_once(
        self, size: int, changes: int, few: bool
    ) -> None:
        assert are_few(size, changes) is few
        manifest, _ = appended(advanced(grown(1), "t"), WHOLE, size, changes)
        assert [step.split for step in due_for_compaction(manifest, 1 << 30)] == [True] * (not few)

    def test_has_a_base_while_it_is_the_only_key_group(self) -> None:
        manifest = grown(10, 5, 5, group=WHOLE)
        assert due(manifest) == [(WHOLE, [0, 1, 2])]
        _, base = compacted(manifest, WHOLE, manifest.segments[WHOLE], 12)
        assert base == Segment(sequence=3, since=0, upto=3, size=12, base=True)
        with_others = grown(1, group=OTHER, manifest=manifest)
        assert due(with_others) == []
        assert not compacted(with_others, WHOLE, with_others.segments[WHOLE], 12)[1].base

    def test_moves_its_changes_down_before_newer_ones_are_appended_below_it(self) -> None:
        manifest = grown(1, 2, group=WHOLE)
        assert due_before_appending(manifest, GROUP) == Step(WHOLE, manifest.segments[WHOLE], split=True)
        assert due_before_appending(manifest, WHOLE) is None
        assert due_before_appending(manifest, ("other", 5)) is None
        assert due_before_appending(grown(1), GROUP) is None

    def test_is_read_last(self) -> None:
        manifest = grown(1, group=OTHER, manifest=grown(1, 1, group=WHOLE, manifest=grown(1)))
        assert sequences(catch_up(manifest, None)) == [0, 3, 1, 2]


class TestCompaction:
    def test_with_the_base_creates_a_base_that_keeps_the_deletions_since_the_previous_one(self) -> None:
        manifest = grown(10, 5, 5)
        manifest, first = compacted(manifest, GROUP, manifest.segments[GROUP], 12)
        assert first == Segment(sequence=3, since=0, upto=3, size=12, base=True)
        manifest = grown(6, 7, manifest=manifest)
        manifest, second = compacted(manifest, GROUP, manifest.segments[GROUP], 14)
        assert second == Segment(sequence=6, since=3, upto=5, size=14, base=True)
        assert manifest.segments == {GROUP: (second,)}

    def test_of_the_changes_only_leaves_the_base(self) -> None:
        manifest = grown(100, 1, 2, 3)
        base, *rest = manifest.segments[GROUP]
        manifest, merged = compacted(manifest, GROUP, rest, 5)
        assert merged == Segment(sequence=4, since=1, upto=4, size=5, base=False)
        assert manifest.segments[GROUP] == (base, merged)

    def test_is_due_when_changes_outweigh_the_base(self) -> None:
        assert due(grown(10)) == []
        assert due(grown(10, 10)) == []  # two segments are equivalent to one
        assert due(grown(10, 4, 5)) == []
        assert due(grown(10, 5, 5)) == [(GROUP, [0, 1, 2])]

    def test_of_one_segment_with_changes_waits_for_a_batch_without_changes_of_the_key_group(self) -> None:
        assert due(grown(10, 10, 0)) == [(GROUP, [0, 1])]
        assert due(grown(10, 9, 0)) == []

    def test_of_many_small_changes_is_due_because_of_their_number(self) -> None:
        assert due(grown(1000, *[1] * 11)) == []
        assert due(grown(1000, *[1] * 12)) == [(GROUP, list(range(1, 13)))]

    def test_of_many_small_changes_leaves_larger_segments_alone(self) -> None:
        assert due(grown(1000, 100, *[1] * 12)) == [(GROUP, list(range(2, 14)))]
        assert due(grown(1000, 100, 12, *[1] * 12)) == [(GROUP, list(range(2, 15)))]
        assert due(grown(1000, 100, 13, *[1] * 12)) == [(GROUP, list(range(3, 15)))]
        halves = [1 << power for power in range(13, 0, -1)]  # each larger than all later ones together
        assert due(grown(1 << 20, *halves)) == [(GROUP, [12, 13])]

    @pytest.mark.parametrize(("written", "wait"), [(1, 4), (1_500, 4), (2_400, 3), (2_500, 2), (8_000, 1)])
    def test_with_more_changes_than_a_batch_may_merge_runs_only_in_one_of_several_batches(
        self, written: int, wait: int
    ) -> None:
        manifest = Manifest()
        for count in (10_000, 10_000, 10_000):
            manifest, _ = appended(advanced(manifest, "t"), GROUP, 10, count)
        chosen = []
        for _ in range(12):
            manifest, _ = appended(advanced(manifest, "t"), OTHER, 1, written)
            only = replace(manifest, segments={**manifest.segments, OTHER: manifest.segments[OTHER][-1:]})
            chosen += [manifest.version for step in due_for_compaction(only, 1 << 30) if step.group == GROUP]
        assert chosen == [version for version in range(4, 16) if version % wait == 0]

    def test_stops_when_a_batch_has_merged_enough(self) -> None:
        manifest = Manifest()
        for group in ("a", 0), ("b", 0), ("c", 0), ("d", 0):
            for _ in range(3):
                manifest, _ = appended(advanced(manifest, "t"), group, 10, 2_000)
        assert [group for group, _ in due(manifest)] == [
            ("a", 0),
            ("b", 0),
            ("c", 0),
        ]  # 12,000 for 2,000, and one more

    def test_takes_the_most_wasteful_group_first_within_its_budget(self) -> None:
        manifest = grown(5, 5, 5, 5, group=OTHER, manifest=grown(10, 10, 10))
        assert due(manifest) == [(OTHER, [3, 4, 5, 6]), (GROUP, [0, 1, 2])]
        assert due(manifest, budget=50) == [(OTHER, [3, 4, 5, 6]), (GROUP, [0, 1, 2])]
        assert due(manifest, budget=49) == [(OTHER, [3, 4, 5, 6])]
        assert due(manifest, budget=0) == [(OTHER, [3, 4, 5, 6])]


class TestSplitting:
    """A key group is split if its content is too large for one step."""

    @staticmethod
    def splits(size: int, changes: int, number: int = 5) -> bool:
        manifest, group = Manifest(), ("store", number)
        for count, part in ((0, 1), (0, 1), (changes, size - 2)):
            manifest, _ = appended(advanced(manifest, "t"), group, part, count)
        (step,) = due_for_compaction(manifest, 1 << 40)
        return step.split

    def test_is_due_for_many_changes_even_if_they_are_small(self) -> None:
        assert [self.splits(10, count) for count in (LARGEST_CHANGES, LARGEST_CHANGES + 1)] == [False, True]

    def test_is_due_for_many_bytes_unless_they_are_a_few_large_values(self) -> None:
        large = LARGEST_BYTES + 1
        assert [self.splits(large, count) for count in (1, 1023, 1024)] == [False, False, True]
        assert not self.splits(LARGEST_BYTES, 1024)
        assert [self.splits(size, 3, number=WHOLE_STORE) for size in (large - 1, large)] == [False, True]

    @pytest.mark.parametrize(("touched", "moves"), [(49, False), (50, True)])
    def test_moves_changes_down_when_they_are_half_as_many_as_below(self, touched: int, moves: bool) -> None:
        """Otherwise, a few deletions would keep large values in the log."""
        manifest = Manifest()
        for group, changes in ((GROUP, 40), (OTHER, 60), (WHOLE, touched)):
            manifest, _ = appended(advanced(manifest, "t"), group, 10, changes)
        assert [step.split for step in due_for_compaction(manifest, 1 << 30)] == [True] * moves

    def test_never_goes_beyond_thirty_bits(self) -> None:
        splits = [self.splits(10, LARGEST_CHANGES + 1, number=1 << bits) for bits in (26, 28, 30)]
        assert splits == [True, True, False]


class TestCatchingUp:
    def test_an_empty_copy_needs_all_segments(self) -> None:
        manifest = grown(1, 0, 1, group=OTHER, manifest=grown(1, 1))
        assert sequences(catch_up(manifest, None)) == [0, 1, 2, 3]

    def test_a_copy_needs_only_newer_segments(self) -> None:
        manifest = grown(1, 1, 1, 1)
        assert sequences(catch_up(manifest, Version(2, "t2"))) == [2, 3]
        assert sequences(catch_up(manifest, Version(4, "t4"))) == []

    def test_a_copy_of_another_history_cannot_catch_up(self) -> None:
        assert catch_up(grown(1, 1), Version(2, "other")) is None
        assert catch_up(grown(1, 1), Version(3, "t3")) is None
        assert catch_up(grown(*[1] * 70), Version(3, "t3")) is None

    def test_a_copy_can_catch_up_from_a_base_that_keeps_the_deletions_it_lacks(self) -> None:
        manifest = grown(10, 5, 5)
        manifest, _ = compacted(manifest, GROUP, manifest.segments[GROUP], 12)  # version 3, deletions since 0
        manifest = grown(6, 7, manifest=manifest)
        manifest, _ = compacted(manifest, GROUP, manifest.segments[GROUP], 14)  # version 5, deletions since 3
        assert sequences(catch_up(manifest, Version(4, "t4"))) == [6]
        assert sequences(catch_up(manifest, Version(3, "t3"))) == [6]
        assert catch_up(manifest, Version(2, "t2")) is None

    def test_a_copy_that_is_newer_than_the_base_does_not_need_it(self) -> None:
        manifest = grown(10, 5, 5)
        manifest, _ = compacted(manifest, GROUP, manifest.segments[GROUP], 12)
        manifest = grown(6, 7, manifest=manifest)
        manifest, _ = compacted(manifest, GROUP, manifest.segments[GROUP], 14)
        manifest = grown(1, 1, group=OTHER, manifest=manifest)
        assert sequences(catch_up(manifest, Version(6, "t6"))) == [8]


class TestRenamedStores:
    def test_keep_their_segments_and_slices(self) -> None:
        before = grown(3, group=("old", 5), manifest=grown(4, group=("old/7", 5)))
        now = with_renamed_stores(before, {"old": "new"})
        assert {key: [s.sequence for s in found] for key, found in now.segments.items()} == {
            ("new/7", 5): [0],
            ("new", 5): [1],
        }
        assert (now.version, now.next_sequence) == (before.version, before.next_sequence)

    def test_have_their_local_copies_rebuilt_with_a_repeatable_result(self) -> None:
        before = grown(3, 4, group=("old", 5))
        now = with_renamed_stores(before, {"old": "new"})
        assert not now.remembers(before.current)
        assert catch_up(now, before.current) is None
        assert now == with_renamed_stores(before, {"old": "new"})

    def test_do_not_change_when_renamed_again(self) -> None:
        now = with_renamed_stores(grown(3, group=("old", 5)), {"old": "new"})
        assert with_renamed_stores(now, {"old": "new"}) is now
        assert with_renamed_stores(Manifest(), {"old": "new"}) == Manifest()
