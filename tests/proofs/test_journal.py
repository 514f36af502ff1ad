"""The journal contains every event in order, with any number of writers, even if they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from .journal import BEGIN, END, FAILED, LINE, Journal, counts, open_calls, overlaps, read

WRITER = """
import sys
from pathlib import Path
from proofs.journal import Journal
journal, first = Journal(Path(sys.argv[1])), int(sys.argv[2])
for number in range(first, first + int(sys.argv[3])):
    journal.begin(number)
    journal.end(number)
"""


def writer(path: Path, first: int, count: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(first), str(count)], env=environment
    )


def test_lines_contain_the_event_its_time_and_its_process(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert len(read(path)) == 0
    before = time.time_ns() // 1000
    Journal(path).begin(7, attempt=3, note=-5)
    Journal(path).failed(7, attempt=3)
    Journal(path).end(8)
    lines = read(path)
    assert lines["kind"].tolist() == [BEGIN, FAILED, END]
    assert lines["number"].tolist() == [7, 7, 8]
    assert lines["attempt"].tolist() == [3, 3, 1]
    assert lines["note"].tolist() == [-5, 0, 0]
    assert set(lines["pid"].tolist()) == {os.getpid()}
    assert before <= lines["at_us"][0] <= lines["at_us"][2] <= time.time_ns() // 1000
    assert read(path, 2)["number"].tolist() == [8]
    assert counts(lines, BEGIN, 9).tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0]


def test_lines_of_many_processes_do_not_mix_and_a_kill_tears_none(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    endless, *others = [
        writer(path, first, count) for first, count in ((0, 10**9), (10**9, 500), (2 * 10**9, 500))
    ]
    for process in others:
        assert process.wait(60) == 0
    while len(read(path)) < 10_000:
        assert endless.poll() is None
    endless.send_signal(signal.SIGKILL)
    endless.wait(60)
    assert path.stat().st_size % LINE.itemsize == 0
    lines = read(path)
    for pid in set(lines["pid"].tolist()):
        of_process = lines[lines["pid"] == pid]
        assert (of_process["kind"] == np.resize([BEGIN, END], len(of_process))).all()
        assert (np.diff(of_process["number"][::2]) == 1).all()


def test_overlapping_calls_of_a_group_are_counted() -> None:
    lines = np.zeros(6, LINE)
    lines["kind"] = [BEGIN, BEGIN, BEGIN, FAILED, END, END]
    assert open_calls(lines, np.zeros(6, np.int64)).tolist() == [1, 2, 3, 2, 1, 0]
    assert overlaps(lines, np.array([1, 2, 1, 1, 2, 1])) == 1
    assert overlaps(lines, np.array([1, 2, 3, 1, 2, 3])) == 0
    assert overlaps(lines[:0], np.empty(0, np.int64)) == 0
