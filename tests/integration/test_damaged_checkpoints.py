"""A checkpoint that Spark has written and somebody has damaged: refused before anything is sent, or it goes on right."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.core.model.errors import CheckpointError
from penstock.drivers.spark.submit.checkpoint import LocalFiles
from penstock.edge.checkpoints import sound_progress
from unit.drivers.spark.submit.checkpoints import DAMAGES, HARMLESS, Damage, newest

from .helpers import Apps, latest, written

pytestmark = [pytest.mark.broker, pytest.mark.spark]

WORDS = [f"word-{n % 7}" for n in range(60)]


class Counting:
    """An application that counts words, stopped behind some micro-batches; each test gets its directory as it was left.

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
        builder = ps.StreamsBuilder()
        counts = builder.stream(self._source).group_by_key().count(store="counts")
        counts.to_stream().to(self._sink, value=ps.serdes.int64)
        self._apps.run(builder.build(), max_batch_records=20, shuffle_partitions=2)

    def restored(self) -> None:
        shutil.rmtree(self._home)
        shutil.copytree(self._kept, self._home)

    def sent(self) -> int:
        return written(self._apps.kafka, self._sink)

    def is_right(self) -> bool:
        return latest(self._apps.kafka.consume(self._sink), ps.serdes.int64) == self._counted


@pytest.fixture(scope="module")
def left(module_apps: Apps) -> Counting:
    return Counting(module_apps)


@pytest.fixture
def counting(left: Counting) -> Iterator[Counting]:
    left.restored()
    yield left
    left.restored()


def progress(root: Path) -> object:
    return sound_progress(LocalFiles(root), root.as_uri())


@pytest.mark.parametrize("case", DAMAGES, ids=lambda case: case.name)
def test_is_found(counting: Counting, case: Damage) -> None:
    case.do(counting.checkpoint)
    with pytest.raises(CheckpointError, match=case.pattern(counting.batch)) as caught:
        progress(counting.checkpoint)
    assert "nothing was sent" in caught.value.message
    assert "penstock reset" in caught.value.message


@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: case.name)
def test_is_no_damage(counting: Counting, case: Damage) -> None:
    case.do(counting.checkpoint)
    assert progress(counting.checkpoint) is not None


@pytest.mark.parametrize("name", ["offset missing", "changes missing", "shared file missing"])
def test_a_start_sends_nothing(counting: Counting, name: str) -> None:
    case = next(case for case in DAMAGES if case.name == name)
    case.do(counting.checkpoint)
    counting.feed()
    before = counting.sent()
    with pytest.raises(CheckpointError, match=case.pattern(counting.batch)):
        counting.run()
    assert counting.sent() == before


def test_a_start_goes_on_right_behind_a_crash(counting: Counting) -> None:
    for case in HARMLESS[1:3]:
        case.do(counting.checkpoint)
    counting.feed()
    counting.run()
    assert counting.is_right()


def test_a_commit_that_cannot_be_read_can_be_deleted_as_the_error_says(counting: Counting) -> None:
    commit = counting.checkpoint / "commits" / str(counting.batch)
    beside = commit.with_name(f".{commit.name}.crc")
    commit.write_bytes(b"")
    counting.feed()
    with pytest.raises(CheckpointError, match=re.escape(f"delete it, and {beside.name} beside it")):
        counting.run()
    commit.unlink()
    beside.unlink(missing_ok=True)
    counting.run()
    assert counting.is_right()
