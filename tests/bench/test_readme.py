"""The README quotes the file of results."""

from __future__ import annotations

import json

from bench.readme import README, RESULTS, block, replaced


def test_the_figures_of_the_readme_are_those_of_the_last_run() -> None:
    page = README.read_text()
    assert replaced(page, block(json.loads(RESULTS.read_text()))) == page
