"""`make audit` reports a clean result only for packages that were looked up."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

JUDGED = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "audit.py"))["judged"]
CLEAN = {"name": "click", "version": "8.5.1", "vulns": []}
SKIPPED = {"name": "rich", "skip_reason": "not found"}
BAD = {"name": "lmdb", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
WORSE = {"name": "uvloop", "version": "0.1", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}


@pytest.mark.parametrize(
    ("found", "code", "expected"),
    [
        ([CLEAN], 0, "1 packages were looked up at 'pypi': nothing is known against them"),
        ([CLEAN, SKIPPED], 2, "1 of 2 packages were NOT audited"),
        ([], 2, "0 of 0 packages were NOT audited"),
        ([CLEAN, BAD], 1, "lmdb 1.0: PYSEC-1, mended in 1.1"),
        ([WORSE], 1, "uvloop 0.1: PYSEC-2, mended in no version yet"),
        ([BAD, SKIPPED], 1, "They are: rich"),
    ],
)
def test_findings_and_skipped_packages_are_reported(
    found: list[dict[str, Any]], code: int, expected: str
) -> None:
    ended, lines = JUDGED(found, "pypi")
    assert ended == code
    assert any(expected in line for line in lines), lines
