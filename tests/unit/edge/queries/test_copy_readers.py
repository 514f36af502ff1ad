"""Readers of local copies: a query may need the copies of thousands of tasks at the same time."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.core.state.segments.log import Manifest, advanced
from millstream.edge.queries import copy_readers

from .local_answers import write_copy

TASKS = 20


@pytest.fixture
def _few_files() -> Iterator[None]:
    """Leave room for ten open files under the soft limit, and for many under the hard one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(number) for number in os.listdir("/dev/fd")}
    unused = [number for number in range(max(used) + 20) if number not in used]
    copy_readers.allow_many_files.cache_clear()
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused[10], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_few_files")
def test_readers_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    """Otherwise a query could use up all files, and Spark's processes could no longer reach the application."""
    known = advanced(Manifest(), "first")
    for number in range(TASKS):
        write_copy(str(tmp_path / f"0_{number}" / "lmdb"), {"counts": [(b"tea", b"1")]}, known)
    readers = [copy_readers.open_reader(str(tmp_path), f"0_{number}", "lmdb") for number in range(TASKS)]
    try:
        assert [reader.view(known).open("counts").get(b"tea") for reader in readers] == [b"1"] * TASKS
    finally:
        for reader in readers:
            reader.close()
