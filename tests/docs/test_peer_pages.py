"""The pages for users of another library contain the programs and commands that `make peers` runs, outside of the tests."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from docs.peer_pages import PAGES, PeerPage


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_how_to_run_both_programs(path: Path) -> None:
    page = PeerPage(path)
    assert page.file in page.commands or Path(page.file).stem in page.commands
    *_, last = ast.parse(page.application).body
    assert ast.unparse(last).startswith("ms.Application(")
    assert ast.unparse(last).endswith(".run()")
