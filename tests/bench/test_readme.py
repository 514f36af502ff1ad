"""The README and the benchmark page show the figures of the results file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.pages import replaced
from bench.readme import MARK, PAGES, RESULTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_the_figures_of_the_last_run(page: Path) -> None:
    text = page.read_text()
    assert replaced(text, MARK, PAGES[page](json.loads(RESULTS.read_text()))) == text
