"""Progress of a restore: when it is reported, and what the report says."""

from __future__ import annotations

import logging
import secrets
import socket
from dataclasses import replace

import pytest

from millstream.drivers.private import process_directory
from millstream.drivers.spark.control import ControlServer
from millstream.drivers.spark.executor.restore_progress import (
    ApplicationListener,
    Relay,
    RestoreProgress,
    StoreProgress,
    log_progress,
)
from millstream.drivers.spark.executor_id import this_executor

BEGIN = RestoreProgress("0_3", "counts", "the local copy is missing", None, 812)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TestLines:
    def test_say_what_is_restored_and_why_at_the_start(self) -> None:
        assert replace(BEGIN, total=2_000_000).line() == (
            "task 0_3, store counts: restoring from nothing to version 812, because the local copy is missing: "
            "0 of 2,000,000 records"
        )

    def test_say_the_rate_and_the_time_left(self) -> None:
        late = replace(BEGIN, from_version=800, done=500_000, total=2_000_000, seconds=2.0)
        assert late.line().endswith(": 500,000 of 2,000,000 records (25 %), 250,000 records/s, 6 s left")
        assert "from version 800 to version 812" in late.line()

    def test_say_how_long_a_finished_restore_took(self) -> None:
        end = replace(BEGIN, done=9, total=9, seconds=3.0, finished=True)
        assert "restored from nothing" in end.line()
        assert end.line().endswith(": 9 of 9 records in 3.0 s, 3 records/s")


class TestStoreProgress:
    @pytest.fixture(autouse=True)
    def set_up(self) -> None:
        self.clock, self.reports = Clock(), list[RestoreProgress]()

    def progress(self, total: int) -> StoreProgress:
        return StoreProgress(replace(BEGIN, total=total), self.reports.append, self.clock)

    def test_of_a_small_and_quick_restore_is_not_reported(self) -> None:
        progress = self.progress(1000)
        progress.advance(1000)
        progress.finish(1000)
        assert self.reports == []

    def test_of_a_large_restore_is_reported_at_once_and_at_the_end(self) -> None:
        progress = self.progress(200_000)
        progress.advance(200_000)
        progress.finish(200_000)
        assert [(p.done, p.finished) for p in self.reports] == [(0, False), (200_000, True)]

    def test_is_reported_once_a_second(self) -> None:
        progress = self.progress(1000)
        for _ in range(80):
            self.clock.now += 0.125
            progress.advance(12.5)
        progress.finish(1000)
        assert [round(p.seconds) for p in self.reports] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10]
        assert self.reports[-1].finished


class TestReportedProgress:
    def test_reaches_the_application(self) -> None:
        delivered: list[tuple[str, RestoreProgress]] = []
        server = ControlServer(
            lambda question, data: delivered.append((question, data)) or True, b"key", process_directory()
        )
        try:
            assert ApplicationListener.on_this_host(server.address)(BEGIN)
        finally:
            server.close()
        assert delivered == [("restoring", BEGIN)]

    @pytest.mark.parametrize("elsewhere", [False, True])
    def test_goes_to_the_log_if_the_application_cannot_be_reached(
        self, elsewhere: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = ControlServer(lambda question, data: True, secrets.token_bytes(8), process_directory())
        host = "elsewhere" if elsewhere else socket.gethostname()
        if not elsewhere:
            server.close()
        with caplog.at_level(logging.WARNING):
            assert not ApplicationListener(server.address, host)(BEGIN)
        server.close()
        assert caplog.messages == [BEGIN.line()]

    def test_is_added_to_the_task_report_if_it_was_not_delivered(self) -> None:
        end = replace(BEGIN, done=9, total=9, seconds=3.0, finished=True)
        for delivered in (True, False):
            relay = Relay(lambda _, delivered=delivered: delivered)
            assert [relay(BEGIN), relay(end)] == [delivered, delivered]
            assert relay.undelivered == ([] if delivered else [f"{end.line()}, on {this_executor()}"])

    def test_is_logged_even_if_logging_is_not_configured(self, caplog: pytest.LogCaptureFixture) -> None:
        log_progress(BEGIN)
        assert caplog.records[0].levelno == logging.WARNING  # Python's output when logging is not configured
