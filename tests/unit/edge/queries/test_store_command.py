"""``millstream store``, against an application whose answers come from local copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import millstream as ms
from millstream.core.queries.question import Answer, Question
from millstream.edge.cli.commands import app
from millstream.edge.queries.remote_application import RemoteApplication
from millstream.edge.queries.store_answers import Answers

from .local_answers import NOW, answers_of

POSITION = "micro-batch 7, offsets numbers/0: 3, lag 0\n"


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    builder = ms.StreamsBuilder()
    numbers = builder.stream("numbers", key=ms.serdes.int64, value=ms.serdes.int64).group_by_key()
    numbers.count(store="counts")
    numbers.windowed_by(ms.TumblingWindows(60_000, grace=0)).count(store="minutes")
    minute = NOW - NOW % 60_000
    opened_answers = answers_of(
        builder.build(),
        tmp_path,
        {
            "counts": lambda store: [store.put(key, ms.ValueAndTimestamp(3, NOW)) for key in (-7, 5)],
            "minutes": lambda store: store.put(5, ms.ValueAndTimestamp(3, NOW), minute),
        },
    )

    def ask(_: RemoteApplication, question: Question) -> Answer:
        return opened_answers.answer(question)

    monkeypatch.setattr(RemoteApplication, "ask", ask)
    return opened_answers


def run_command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["store", "shop", *arguments])


def test_every_answer_shows_the_position_of_its_state(answers: Answers) -> None:
    for arguments, shown in ((["get", "5"], "3\n"), (["all"], "5  3\n-7  3\n"), (["get", "6"], "null\n")):
        result = run_command("counts", *arguments)
        assert (result.exit_code, result.stdout, result.stderr) == (0, shown, POSITION)


def test_info_describes_a_store(answers: Answers) -> None:
    result = run_command("counts", "info")
    described = ["kind  key-value", "key  int64", "value  int64", "timestamps  true", "approximate_count  2"]
    assert result.stdout.splitlines() == [*described, "engine  lmdb"]
    assert result.stderr == POSITION
    facts = json.loads(run_command("minutes", "info", "--json").stdout)
    assert (facts["value"]["kind"], facts["value"]["engine"], facts["batch"]) == ("window", "lmdb", 7)
    assert "approximate_count" not in facts["value"]
    assert run_command("counts", "info", "5").exit_code == 1


def test_negative_numbers_can_be_keys(answers: Answers) -> None:
    assert run_command("counts", "get", "-7").stdout == "3\n"
    assert run_command("counts", "range", "-8", "-1", "--limit", "3").stdout == "-7  3\n"
    assert "micro-batch" not in run_command("counts", "get", "-7", "--json").stderr
    assert json.loads(run_command("counts", "--json", "get", "-7").stdout)["value"] == 3


def test_an_unknown_option_is_an_error(answers: Answers) -> None:
    result = run_command("counts", "all", "--limt", "3")
    assert (result.exit_code, "No such option: --limt" in result.stderr) == (2, True)


def test_an_empty_method_name_is_an_error(answers: Answers) -> None:
    result = run_command("counts", "")
    assert (result.exit_code, "store 'counts' has no method ''" in result.stderr) == (1, True)
