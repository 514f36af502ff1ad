"""Global stores on a host: filled to the planned offsets by the first task that needs them, in any state of the copy."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

import millstream as ms
from millstream.core.model.errors import (
    DeserializationError,
    OffsetsLostError,
    StoreError,
    lost_offsets,
    shorter_topic,
)
from millstream.core.model.record import Records
from millstream.core.ports import OffsetRange, Version
from millstream.core.runtime.task_report import TaskReport
from millstream.core.state.global_copy import CopyProgress, with_progress
from millstream.core.state.opening import open_store
from millstream.core.topology.evolution import Lineage
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark import wire
from millstream.drivers.spark.driver.placement import grouping_keys
from millstream.drivers.spark.executor import global_restore
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.drivers.spark.executor.global_restore import GlobalTopics
from millstream.drivers.spark.executor.global_stores import GlobalStores, GlobalStoresSpec, HostLock
from millstream.drivers.spark.executor.host import TaskHost
from millstream.drivers.spark.executor.host_spec import HostSpec
from millstream.drivers.spark.executor.restore_progress import RestoreProgress
from millstream.drivers.spark.spec import TopologySpec
from unit.drivers.engines import COPIES, Engine
from unit.drivers.topics import FakeTopic
from unit.helpers import totals

from .test_host import Handle, report, row, sent

TOPIC, STORE = "products", "goods"


class Counted(ms.Processor[str, str, Any, Any]):
    """Stores the number of changes of a key with its value, which reveals records that were applied twice."""

    def process(self, record: ms.Record[str, str]) -> None:
        store = self.context.state_store(STORE)
        if record.value is None:
            store.delete(record.key)
            return
        seen = store.get(record.key)
        number = 1 if seen is None else int(seen.split("#")[1]) + 1
        store.put(record.key, f"{record.value}#{number}")


def table() -> ms.Topology:
    builder = ms.StreamsBuilder()
    goods = builder.global_table(TOPIC, store=STORE)
    builder.stream("in").join(goods, lambda key, value: value, lambda value, row: row).to("out")
    return builder.build()


def counted() -> ms.Topology:
    string = ms.serdes.string
    topology = ms.Topology().add_source("in", "in")
    topology.add_global_store(ms.stores.key_value(STORE, string, string), "read", TOPIC, "keep", Counted)
    return topology.add_processor("look", Counted, "in").add_sink("out", "out", "look")


class Hosts:
    """Hosts that run the tasks of one application; each has a directory."""

    def __init__(self, home: Path, engine: Engine, topic: FakeTopic) -> None:
        self.home, self.engine, self.topic = home, engine, topic
        self.topology = table()
        self.policies = ms.ErrorPolicies()
        self.reports: list[RestoreProgress] = []

    def spec(self, host: str = "a") -> GlobalStoresSpec:
        plan = self.topology.plan("app")
        layout = lay_out(plan, {"in": 1})
        lineage = Lineage({}, {TOPIC: self.topic.id}, {})
        counts = {TOPIC: len(self.topic.entries)}
        spec = TopologySpec(plan, layout, grouping_keys(layout.tasks), self.policies, {}, lineage, counts)
        name = self.engine.name
        copies = CopiesSpec(str(self.home / host), {name: self.engine.opener}, {STORE: name}, 64 << 20)
        return GlobalStoresSpec(spec, copies, GlobalTopics(self.topic, self.topic), self.reports.append)

    def stores(self, planned: dict[int, int] | None = None, host: str = "a") -> GlobalStores:
        return GlobalStores(self.spec(host), "0_0", {TOPIC: planned or self.topic.ends}, 5)

    def content(self, planned: dict[int, int] | None = None, host: str = "a") -> dict[str, Any]:
        """Return the content of the store that a task on a host sees in a micro-batch."""
        spec = self.topology.plan("app").global_parts[0].stores[STORE]
        with self.stores(planned, host) as stores:
            rows = open_store(spec, stores).all()
            return {key: row.value if spec.timestamped else row for key, row in rows}

    def directory(self, host: str = "a") -> Path:
        return self.home / host / "global" / STORE / self.engine.name

    def die(self, host: str = "a") -> None:
        self.engine.die(str(self.directory(host)))


@pytest.fixture(params=COPIES.values(), ids=COPIES)
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosts]:
    yield Hosts(tmp_path, request.param, FakeTopic(TOPIC, 3))
    for directory in list(request.param.opened):
        if directory.startswith(str(tmp_path)):
            request.param.die(directory)


def fill_topic(hosts: Hosts) -> dict[int, int]:
    for number in range(10):
        hosts.topic.write(f"p{number}", f"v{number}", number)
    hosts.topic.write("p3", None, 11)
    return hosts.topic.ends


EXPECTED = {f"p{number}": f"v{number}" for number in range(10) if number != 3}


def test_a_task_sees_the_table_at_the_planned_offsets(hosts: Hosts) -> None:
    before = fill_topic(hosts)
    hosts.topic.write("p3", "again", 12)
    assert hosts.content(before) == EXPECTED
    assert hosts.content() == {**EXPECTED, "p3": "again"}


def test_only_new_records_are_read(hosts: Hosts) -> None:
    fill_topic(hosts)
    hosts.content()
    hosts.topic.fetched.clear()
    hosts.content()
    assert hosts.topic.fetched == []
    hosts.topic.write("p1", "new")
    with hosts.stores() as stores:
        assert stores.counts.records == 1
    ((_, _, start, end),) = hosts.topic.fetched
    assert end - start == 1


def test_an_empty_topic_is_an_empty_table(hosts: Hosts) -> None:
    assert hosts.content() == {}
    assert hosts.content() == {}


def test_a_repeated_micro_batch_sees_the_same_table_although_the_copy_has_advanced(hosts: Hosts) -> None:
    hosts.topology = counted()
    before = fill_topic(hosts)
    first = hosts.content(before)
    hosts.topic.write("p1", "later")
    assert hosts.content()["p1"] == "later#2"
    assert hosts.content(before) == first
    assert hosts.content()["p1"] == "later#2"


def test_hosts_that_join_later_see_the_same_table(hosts: Hosts) -> None:
    hosts.topology = counted()
    fill_topic(hosts)
    hosts.content()
    hosts.topic.write("p1", "v")
    assert hosts.content(host="b") == hosts.content(host="a")


def test_a_lost_copy_is_filled_again_and_reported(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.drivers.spark.executor.restore_progress._LARGE", 1)
    fill_topic(hosts)
    hosts.content()
    hosts.die()
    shutil.rmtree(hosts.home / "a")
    hosts.reports.clear()
    assert hosts.content() == EXPECTED
    line = hosts.reports[0].line()
    assert "task 0_0, store goods: restoring from nothing to version 11, because the local copy is" in line
    assert hosts.reports[-1].line().startswith("task 0_0, store goods: restored from nothing to version 11")


@pytest.mark.parametrize("version", [Version(11, "x", "y"), Version(-1, "restoring"), Version(11, "x")])
def test_an_incomplete_copy_is_filled_again(hosts: Hosts, version: Version) -> None:
    hosts.topology = counted()
    fill_topic(hosts)
    expected = hosts.content()
    copy = hosts.engine.open(str(hosts.directory()))
    copy.apply({STORE: [(b"p1", b"wrong"), (b"ghost", b"x")]}, version)
    copy.close_view()
    assert hosts.content() == expected


def test_a_recreated_topic_fills_a_new_copy(hosts: Hosts) -> None:
    fill_topic(hosts)
    hosts.content()
    hosts.topic.entries = [[], [], []]
    hosts.topic.id = "second"
    for number in range(20, 40):
        hosts.topic.write(f"p{number}", "x")
    assert set(hosts.content()) == {f"p{number}" for number in range(20, 40)}


def test_an_added_partition_is_read_from_its_beginning(hosts: Hosts) -> None:
    fill_topic(hosts)
    hosts.content()
    hosts.topic.entries.append([(b"new", b"x", 0)])
    hosts.topic.first.append(0)
    hosts.topic.open_records.append(0)
    assert hosts.content() == {**EXPECTED, "new": "x"}


def test_a_topic_without_its_first_records_fills_the_table_with_the_others(hosts: Hosts) -> None:
    fill_topic(hosts)
    hosts.topic.first = list(hosts.topic.ends.values())
    hosts.topic.write("p1", "x")
    assert hosts.content() == {"p1": "x"}
    assert hosts.content(dict.fromkeys(range(3), 0)) == {}


class TopicThatRefusesDeletedOffsets(FakeTopic):
    def fetch(self, planned: OffsetRange) -> Iterator[Records]:
        first = self.first[planned.partition]
        if planned.start < first:
            raise lost_offsets(planned.topic, planned.partition, planned.start, first)
        return super().fetch(planned)


class TopicThatHasBecomeShorter(FakeTopic):
    def fetch(self, planned: OffsetRange) -> Iterator[Records]:
        self.fetched.append(planned)
        raise shorter_topic(planned.topic, planned.partition, planned.start, planned.end)


def test_a_copy_behind_the_beginning_of_its_topic_is_filled_again(hosts: Hosts) -> None:
    """The application was stopped, or the host had no task, for longer than the topic keeps records."""
    hosts.topic = TopicThatRefusesDeletedOffsets(TOPIC, 3)
    fill_topic(hosts)
    assert hosts.content() == EXPECTED
    for number in range(20):
        hosts.topic.write(f"p{number}", "deleted")
    hosts.topic.first = list(hosts.topic.ends.values())
    hosts.topic.write("p1", "x")
    assert hosts.content() == hosts.content(host="b") == {"p1": "x"}


def test_a_copy_of_a_topic_that_has_become_shorter_is_not_filled_again(hosts: Hosts) -> None:
    """The records up to the planned offsets would be missing in a new copy, too."""
    fill_topic(hosts)
    assert hosts.content() == EXPECTED
    hosts.topic = TopicThatHasBecomeShorter(TOPIC, 3)
    hosts.topic.entries = [[(b"x", b"x", 0)] * 20 for _ in range(3)]
    with pytest.raises(OffsetsLostError):
        hosts.content()
    assert hosts.topic.fetched == [(TOPIC, 0, 3, 20)]


def test_deletion_of_records_while_their_topic_is_read_is_an_error(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.topic = TopicThatRefusesDeletedOffsets(TOPIC, 3)
    fill_topic(hosts)
    hosts.topic.first = list(hosts.topic.ends.values())
    monkeypatch.setattr(hosts.topic, "begin_offsets", lambda _: {TOPIC: dict.fromkeys(range(3), 0)})
    with pytest.raises(OffsetsLostError):
        hosts.content()


def test_a_bad_record_fails_the_task_at_every_attempt(hosts: Hosts) -> None:
    fill_topic(hosts)
    hosts.topic.write("p1", b"\xff")
    for _ in range(2):
        with pytest.raises(DeserializationError, match=r"at topic 'products', partition \d, offset"):
            hosts.content()


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_a_bad_record_is_skipped_and_counted(hosts: Hosts, policy: Any) -> None:
    hosts.policies = ms.ErrorPolicies(deserialize=policy, dead_letter_topic="dead")
    fill_topic(hosts)
    hosts.topic.write("p1", b"\xff")
    with hosts.stores() as stores:
        assert [(reason, n) for (_, reason), n in stores.counts.dropped.items()] == [("deserialize error", 1)]
        assert "failed in stage 'deserialize'" in stores.counts.notices[0]
    assert hosts.content() == EXPECTED


def test_a_large_topic_is_read_in_steps_and_continued_after_a_crash(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_restore, "_RECORDS_AT_ONCE", 3)
    hosts.topology = counted()
    fill_topic(hosts)
    expected = hosts.content(host="b")
    broken = hosts.topic.entries[2][-1]
    hosts.topic.entries[2][-1] = (broken[0], b"\xff", 0)
    with pytest.raises(DeserializationError):
        hosts.content()
    hosts.topic.entries[2][-1] = broken
    hosts.topic.fetched.clear()
    assert hosts.content() == expected
    assert sum(end - start for _, _, start, end in hosts.topic.fetched) < 11


def test_changing_the_engine_of_a_store_deletes_the_old_copy(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, COPIES["lmdb"], FakeTopic(TOPIC, 1))
    fill_topic(hosts)
    hosts.content()
    hosts.die()
    hosts.engine = COPIES["memory"]
    assert hosts.content() == EXPECTED
    assert {path.name for path in hosts.directory().parent.iterdir()} == {"memory", "lock"}


def test_progress_of_another_content_is_ignored(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, COPIES["lmdb"], FakeTopic(TOPIC, 1))
    fill_topic(hosts)
    hosts.content()
    copy = hosts.engine.open(str(hosts.directory()))
    copy.apply(with_progress(STORE, CopyProgress("other", {0: 11})), Version(11, "00000000"))
    assert hosts.content() == EXPECTED


class TestProcessesOfAHost:
    def test_wait_for_the_process_that_fills_the_copy(self, tmp_path: Path) -> None:
        path, taken, released = tmp_path / "store" / "lock", threading.Event(), threading.Event()

        def hold() -> None:  # the lock belongs to an open file, so threads compete like processes
            lock = HostLock(path)
            lock.acquire()
            taken.set()
            time.sleep(0.1)
            released.set()
            lock.release()

        holder = threading.Thread(target=hold)
        holder.start()
        assert taken.wait(10)
        lock = HostLock(path)
        lock.acquire()
        assert released.is_set()
        lock.release()
        lock.release()
        holder.join()

    def test_log_which_process_they_wait_for(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Previously, a task could wait forever for a process that hung, and no message named that process."""
        path = tmp_path / "lock"
        first, second = HostLock(path), HostLock(path, wait_s=0.01)
        first.acquire()
        waiting = threading.Thread(target=second.acquire)
        with caplog.at_level(logging.WARNING, "millstream.state"):
            waiting.start()
            while len(caplog.messages) < 2:
                waiting.join(0.01)
        first.release()
        waiting.join(10)
        second.release()
        assert (
            f"for the lock of a global store's copy, {path}, which process {os.getpid()} holds"
            in caplog.messages[1]
        )

    def test_ignore_a_lock_whose_file_was_deleted(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        first, second = HostLock(path), HostLock(path)
        first.acquire()
        path.unlink()
        second.acquire()
        assert path.exists()
        second.release()
        first.release()

    def test_do_not_wait_for_a_child_that_a_function_has_forked(self, tmp_path: Path) -> None:
        lock = HostLock(tmp_path / "lock")
        lock.acquire()
        assert lock._file is not None
        of_the_child = os.dup(lock._file)  # as fork does: another descriptor of the same open file
        lock.release()
        with (tmp_path / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(of_the_child)

    def test_report_a_directory_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(
            StoreError, match=r"cannot write and lock .* which protects the copy of a global store"
        ):
            HostLock(tmp_path / "file" / "lock").acquire()

    def test_take_turns_only_if_the_engine_requires_it(self, hosts: Hosts) -> None:
        fill_topic(hosts)
        with hosts.stores(), (hosts.directory().parent / "lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = False
            except BlockingIOError:
                locked = True
        assert locked == (hosts.engine.name == "rocksdb")


class TestATask:
    """The task host with a task that joins orders with the table."""

    def batch(self, hosts: Hosts, order: str) -> tuple[list[Any], TaskReport]:
        stores_spec = hosts.spec()
        host = TaskHost(
            HostSpec(stores_spec.topology, stores_spec.copies, hosts.reports.append, None, stores_spec.topics)
        )
        host.init(Handle(None, {}))
        positions = json.dumps({TOPIC: hosts.topic.ends}).encode()
        rows = [row(wire.GLOBAL), row(wire.RECORDS, ("k", order, 1))]
        positions_row = Row(**{**rows[0].asDict(), "payload": positions, "topic": ""})
        out = list(host.handleInputRows(None, iter([rows[1], positions_row]), None))
        return sent(out), report(out)

    def test_sees_the_table_of_its_micro_batch(self, hosts: Hosts) -> None:
        fill_topic(hosts)
        assert self.batch(hosts, "p1")[0] == [(b"k", b"v1")]
        hosts.topic.write("p1", "new")
        assert self.batch(hosts, "p1")[0] == [(b"k", b"new")]

    def test_reports_how_many_records_it_has_read_and_skipped(self, hosts: Hosts) -> None:
        hosts.policies = ms.ErrorPolicies(deserialize="skip")
        fill_topic(hosts)
        hosts.topic.write("p1", b"\xff")
        first, second = self.batch(hosts, "p1")[1], self.batch(hosts, "p1")[1]
        counted = [totals(report) for report in (first, second)]
        assert [each["global_records"] for each in counted] == [12, 0]
        assert [each.get("dropped_records: deserialize error", 0) for each in counted] == [1, 0]
        assert (len(first.notices), second.notices) == (1, ())
        assert counted[0]["read_records"] == 1
