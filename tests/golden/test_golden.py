"""Penstock against Kafka Streams 4.3: the same inputs have to give the same outputs, stores and dropped records.

The files in `data/` were recorded from Kafka Streams itself, so a failure here is a difference in meaning. Every file
runs in every way of replaying that `replay.REPLAYS` knows, and in batches of several sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from penstock.core.engine import columns
from unit.helpers import columnar

from .replay import DATA, REPLAYS, Recording, Replay, first_difference, main, with_test_driver
from .scenarios import SCENARIOS

FILES = sorted(DATA.glob("*.json"))


ASKING = {"tt_fk_inner", "tt_fk_inner_virtual", "tt_fk_left"}
"""Joins that ask through a topic. The answers come behind all records of a micro-batch, so of several changes of one row in
it only the last has results; the rows that are left are the same (decision 0027)."""


def scenario_of(path: Path) -> str:
    return path.name.split(".")[0]


def rows_left(outputs: list[dict[str, Any]]) -> dict[str, tuple[Any, int]]:
    """Give the rows of the table whose changes were recorded."""
    latest = {output["key"]: (output["value"], output["timestamp"]) for output in outputs}
    return {key: row for key, row in latest.items() if row[0] is not None}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording.load(request.param)


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS.keys())
def test_replays_like_kafka_streams(recording: Recording, replay: Replay, batch_size: int) -> None:
    recording = recording.in_batches_of(batch_size)
    replayed = replay(SCENARIOS[recording.scenario].build(), recording)
    assert replayed.stores == recording.stores
    if recording.scenario in ASKING and batch_size > 1 and replay is not with_test_driver:
        assert rows_left(replayed.outputs) == rows_left(recording.outputs)
        return
    assert first_difference(recording.outputs, replayed.outputs) is None
    assert replayed.dropped == recording.dropped


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS.keys())
@pytest.mark.parametrize(
    "path", [path for path in FILES if scenario_of(path) in ASKING], ids=lambda p: p.stem
)
def test_joins_that_ask_give_every_result_if_no_row_changes_twice(path: Path, replay: Replay) -> None:
    recording = Recording.load(path).in_batches_of(7, rows_once=True)
    replayed = replay(SCENARIOS[recording.scenario].build(), recording)
    assert first_difference(recording.outputs, replayed.outputs) is None


IN_COLUMNS = {name for name, scenario in SCENARIOS.items() if columnar(scenario.build())}


@pytest.mark.parametrize("batch_size", [1, 1000])
@pytest.mark.parametrize(
    "path", [path for path in FILES if scenario_of(path) in IN_COLUMNS], ids=lambda path: path.stem
)
def test_what_goes_in_columns_gives_the_same_record_by_record(path: Path, batch_size: int) -> None:
    recording = Recording.load(path).in_batches_of(batch_size)
    with patch.object(columns, "entries", lambda sub, compiled: {}):
        replayed = REPLAYS["new-task-per-batch"](SCENARIOS[recording.scenario].build(), recording)
    assert replayed.stores == recording.stores
    assert first_difference(recording.outputs, replayed.outputs) is None
    assert replayed.dropped == recording.dropped


def test_counts_with_and_without_windows_go_in_columns() -> None:
    windowed = {
        "tumbling_count",
        "hopping_count",
        "tumbling_emit_on_window_close",
        "hopping_emit_on_window_close",
    }
    assert {"word_count", "count_by_key", *windowed} <= IN_COLUMNS


def test_every_scenario_has_recordings() -> None:
    assert {scenario_of(path) for path in FILES} == SCENARIOS.keys()


def test_only_read_topics_are_recorded() -> None:
    for recording in map(Recording.load, FILES):
        assert {output["topic"] for output in recording.outputs} <= set(recording.topics)


def test_batches_of_one_are_the_recording_itself() -> None:
    for recording in map(Recording.load, FILES):
        assert recording.in_batches_of(1) == recording


def test_the_command_tells_the_first_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = DATA / "count_by_key.1.json"
    assert main([str(recorded)]) == 0
    changed = tmp_path / recorded.name
    changed.write_text(recorded.read_text().replace('"dropped": 8', '"dropped": 1'))
    assert main([str(changed)]) == 1
    assert "dropped records differ: Kafka Streams had 1" in capsys.readouterr().out
