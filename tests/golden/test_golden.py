"""Compares Millstream with Kafka Streams 4.3: the same inputs must have the same outputs, stores and dropped records.

The files in `data/` were recorded with Kafka Streams itself, so a failure here is a difference in semantics. Every file is
replayed in all ways of `replay.REPLAYS`. The recordings of a scenario take turns with the batch sizes; `make soak` replays
every file with every size.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from millstream.core.engine import record_processing
from proofs.sizes import FULL
from unit.helpers import columnar

from . import replay as replay_command
from .replay import DATA, REPLAYS, Recording, first_difference, main
from .scenarios import SCENARIOS

FILES = sorted(DATA.glob("*.json"))
BATCH_SIZES = [1, 7, 1000]


ASKING = {"tt_fk_inner", "tt_fk_inner_virtual", "tt_fk_left"}
"""Joins that send requests through a topic. The responses follow all records of a micro-batch, so of several changes of a row
in a micro-batch, only the last has results. The final rows are the same (decision 0027). Batches of these joins change each
row only once."""


def scenario_of(path: Path) -> str:
    return path.name.split(".")[0]


def final_rows(outputs: list[dict[str, Any]]) -> dict[str, tuple[Any, int]]:
    """Return the final rows of a table from its changes."""
    latest = {output["key"]: (output["value"], output["timestamp"]) for output in outputs}
    return {key: row for key, row in latest.items() if row[0] is not None}


def number_of(path: Path) -> int:
    """Return the number of a recording within its scenario."""
    return int(path.name.split(".")[1])


def is_replayed(path: Path, way: int, batch_size: int) -> bool:
    """Return whether a recording is replayed in this way with this size. The recordings of a scenario cover all sizes."""
    return FULL or BATCH_SIZES[(number_of(path) + way) % len(BATCH_SIZES)] == batch_size


@pytest.mark.parametrize(
    ("path", "way", "batch_size"),
    [
        pytest.param(path, way, batch_size, id=f"{path.stem}-{way}-{batch_size}")
        for path in FILES
        for number, way in enumerate(REPLAYS)
        for batch_size in BATCH_SIZES
        if is_replayed(path, number, batch_size)
    ],
)
def test_a_replay_has_the_same_results_as_kafka_streams(path: Path, way: str, batch_size: int) -> None:
    recording = Recording.load(path)
    recording = recording.in_batches_of(batch_size, rows_once=recording.scenario in ASKING)
    replayed = REPLAYS[way](SCENARIOS[recording.scenario].build(), recording)
    assert replayed.stores == recording.stores
    assert first_difference(recording.outputs, replayed.outputs) is None
    assert replayed.dropped == recording.dropped


@pytest.mark.parametrize("batch_size", [7, 1000])
@pytest.mark.parametrize("way", REPLAYS)
@pytest.mark.parametrize(
    "path", [path for path in FILES if scenario_of(path) in ASKING], ids=lambda p: p.stem
)
def test_foreign_key_joins_have_the_same_final_rows_if_a_batch_changes_a_row_several_times(
    path: Path, way: str, batch_size: int
) -> None:
    recording = Recording.load(path).in_batches_of(batch_size)
    replayed = REPLAYS[way](SCENARIOS[recording.scenario].build(), recording)
    assert replayed.stores == recording.stores
    assert final_rows(replayed.outputs) == final_rows(recording.outputs)


@cache
def is_one_task_with_several_topics(scenario: str) -> bool:
    plan = SCENARIOS[scenario].build().plan()
    return len(plan.subtopologies) == 1 and len(plan.external_topics) > 1 and not plan.global_parts


@pytest.mark.parametrize("way", ["new-task-per-batch", "new-task-per-step"])
@pytest.mark.parametrize(
    "path",
    [path for path in FILES if is_one_task_with_several_topics(scenario_of(path))],
    ids=lambda path: path.stem,
)
def test_a_task_processes_the_records_of_several_topics_in_the_recorded_order(path: Path, way: str) -> None:
    recording = Recording.load(path).in_batches_of(1000, topics_together=True)
    replayed = REPLAYS[way](SCENARIOS[recording.scenario].build(), recording)
    assert first_difference(recording.outputs, replayed.outputs) is None


COLUMNAR = {name for name, scenario in SCENARIOS.items() if columnar(scenario.build())}


@pytest.mark.parametrize("batch_size", [1, 1000])
@pytest.mark.parametrize(
    "path", [path for path in FILES if scenario_of(path) in COLUMNAR], ids=lambda path: path.stem
)
def test_columnar_topologies_have_the_same_results_record_by_record(path: Path, batch_size: int) -> None:
    recording = Recording.load(path).in_batches_of(batch_size)
    with patch.object(record_processing, "columnar_entries", lambda sub, compiled: {}):
        replayed = REPLAYS["new-task-per-batch"](SCENARIOS[recording.scenario].build(), recording)
    assert replayed.stores == recording.stores
    assert first_difference(recording.outputs, replayed.outputs) is None
    assert replayed.dropped == recording.dropped


def test_counts_with_and_without_windows_are_columnar() -> None:
    windowed = {
        "tumbling_count",
        "hopping_count",
        "tumbling_emit_on_window_close",
        "hopping_emit_on_window_close",
    }
    assert {"word_count", "count_by_key", *windowed} <= COLUMNAR


def test_every_scenario_has_enough_recordings_for_every_replay_and_batch_size() -> None:
    assert {scenario_of(path) for path in FILES} == SCENARIOS.keys()
    for scenario in SCENARIOS:
        numbers = {number_of(path) % len(BATCH_SIZES) for path in FILES if scenario_of(path) == scenario}
        assert len(numbers) == len(BATCH_SIZES), scenario


def test_every_recorded_output_belongs_to_an_output_topic_of_its_scenario() -> None:
    for recording in map(Recording.load, FILES):
        assert {output["topic"] for output in recording.outputs} <= set(recording.topics)


def test_a_recording_in_batches_of_one_input_is_unchanged() -> None:
    for recording in map(Recording.load, FILES):
        assert recording.in_batches_of(1) == recording


def test_the_command_reports_the_first_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = DATA / "count_by_key.1.json"
    assert main([str(recorded)]) == 0
    changed = tmp_path / recorded.name
    changed.write_text(recorded.read_text().replace('"dropped": 8', '"dropped": 1'))
    capsys.readouterr()
    assert main([str(changed)]) == 1
    output = capsys.readouterr().out
    assert "(test-driver) dropped records differ: Kafka Streams had 1" in output
    assert "0 of 1 recordings are equal" in output


def test_the_command_continues_after_a_file_that_it_cannot_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = DATA / "count_by_key.2.json"
    unknown, broken, not_a_recording = (
        tmp_path / "unknown.json",
        tmp_path / "broken.json",
        tmp_path / "nothing.json",
    )
    unknown.write_text(recorded.read_text().replace('"count_by_key"', '"count_by_moon"'))
    broken.write_text(recorded.read_text()[:100])
    not_a_recording.write_text("[]")
    files = [str(path) for path in (tmp_path / "missing.json", unknown, broken, not_a_recording, recorded)]
    assert main(files) == 1
    *lines, total = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == files[:-1]
    assert "No such file" in lines[0]
    assert "there is no scenario 'count_by_moon'" in lines[1]
    assert "cannot be replayed" in lines[2]
    assert "it is no recording" in lines[3]
    assert total.startswith("1 of 5 recordings are equal")


def test_the_command_reports_a_replay_that_raises_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_error(topology: Any, recording: Recording) -> Any:
        raise RuntimeError("no more")

    monkeypatch.setitem(REPLAYS, "test-driver", raise_error)
    assert main([str(DATA / "count_by_key.1.json")]) == 1
    assert "(test-driver) failed with RuntimeError: no more" in capsys.readouterr().out


def test_the_command_runs_as_a_script() -> None:
    files = [str(DATA / f"session_count.{seed}.json") for seed in (1, 2, 3)]
    completed = subprocess.run(
        [sys.executable, replay_command.__file__, *files], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "3 of 3 recordings are equal" in completed.stdout
