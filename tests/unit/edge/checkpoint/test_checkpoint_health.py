"""What a start, a rescale and a reset do about a damaged checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream as ms
from millstream.core.model.errors import CheckpointError
from millstream.core.runtime.reset import Move
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.driver.checkpoint import LocalFiles, progress_of
from millstream.edge.checkpoint.application_reset import ResetPlan, read_progress
from millstream.edge.checkpoint.checkpoint_health import sound_progress, ways_out
from millstream.edge.cli.reset_command import plan_lines
from unit.drivers.spark.driver.checkpoints import DAMAGES, Checkpoint, Damage


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint").run(*range(3))


def plan(*changelogs: bool) -> Plan:
    builder = ms.StreamsBuilder()
    for number, changelog in enumerate(changelogs):
        options = ms.stores.options(f"store-{number}", changelog="kafka" if changelog else "spark")
        builder.stream(f"in-{number}").group_by_key().count(store=options)
    return builder.build().plan("shop")


def test_a_sound_checkpoint_is_read(checkpoint: Checkpoint) -> None:
    found = sound_progress(LocalFiles(checkpoint.root), "file:/here", plan(True))
    assert found is not None
    assert (found.batch, found.committed) == (2, True)


def test_a_start_reads_each_file_once(checkpoint: Checkpoint) -> None:
    read: list[str] = []

    class RecordingFiles(LocalFiles):
        def names(self, directory: str) -> list[str]:
            read.append(f"{directory}/")
            return super().names(directory)

        def read(self, path: str) -> str:
            read.append(path)
            return super().read(path)

    assert sound_progress(RecordingFiles(checkpoint.root), "file:/here") == progress_of(
        LocalFiles(checkpoint.root)
    )
    assert {"offsets/", "commits/", "offsets/1", "offsets/2", "commits/2"} <= set(read)
    assert len(read) == len(set(read))


def test_the_error_names_the_checkpoint_the_damaged_files_and_ways_out(checkpoint: Checkpoint) -> None:
    (checkpoint.root / "commits/2").write_text("")
    (checkpoint.root / "metadata").unlink()
    with pytest.raises(CheckpointError) as caught:
        sound_progress(LocalFiles(checkpoint.root), "file:/here", plan(False))
    message = caught.value.message
    assert message.startswith(
        "the checkpoint file:/here is damaged, so nothing was started on it and nothing was sent: metadata, which contains "
        "the query id, is missing; commits/2 cannot be read: it is empty."
    )
    assert "`millstream reset shop`" in message


def test_the_error_does_not_list_all_of_many_damaged_files(checkpoint: Checkpoint) -> None:
    for file in checkpoint.root.glob("state/0/*/[0-9]*.*"):
        file.write_text("")
    with pytest.raises(
        CheckpointError, match=r"state/0/0/1\.zip cannot be .*; and 1 more\. One of these helps"
    ):
        sound_progress(LocalFiles(checkpoint.root), "file:/here")


@pytest.mark.parametrize(
    ("changelogs", "proposed"),
    [
        ((True, True), "delete it, so that the next start rebuilds all stores from their changelog topics"),
        ((True, False), ""),
        ((False,), ""),
    ],
)
def test_deleting_the_checkpoint_is_proposed_if_no_state_is_lost(
    changelogs: tuple[bool, ...], proposed: str
) -> None:
    assert proposed in ways_out(plan(*changelogs))
    assert ("delete it" in ways_out(plan(*changelogs))) == bool(proposed)


def test_a_new_checkpoint_has_to_take_over_under_exactly_once() -> None:
    ways = ways_out(plan(True), exactly_once=True)
    assert "delete it, so that the next start (with on_other_checkpoint='take_over') rebuilds" in ways


def test_deleting_the_checkpoint_is_proposed_if_there_are_no_stores() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out")
    ways = ways_out(builder.build().plan("shop"))
    assert "delete it, so that the next start continues at the committed offsets" in ways


@pytest.mark.parametrize("case", DAMAGES, ids=lambda case: case.name)
def test_a_reset_is_possible_with_every_kind_of_damage(checkpoint: Checkpoint, case: Damage) -> None:
    case.do(checkpoint.root)
    progress, damage = read_progress(LocalFiles(checkpoint.root))
    assert progress is None or not damage


def test_a_reset_says_that_it_only_knows_the_offsets_of_the_group(checkpoint: Checkpoint) -> None:
    (checkpoint.root / "offsets/2").write_text("")
    files = LocalFiles(checkpoint.root)
    progress, damage = read_progress(files)
    plan = ResetPlan("shop", (Move("in", 0, 7, 0),), {}, {}, {}, progress, (), None, damage)
    lines = [*plan_lines(plan, files, "file:/here", 0)]
    assert (
        "The checkpoint is damaged (offsets/2 cannot be read: it is empty), so the positions are the group's committed offsets."
        in lines
    )
    assert any("file:/here" in line for line in lines)


def test_a_takeover_that_a_start_would_refuse_is_not_proposed() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").repartition().to("out")
    shuffled = builder.build().plan("shop")
    assert "delete it" not in ways_out(shuffled, exactly_once=True)
    assert "delete it" in ways_out(shuffled)
