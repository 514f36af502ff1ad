"""Global copies: however micro-batches are cut, repeated or interrupted, each sees its topic up to exactly the planned offsets."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import millstream as ms
from millstream.core.ports import LocalCopy
from millstream.core.state.opening import open_store
from millstream.drivers.spark.executor import global_restore
from millstream.drivers.spark.executor.global_restore import (
    GlobalPart,
    GlobalRestore,
    GlobalRestoreCounts,
    GlobalTopics,
)
from unit.drivers.engines import COPIES, Engine
from unit.drivers.state import CutOffError, MortalCopy
from unit.drivers.topics import FakeTopic

from .engines import Visits

HOSTS = st.sampled_from(["a", "b"])
KEYS = st.sampled_from(list("abcdefg"))
Content = dict[str, str]
STRING = ms.serdes.string


class Histories(ms.Processor[str, str, Any, Any]):
    """Keeps all values of a key, so that a lost or repeated record shows."""

    def process(self, record: ms.Record[str, str]) -> None:
        store = self.context.state_store("store")
        if record.value is None:
            store.delete(record.key)
        else:
            store.put(record.key, (store.get(record.key) or "") + record.value)


def part(topic_id: str) -> GlobalPart:
    topology = ms.Topology().add_source("in", "in")
    topology.add_global_store(
        ms.stores.key_value("store", STRING, STRING), "read", "topic", "keep", Histories
    )
    (global_part,) = topology.plan("app").global_parts
    return GlobalPart(global_part, "app", topic_id, ms.ErrorPolicies())


def expected(topic: FakeTopic, planned: dict[int, int]) -> Content:
    content: Content = {}
    for partition, end in planned.items():
        for key, value, _ in topic.entries[partition][:end]:
            assert key is not None
            content[key.decode()] = content.get(key.decode(), "") + (value or b"").decode()
            if value is None:
                del content[key.decode()]
    return content


def machine(engine: Engine, visits: Visits) -> type[RuleBasedStateMachine]:
    class Restores(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.home = Path(tempfile.mkdtemp(prefix="millstream-"))
            self.topic = FakeTopic("topic", 3)
            self.batches: list[dict[int, int]] = []
            self.reached: dict[str, int] = {}

        def copy(self, host: str) -> LocalCopy:
            return engine.open(str(self.home / host))

        def seen(self, copy: Any, planned: dict[int, int]) -> Content:
            """Return the content that a task sees in a micro-batch."""
            topics = GlobalTopics(self.topic, self.topic)
            restore = GlobalRestore(
                part(self.topic.id), copy, topics, task="0_0", listener=lambda progress: None, now_ms=0
            )
            try:
                view = restore.view_at(planned, GlobalRestoreCounts())
                return dict(open_store(part("").part.stores["store"], view).all())
            finally:
                copy.close_view()

        def run_batch(self, host: str, number: int) -> None:
            visits["behind"] += self.reached.get(host, -1) < number
            visits["run again"] += self.reached.get(host, -1) == number
            visits["beyond"] += self.reached.get(host, -1) > number
            self.reached[host] = number
            planned = self.batches[number]
            assert self.seen(self.copy(host), planned) == expected(self.topic, planned)

        @rule(records=st.lists(st.tuples(KEYS, st.none() | st.sampled_from("xyz")), min_size=1, max_size=8))
        def write(self, records: list[tuple[str, str | None]]) -> None:
            for key, value in records:
                self.topic.write(key, value)

        @rule(host=HOSTS)
        def run_the_next_batch(self, host: str) -> None:
            self.batches.append(self.topic.ends)
            self.run_batch(host, len(self.batches) - 1)

        @rule(host=HOSTS, back=st.sampled_from([1, 1, 1, 2, 5]))
        def run_a_batch_again(self, host: str, back: int) -> None:
            if self.batches:
                self.run_batch(host, max(len(self.batches) - back, 0))

        @rule(host=HOSTS, writes=st.integers(0, 2))
        def break_off_a_restore(self, host: str, writes: int) -> None:
            self.batches.append(self.topic.ends)
            try:
                self.seen(MortalCopy(self.copy(host), writes), self.batches[-1])
            except CutOffError:
                visits["cut off"] += 1
                engine.die(str(self.home / host))
                self.run_batch(host, len(self.batches) - 1)

        @rule(host=HOSTS)
        def lose_a_copy(self, host: str) -> None:
            engine.discard(str(self.home / host))
            visits["lost"] += self.reached.pop(host, None) is not None

        @rule()
        def make_a_new_topic(self) -> None:
            self.topic.entries = [[], [], []]
            self.topic.id += "+"
            self.batches.clear()
            self.reached.clear()

        def teardown(self) -> None:
            for host in ("a", "b"):
                engine.discard(str(self.home / host))
            shutil.rmtree(self.home)

    return Restores


@pytest.mark.parametrize("engine", [COPIES["lmdb"], COPIES["memory"]], ids=["lmdb", "memory"])
def test_each_micro_batch_sees_the_global_store_at_its_planned_offsets(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_restore, "_RECORDS_AT_ONCE", 3)
    visits = Visits()
    run_state_machine_as_test(
        machine(engine, visits), settings=settings(max_examples=40, stateful_step_count=30)
    )
    visits.demand(behind=20, **{"run again": 20}, beyond=20, lost=20, **{"cut off": 20})
