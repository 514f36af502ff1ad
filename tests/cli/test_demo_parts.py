"""The parts of ``millstream demo`` that need neither broker nor Spark: text, topology, board, pictures, verdict."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.spinner import Spinner

import millstream as ms
from millstream.edge.cli.demo.board import Board, BoardStep, Scene
from millstream.edge.cli.demo.conductor import DemoOptions, Verdict, differences
from millstream.edge.cli.demo.demo_command import commands, quiet, report, set_settings_aside
from millstream.edge.cli.demo.display import LiveDisplay, PlainDisplay, display_for, picture, progress_line
from millstream.edge.cli.demo.wordcount import repeated, sonnet_lines, topology, words

SCENE = Scene(
    total=100,
    steps=(BoardStep("starting broker", 1.0, 3.5, "127.0.0.1:1"), BoardStep("counting words", 4.0)),
    written=80,
    counted=50,
    state="running",
    batch=3,
    records_per_s=1234.5,
    counts={"the": 7, "of": 9, "a": 7},
)


def test_the_text_repeats_ten_sonnets() -> None:
    lines = sonnet_lines()

    assert len(lines) == 10 * 14
    assert lines[0] == "Shall I compare thee to a summer's day?"
    assert all(line.isascii() and words(line) for line in lines)
    assert repeated(300)[280:] == lines[:20]
    assert len(repeated(300)) == 300


def test_the_topology_counts_the_same_as_plain_python() -> None:
    lines = repeated(200)
    with ms.testing.TopologyTestDriver(topology()) as driver:
        for line in lines:
            driver.pipe("lines", None, line)
        word_counts = {record.key: record.value for record in driver.read("counts")}

    assert differences(Counter(word for line in lines for word in words(line)), word_counts) == ()


def test_differences_are_reported_in_both_directions() -> None:
    assert differences(Counter("aab"), {"a": 1, "b": 1, "c": 4}) == (("a", 2, 1), ("c", 0, 4))


class TestBoard:
    def test_shows_steps_with_their_results(self) -> None:
        board = Board(10)
        with board.step("starting") as result:
            assert board.scene().steps[0].ended is None
            result += ["127.0.0.1:1", "(process 5)"]
        [step] = board.scene().steps
        assert (step.name, step.result, step.failed) == ("starting", "127.0.0.1:1  (process 5)", False)
        assert step.ended is not None

    def test_shows_steps_that_failed(self) -> None:
        board = Board(10)
        with pytest.raises(ValueError, match="no"), board.step("starting"):
            raise ValueError("no")
        assert board.scene().steps[0].failed

    def test_returns_scenes_that_do_not_change(self) -> None:
        board = Board(10)
        before = board.scene()
        board.note(written=5)
        assert (before.written, board.scene().written) == (0, 5)


class TestPictures:
    def test_top_words_are_ordered_by_count_then_name(self) -> None:
        assert SCENE.top(2) == [("of", 9), ("a", 7)]

    def test_a_progress_line_shows_every_figure(self) -> None:
        assert progress_line(SCENE) == (
            "running, batch 3: 80 of 100 lines written, 50 counted, lag 30, 1,234 records/s; of 9, a 7, the 7"
        )

    def test_a_picture_shows_steps_progress_and_words(self) -> None:
        console = Console(file=io.StringIO(), width=100)
        console.print(picture(SCENE, 9.0, Spinner("dots")))
        text = console.file.getvalue()  # type: ignore[attr-defined]

        for part in ("✓ starting broker   2.5 s 127.0.0.1:1", "  5.0 s", "80 of 100 lines", "lag 30", "of ━"):
            assert part in text

    def test_the_live_display_draws_on_terminals_only(self) -> None:
        terminal, pipe = Console(file=io.StringIO(), force_terminal=True), Console(file=io.StringIO())
        live = display_for(terminal, lambda: SCENE)
        assert isinstance(live, LiveDisplay)
        assert isinstance(display_for(pipe, lambda: SCENE), PlainDisplay)

        with live:
            live.refresh()
        assert "counting words" in terminal.file.getvalue()  # type: ignore[attr-defined]

    def test_the_plain_display_prints_each_event_once_and_the_last_state_at_the_end(self) -> None:
        console, scene = Console(file=io.StringIO(), width=200), SCENE
        with PlainDisplay(console, lambda: scene) as display:
            for _ in range(3):
                display.refresh()
            done = replace(scene.steps[1], ended=6.0)
            scene = replace(scene, counted=100, written=100, steps=(scene.steps[0], done))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]

        assert lines[1:] == [
            progress_line(SCENE),
            "starting broker ...",
            "counting words ...",
            "starting broker: done after 2.5 s  127.0.0.1:1",
            progress_line(scene),
            "counting words: done after 2.0 s",
        ]


class TestVerdict:
    def reported(self, verdict: Verdict) -> tuple[int, str]:
        console = Console(file=io.StringIO(), width=200)
        return report(console, DemoOptions(100, False, "local"), verdict), console.file.getvalue()  # type: ignore[attr-defined]

    def test_without_differences_has_exit_code_0(self) -> None:
        code, text = self.reported(Verdict(1_000, 20, (), 2.0))
        assert code == 0
        assert text.startswith("✓ Correct: 1,000 words (20 different) in 100 lines")

    def test_with_differences_has_exit_code_1_and_lists_them(self) -> None:
        code, text = self.reported(Verdict(1_000, 20, (("the", 7, 6),), 2.0))
        assert code == 1
        assert "'the' should be 7, but is 6" in text


def test_printed_commands_name_the_broker_the_topic_and_the_group() -> None:
    texts = [command for _, command in commands("127.0.0.1:9", "/usr/bin/java", Path("/jars"))]

    assert all(
        text.startswith("/usr/bin/java -Dlog4j2.level=OFF -cp '/jars/*' org.apache.kafka.tools.")
        for text in texts
    )
    assert all("--bootstrap-server 127.0.0.1:9 " in text for text in texts)
    assert "--topic counts" in texts[0]
    assert texts[1].endswith("--group millstream-demo")


def test_settings_of_applications_are_set_aside_and_those_of_the_broker_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {name for name in os.environ if name.startswith("MILLSTREAM_TEST_")}
    for name in (
        "MILLSTREAM_CHECKPOINT_LOCATION",
        "millstream_kafka",
        "MILLSTREAM_CONFIG",
        "MILLSTREAM_KAFKA_JARS",
        "MILLSTREAM_KAFKA__SASL_USERNAME",
        "MILLSTREAM_X",
    ):
        monkeypatch.setenv(name, "1")

    set_settings_aside()

    remaining = {name for name in os.environ if name.upper().startswith("MILLSTREAM_")}
    assert remaining == {*before, "MILLSTREAM_KAFKA_JARS", "MILLSTREAM_X"}


def test_quiet_redirects_child_output_to_a_file_and_keeps_the_terminal_writable(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    with quiet(log) as terminal:
        subprocess.run([sys.executable, "-c", "import os; os.write(1, b'a'); os.write(2, b'b')"], check=True)
        terminal.write("shown\n")
    os.write(1, b"afterwards\n")

    assert log.read_text() == "ab"
    assert capfd.readouterr().out == "shown\nafterwards\n"
