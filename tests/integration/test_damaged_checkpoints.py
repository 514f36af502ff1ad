"""A damaged checkpoint: it is refused before anything is sent, or the application continues with correct results."""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream as ms
from millstream.core.model.errors import CheckpointError
from millstream.drivers.spark.driver.checkpoint import LocalFiles
from millstream.edge.checkpoint.checkpoint_health import sound_progress
from unit.drivers.spark.driver.checkpoints import DAMAGES, HARMLESS, Damage, newest
from unit.flips import FLIPS, flip

from .helpers import Apps, latest, written

pytestmark = [pytest.mark.broker, pytest.mark.spark]

WORDS = [f"word-{n % 7}" for n in range(60)]


class Counting:
    """An application that counts words, stopped after some micro-batches. Each test starts with the directory of that moment.

    Attributes:
        checkpoint: The checkpoint.
        batch: Its newest micro-batch.
    """

    def __init__(self, apps: Apps) -> None:
        self._apps = apps
        self._source, self._sink = apps.topic("in", 2), apps.topic("out", 2)
        self._counted: Counter[str] = Counter()
        self.feed()
        self.run()
        self._home = apps.home / apps.id
        self._kept = apps.home / "kept"
        shutil.copytree(self._home, self._kept)
        self.checkpoint = self._home / "checkpoint"
        self.batch = newest(self.checkpoint, "offsets")
        assert newest(self.checkpoint, "commits") == self.batch > 2

    def feed(self) -> None:
        self._apps.kafka.produce(self._source, [(word, "") for word in WORDS])
        self._counted.update(WORDS)

    def run(self) -> None:
        builder = ms.StreamsBuilder()
        counts = builder.stream(self._source).group_by_key().count(store="counts")
        counts.to_stream().to(self._sink, value=ms.serdes.int64)
        self._apps.run(builder.build(), max_batch_records=20, shuffle_partitions=2)

    def restore(self) -> None:
        shutil.rmtree(self._home)
        shutil.copytree(self._kept, self._home)

    def sent(self) -> int:
        return written(self._apps.kafka, self._sink)

    def is_right(self) -> bool:
        return latest(self._apps.kafka.consume(self._sink), ms.serdes.int64) == self._counted


@pytest.fixture(scope="module")
def left(module_apps: Apps) -> Counting:
    return Counting(module_apps)


@pytest.fixture
def counting(left: Counting) -> Iterator[Counting]:
    left.restore()
    yield left
    left.restore()


def progress(root: Path) -> object:
    return sound_progress(LocalFiles(root), root.as_uri())


@pytest.mark.parametrize("case", DAMAGES, ids=lambda case: case.name)
def test_damage_is_found(counting: Counting, case: Damage) -> None:
    case.do(counting.checkpoint)
    with pytest.raises(CheckpointError, match=case.pattern(counting.batch)) as caught:
        progress(counting.checkpoint)
    assert "nothing was sent" in caught.value.message
    assert "millstream reset" in caught.value.message


@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: case.name)
def test_harmless_changes_are_accepted(counting: Counting, case: Damage) -> None:
    case.do(counting.checkpoint)
    assert progress(counting.checkpoint) is not None


def test_a_flipped_bit_is_found_unless_the_file_is_not_needed(counting: Counting) -> None:
    root, intact, outcomes = counting.checkpoint, progress(counting.checkpoint), Counter[str]()
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    needed = set(needed_by_a_start(root, counting.batch))
    assert needed < set(files)
    for seed in range(max(FLIPS, 300)):
        rng = random.Random(seed)
        path = rng.choice(files)
        before = path.read_bytes()
        flip(path, rng)
        try:
            assert progress(root) == intact, (seed, path)
            assert path not in needed, (seed, path)
            outcomes["not needed"] += 1
        except CheckpointError as error:
            assert_names_file_and_remedy(error, path)
            outcomes["refused"] += 1
        path.write_bytes(before)
    assert progress(root) == intact
    sys.stderr.write(f"\n{dict(outcomes)}\n")
    assert outcomes.keys() == {"not needed", "refused"}


def needed_by_a_start(root: Path, batch: int) -> Iterator[Path]:
    """Yield the files that Spark needs to continue, except those that depend on the times of its snapshots."""
    yield from (root / name for name in ("metadata", f"commits/{batch}"))
    yield from (root / "offsets" / str(batch - back) for back in range(2))
    for directory in (root / "state/0/_metadata/v2", root / "state/0/_stateSchema/default"):
        yield from (path for path in directory.iterdir() if not path.name.startswith("."))
    yield from root.glob(f"state/0/*/{batch + 1}.changelog")


def assert_names_file_and_remedy(error: CheckpointError, path: Path) -> None:
    assert "is damaged, so nothing was started on it" in error.message
    assert path.name.removeprefix(".").removesuffix(".crc") in error.message
    assert "millstream reset" in error.message


@pytest.mark.parametrize("name", ["offset missing", "changes missing", "shared file missing"])
def test_a_start_on_a_damaged_checkpoint_sends_nothing(counting: Counting, name: str) -> None:
    case = next(case for case in DAMAGES if case.name == name)
    case.do(counting.checkpoint)
    counting.feed()
    before = counting.sent()
    with pytest.raises(CheckpointError, match=case.pattern(counting.batch)):
        counting.run()
    assert counting.sent() == before


def test_a_start_after_a_crash_continues_with_correct_results(counting: Counting) -> None:
    for case in HARMLESS[1:3]:
        case.do(counting.checkpoint)
    counting.feed()
    counting.run()
    assert counting.is_right()


def test_an_unreadable_commit_can_be_deleted_as_the_error_says(counting: Counting) -> None:
    commit = counting.checkpoint / "commits" / str(counting.batch)
    beside = commit.with_name(f".{commit.name}.crc")
    commit.write_bytes(b"")
    counting.feed()
    with pytest.raises(CheckpointError, match=re.escape(f"delete it and the file {beside.name} beside it")):
        counting.run()
    commit.unlink()
    beside.unlink(missing_ok=True)
    counting.run()
    assert counting.is_right()
