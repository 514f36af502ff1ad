"""Client ids that name a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millstream.drivers.kafka import process_names
from millstream.drivers.kafka.process_names import may_live, process_name, process_of

PRINT_NAME = (
    "from millstream.drivers.kafka.process_names import process_name; print(process_name('shop-driver'))"
)


@pytest.fixture
def dead() -> str:
    """The name of a process that has ended."""
    return subprocess.run(
        [sys.executable, "-c", PRINT_NAME], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_process_of_this_machine_that_has_ended_is_dead(dead: str) -> None:
    assert not may_live(dead)
    assert may_live(process_name("shop-driver"))


def test_processes_of_other_machines_and_other_clients_may_live(
    dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_names, "_machine", lambda: "another")
    assert may_live(dead)
    assert may_live("rdkafka")
    assert process_of("rdkafka") == "client rdkafka"
