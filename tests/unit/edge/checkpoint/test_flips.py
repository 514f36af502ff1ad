"""Flipped bits in the small files of an application's directory: no effect, detected and recreated, or a specific error."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import ApplicationRunningError, ControlError, OtherCheckpointError
from millstream.drivers.kafka.marks import Mark
from millstream.drivers.private import process_directory
from millstream.drivers.spark.control import ControlServer
from millstream.edge.checkpoint.checkpoint_ownership import StartFacts, checkpoint_id
from millstream.edge.checkpoint.state_lease import Lease
from millstream.edge.control.control_client import send
from millstream.edge.control.control_file import write_control_file
from millstream.edge.control.flow_control import FlowControl
from unit.flips import FLIPS, flip

TOPICS = ["clicks", "orders-2", "preise-für-alle"]
CLAIM = "5f3a09c2d1e4b687"


@pytest.fixture
def server() -> Iterator[ControlServer]:
    control_server = ControlServer(lambda *_: {"state": "running"}, bytes(range(32)), process_directory())
    yield control_server
    control_server.close()


def orders(home: Path) -> FlowControl:
    return FlowControl.at_start(home, TOPICS, {})


@pytest.mark.timeout(60 + FLIPS)
def test_flipped_bits_in_kept_pauses_never_let_a_topic_be_read(tmp_path: Path) -> None:
    outcomes, messages = Counter[str](), set[str]()
    for seed in range(max(FLIPS, 300)):
        orders(tmp_path).pause(TOPICS, keep=True)
        flip(tmp_path / "paused.json", random.Random(seed))
        try:
            assert orders(tmp_path).limits.paused == set(TOPICS), seed
            outcomes["no matter"] += 1
        except ControlError as error:
            messages.add(error.message)
            outcomes["refused"] += 1
        (tmp_path / "paused.json").unlink()
    assert outcomes["refused"]
    assert all(re.search(r"paused.json' cannot be read .*delete the file", message) for message in messages)


def claimed(begun: str) -> str:
    """Start without a checkpoint, where an earlier start has claimed an id for one."""
    start = StartFacts(
        "app",
        "/checkpoint",
        begun,
        take_over=False,
        was_reset=lambda: False,
        goes_on=lambda: True,
        shuffled=(),
    )
    return checkpoint_id(start, None, {0: Mark(CLAIM, -1)})


@pytest.mark.timeout(60 + FLIPS)
def test_flipped_bits_in_the_lease_do_not_change_which_application_holds_it(tmp_path: Path) -> None:
    outcomes = Counter[str]()
    for seed in range(max(FLIPS, 300)):
        lease = Lease.take(tmp_path, "app", "running")
        lease.begin(CLAIM)
        flip(tmp_path / "lock", random.Random(seed))
        with pytest.raises(ApplicationRunningError, match=r"'app' is in use: .* holds"):
            Lease.take(tmp_path, "app", "resetting")
        lease.release()
        lease = Lease.take(tmp_path, "app", "running")
        try:
            assert claimed(lease.begun_checkpoint) == CLAIM, seed
            outcomes["no matter"] += 1
        except OtherCheckpointError:
            outcomes["refused"] += 1
        lease.release()
        (tmp_path / "lock").unlink()
    assert {"no matter", "refused"} == outcomes.keys()


@pytest.mark.timeout(60 + FLIPS)
def test_flipped_bits_in_the_control_file_never_send_a_command_to_another_process(
    tmp_path: Path, server: ControlServer
) -> None:
    outcomes, messages = Counter[str](), set[str]()
    for seed in range(max(FLIPS, 100)):
        write_control_file(tmp_path, server.address)
        flip(tmp_path / "control.json", random.Random(seed))
        try:
            answer: Any = send(tmp_path, "app", "status")
            assert answer == {"state": "running"}
            outcomes["no matter"] += 1
        except ControlError as error:
            messages.add(error.message)
            outcomes["refused"] += 1
    assert outcomes["refused"]
    assert all(
        re.search("cannot be read|does not answer|accepts commands only there", message)
        for message in messages
    )
