"""An answer waits until the state of every task is known: a task with an unknown state does not count as empty."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import cast

import numpy as np
import pytest

import millstream as ms
from millstream.core.model.errors import CopyMovedError, StoreError
from millstream.core.queries.question import Question
from millstream.core.runtime.task_report import StateReport, TaskReport
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from millstream.core.state.segments.log import Manifest, advanced
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.edge.queries import store_answers
from millstream.edge.queries.store_answers import Answers
from millstream.edge.queries.store_hosts import StoreHosts
from millstream.edge.queries.task_copies import Copies, TaskCopy
from millstream.edge.status.task_reports import TaskReports

from .local_answers import NoHosts, answers_of, write_copy

ALL = Question("counts", "all")
FIRST_MANIFEST = advanced(Manifest(), "first")


def plan_of(store: str = "counts", factor: int = 1) -> Plan:
    builder = ms.StreamsBuilder()
    stream = builder.stream("words", key=ms.serdes.string, value=ms.serdes.int64)
    stream.filter(ms.col("value") > factor).group_by_key().count(store=store)
    return builder.build().plan("shop")


class Shop:
    """An application with two tasks, and one word in each."""

    def __init__(self, directory: Path) -> None:
        self.plan = plan_of()
        self.reports = TaskReports(plan=self.plan)
        self.task_reports = [
            self._filled(directory, number, word) for number, word in enumerate(("rum", "tea"))
        ]
        spec = CopiesSpec(str(directory), {}, {"counts": "lmdb", "renamed": "lmdb"}, 0)
        copies = Copies(lambda: spec, cast(StoreHosts, NoHosts()))
        self.answers = Answers("shop", copies, self.reports, lambda: self.plan)

    def _filled(self, directory: Path, number: int, word: str) -> TaskReport:
        store = open_store(self.plan.subtopologies[0].stores["counts"], MemoryStores())
        store.put(word, (1, 0))
        task = f"0_{number}"
        write_copy(str(directory / task / "lmdb"), store.drain().changes, FIRST_MANIFEST)
        return TaskReport(task, state=StateReport(FIRST_MANIFEST.version, FIRST_MANIFEST.history, {}))

    def run_first_batch(self, number: int) -> None:
        """Report the first micro-batch of a run, which starts all tasks."""
        self.reports.planned({}, {})
        self.reports.record_batch(number, self.task_reports)

    def edit(self, plan: Plan) -> None:
        self.plan = self.reports.plan = plan


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(store_answers, "_WAIT_S", 0.2)
    return Shop(tmp_path)


def test_a_store_cannot_be_queried_until_all_tasks_have_run_since_the_start(shop: Shop) -> None:
    with pytest.raises(StoreError, match=r"not all of its tasks have run since the start"):
        shop.answers.answer(ALL)
    shop.reports.record_batch(6, shop.task_reports[:1])
    for question in (ALL, Question("counts", "get", ("tea",)), Question("counts", "approximate_count")):
        with pytest.raises(StoreError, match=r"not all of its tasks have run since the start"):
            shop.answers.answer(question)
    shop.run_first_batch(7)
    assert shop.answers.answer(ALL).value == [("rum", 1), ("tea", 1)]
    shop.reports.record_batch(8, shop.task_reports[:1])
    assert shop.answers.answer(ALL).value == [("rum", 1), ("tea", 1)]


def test_an_empty_list_is_a_value_and_not_a_missing_key(tmp_path: Path) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("carts", key=ms.serdes.string, value=ms.serdes.json).to_table(store="carts")
    plan = builder.build().plan("shop")
    spec = plan.subtopologies[0].stores["carts"]
    reports, tasks = TaskReports(plan=plan), []
    for number, (customer, cart) in enumerate({"ann": [], "bob": ["tea"], "cid": [], "dan": ["rum"]}.items()):
        store = open_store(spec, MemoryStores())
        store.put(customer, (cart, 0))
        write_copy(str(tmp_path / f"0_{number}" / "lmdb"), store.drain().changes, FIRST_MANIFEST)
        tasks.append(
            TaskReport(f"0_{number}", state=StateReport(FIRST_MANIFEST.version, FIRST_MANIFEST.history, {}))
        )
    reports.planned({}, {})
    reports.record_batch(7, tasks)
    copies = Copies(lambda: CopiesSpec(str(tmp_path), {}, {"carts": "lmdb"}, 0), cast(StoreHosts, NoHosts()))
    answers = Answers("shop", copies, reports, lambda: plan)
    values_by_key = {
        key: answers.answer(Question("carts", "get", (key,))).value for key in ("ann", "bob", "cid", "eve")
    }
    answers.close()
    assert values_by_key == {"ann": [], "bob": ["tea"], "cid": [], "eve": None}


def test_a_value_that_cannot_be_compared_is_returned(tmp_path: Path) -> None:
    builder = ms.StreamsBuilder()
    builder.table("vectors", key=ms.serdes.string, value=ms.serdes.pickle, store="vectors")
    vector = np.array([1.0, 2.0])
    fill = {"vectors": lambda store: store.put("tea", ms.ValueAndTimestamp(vector, 0))}
    answers = answers_of(builder.build(), tmp_path, fill)
    try:
        assert list(answers.answer(Question("vectors", "get", ("tea",))).value) == [1.0, 2.0]
    finally:
        answers.close()


def test_a_query_waits_for_the_missing_tasks(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_answers, "_WAIT_S", 30.0)
    shop.reports.record_batch(6, shop.task_reports[:1])
    Timer(0.1, shop.run_first_batch, [7]).start()
    began = time.monotonic()
    answer = shop.answers.answer(ALL)
    assert (answer.value, answer.batch) == ([("rum", 1), ("tea", 1)], 7)
    assert time.monotonic() - began < 20


def test_a_lag_that_no_broker_has_confirmed_recently_satisfies_no_limit(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run_first_batch(7)
    limited = replace(ALL, max_lag=5)
    shop.reports.planned({}, None)
    assert shop.answers.answer(limited).lag == 0
    monkeypatch.setattr(store_answers, "_LAG_KNOWN_S", 0.0)
    with pytest.raises(
        StoreError, match=r"the lag of store 'counts' has not been known for \d+ s, because no"
    ):
        shop.answers.answer(limited)
    assert shop.answers.answer(ALL).lag == 0
    shop.reports.planned({}, {})  # a long micro-batch follows
    assert shop.answers.answer(limited).lag == 0


def test_an_edit_that_keeps_the_stores_does_not_delay_queries(shop: Shop) -> None:
    shop.run_first_batch(7)
    shop.edit(plan_of(factor=2))
    assert shop.answers.answer(ALL).value == [("rum", 1), ("tea", 1)]


def test_a_store_that_an_edit_added_cannot_be_queried_until_its_tasks_have_run(shop: Shop) -> None:
    shop.run_first_batch(7)
    shop.edit(plan_of("renamed"))
    with pytest.raises(StoreError, match="or the last edit"):
        shop.answers.answer(Question("renamed", "all"))


def test_a_report_without_the_state_of_a_store_does_not_make_the_store_empty() -> None:
    class EmptyCopy:
        def view(self, known: Manifest) -> MemoryStores:
            return MemoryStores()

    counts = ms.stores.key_value("counts", ms.serdes.string, ms.serdes.int64)
    visits = ms.stores.session("visits", ms.serdes.string, ms.serdes.int64, retention=60_000)
    copy = TaskCopy(EmptyCopy())  # type: ignore[arg-type]  # only its view is used
    with pytest.raises(CopyMovedError, match="task 0_1 has not reported its state yet"):
        copy.store(counts, TaskReport("0_1"))
    with pytest.raises(CopyMovedError, match="has not reported the slices of store 'visits' yet"):
        copy.store(visits, TaskReport("0_1", state=StateReport(1, ("a",), {"counts": {}})))
