"""Each row of the table of features names commands, pages, tests and functions that exist."""

from __future__ import annotations

import re

import pytest

from .markdown import ROOT, anchors_of, table_rows

PAGE = ROOT / "docs/reference/features.md"
ROWS = {int(row[0]): row for row in table_rows(PAGE, "#")}
COMMANDS = anchors_of(ROOT / "docs/reference/cli.md")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_table_has_25_rows() -> None:
    assert list(ROWS) == list(range(1, 26))


@pytest.mark.parametrize("number", ROWS)
def test_everything_that_a_row_names_exists(number: int) -> None:
    shown = ROWS[number][2]
    tests = re.findall(r"`(tests/[^`]+)`", shown)
    targets = re.findall(r"`make ([\w-]+)`", shown)
    commands = re.findall(r"`millstream ([\w ]+)`", shown)
    pages = re.findall(r"\]\(([^)#]+)", shown)  # another test checks that links lead somewhere
    assert tests or targets or commands or pages
    assert [path for path in tests if not (ROOT / path).is_file()] == []
    assert set(targets) <= TARGETS
    assert {command.replace(" ", "-") for command in commands} <= COMMANDS


def test_listed_commands_exist() -> None:
    listed = re.search(r"\(cli\.md\): ([\w, ]+);", ROWS[25][2])
    assert listed is not None
    groups = {command.partition("-")[0] for command in COMMANDS}
    assert set(listed[1].split(", ")) <= COMMANDS | groups
