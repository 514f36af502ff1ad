"""Changes of a running application, without Spark's query and without a checkpoint: edits and numbers of workers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import ControlError, CoPartitioningError
from millstream.core.runtime.lifecycle import Event
from millstream.core.topology.plan import Plan
from millstream.edge.application import launching
from millstream.edge.application.replaceable_query import ApplicationState, ReplaceableQuery
from millstream.edge.application.topology_edits import emptied
from millstream.edge.checkpoint.continuity import continuity
from millstream.edge.control.flow_control import FlowControl


class FakeQuery:
    """A streaming query without Spark."""

    isActive = True  # noqa: N815 - Spark's name

    def stop(self) -> None: ...

    def exception(self) -> None: ...


class FakeRunningApplication:
    """An application whose query runs, with a checkpoint of the given positions."""

    def __init__(
        self, topology: ms.Topology, existing: Mapping[str, int], home: Path, **settings: Any
    ) -> None:
        self.application = ms.Application("shop", topology, bootstrap_servers="localhost:1", **settings)
        state = ApplicationState()
        state.on(Event.FIRST_BATCH_COMMITTED)
        self.query = ReplaceableQuery(state, lambda error: error, print)  # type: ignore[arg-type, return-value]
        # The fakes have only what a change uses.
        self.query.current, self.query.launch = FakeQuery(), self._launch  # type: ignore[assignment]
        self.launched: list[list[str]] = []
        self._run: Any = SimpleNamespace(
            state=state,
            query=self.query,
            auto_workers=None,
            plan=self.application._program.matching(self.application.settings, existing),
            flow_control=FlowControl.at_start(home, ["orders", "clicks"], {}),
            checkpoint=(home / "checkpoint").as_uri(),
            session=SimpleNamespace(session=lambda _: None),
        )
        self.environment: Any = SimpleNamespace(broker=SimpleNamespace(partition_counts=lambda: existing))

    def status(self) -> Any:
        return SimpleNamespace(lag={})

    def change(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self.application._exclusively(method, self, self.environment, *args, **options)

    def edit(self, topology: ms.Topology, *, preview: bool = False) -> Any:
        return self.change(self.application._edit, topology, preview=preview, renamed_stores=None)

    def _launch(self) -> Any:
        self._run.plan = self.application.plan
        self.launched.append(sorted(self.application.plan.store_fingerprints()))
        self.query.first_batch.set()
        return FakeQuery()


@pytest.fixture(autouse=True)
def positions(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[int, int]]]:
    """The positions of the checkpoint."""
    checkpoint_positions: dict[str, dict[int, int]] = {}

    def remembered(plan: Plan, *_: Any, **options: Any) -> Any:
        result = continuity(plan, None, {}, **options)
        return (
            replace(result, remembered=replace(result.remembered, positions=checkpoint_positions))
            if checkpoint_positions
            else result
        )

    monkeypatch.setattr(launching, "continuity", remembered)
    return checkpoint_positions


def counting(store: str, topic: Any = "orders") -> ms.Topology:
    builder = ms.StreamsBuilder()
    builder.stream(topic).group_by_key().count(store=store)
    return builder.build()


def test_concurrent_changes_are_applied_one_after_the_other(tmp_path: Path) -> None:
    """A change of the workers that was planned before an edit was done used to undo the edit, and both reported success."""
    running = FakeRunningApplication(counting("old"), {"orders": 2}, tmp_path, parallelism={"orders": 2})
    edit = threading.Thread(target=running.edit, args=(counting("new"),))
    workers = threading.Thread(target=running.change, args=(running.application._set_workers, 4))
    edit.start()
    while running.query.unchanging.is_set():  # until the edit waits for the end of the micro-batch
        edit.join(0.01)
        assert edit.is_alive()
    workers.start()
    while edit.is_alive() or workers.is_alive():
        running.query.between_batches.set()
        edit.join(0.01)
        workers.join(0.01)
    assert running.launched == [["new"], ["new"]]


@pytest.mark.parametrize("ends", [True, False])
def test_automatic_workers_are_not_started_for_an_application_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """A thread that measures the load used to be started for a failed application, and never ended."""
    running = FakeRunningApplication(counting("counts"), {"orders": 2}, tmp_path, parallelism="auto")
    running._run.auto_workers = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(running.application, "_auto_workers", lambda _: "a new thread")

    def replace(*_: object) -> None:
        if ends:
            running._run.state.on(Event.ERROR)
        raise ControlError("it does not start")

    monkeypatch.setattr(running.query, "replace", replace)
    with pytest.raises(ControlError):
        running.change(running.application._set_workers, 4)
    assert running._run.auto_workers == (None if ends else "a new thread")


def test_an_edit_still_reads_the_topics_of_a_pattern(tmp_path: Path) -> None:
    topology = counting("counts", re.compile("orders-.*"))
    running = FakeRunningApplication(topology, {"orders-eu": 2, "orders-us": 2}, tmp_path)
    assert str(running.edit(topology, preview=True)) == "keeps counts"


@pytest.mark.parametrize("setting", ["fail", "wait"])
def test_an_edit_treats_uneven_partitions_like_a_start(
    tmp_path: Path, positions: dict[str, dict[int, int]], setting: str
) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("orders").join(builder.table("clicks"), lambda order, click: order + click).to("out")
    positions.update({topic: {0: 1, 1: 1} for topic in ("orders", "clicks")})
    existing = {"orders": 2, "clicks": 3, "out": 1}
    running = FakeRunningApplication(builder.build(), existing, tmp_path, on_uneven_partitions=setting)
    if setting == "wait":
        assert "keeps" in str(running.edit(builder.build(), preview=True))
    else:
        with pytest.raises(CoPartitioningError):
            running.edit(builder.build(), preview=True)


def through_kafka(*, again: bool) -> ms.Topology:
    builder = ms.StreamsBuilder()
    values = builder.stream("orders").group_by(lambda _key, value: value)
    counts = values.count(store="values").to_stream()
    if again:
        counts.group_by(lambda _key, count: str(count)).count(store="counts")
        builder.stream("clicks").to("copy")
    return builder.build()


class TestAnEditThatRemovesInternalTopics:
    @pytest.fixture
    def flow_control(self, tmp_path: Path) -> FlowControl:
        return FlowControl.at_start(tmp_path, ["orders", "clicks"], {})

    @pytest.fixture
    def plans(self) -> list[Plan]:
        return [through_kafka(again=again).plan("shop") for again in (True, False)]

    def test_holds_back_all_other_topics_until_it_is_done(
        self, flow_control: FlowControl, plans: list[Plan]
    ) -> None:
        """A topic that is no longer read cannot be resumed. This error used to prevent that the other topics were resumed."""
        with emptied(flow_control, dict, *plans):
            assert flow_control.limits.unread == {"orders", "clicks"}
        assert flow_control.limits.unread == set()

    def test_does_not_resume_topics_that_are_paused_meanwhile(
        self, flow_control: FlowControl, plans: list[Plan]
    ) -> None:
        with emptied(flow_control, dict, *plans):
            flow_control.pause(["orders"], keep=True)
            flow_control.resume(["clicks"])
            assert flow_control.limits.unread == {"orders", "clicks"}
        assert flow_control.limits.unread == flow_control.limits.kept == {"orders"}


def test_topics_that_an_edit_no_longer_reads_are_not_paused_afterwards(tmp_path: Path) -> None:
    """They could not be resumed, and they were still paused when a later edit read them again."""
    builder = ms.StreamsBuilder()
    builder.stream(["orders", "clicks"]).group_by_key().count(store="old")
    running = FakeRunningApplication(builder.build(), {"orders": 2, "clicks": 2}, tmp_path)
    flow_control: FlowControl = running._run.flow_control
    flow_control.pause(["orders", "clicks"], keep=True)
    flow_control.throttle("clicks", 5)
    running.query.between_batches.set()  # no micro-batch runs
    running.edit(counting("new"))
    assert (flow_control.limits.paused, flow_control.limits.rates) == ({"orders"}, {})
    assert FlowControl.at_start(tmp_path, ["orders", "clicks"], {}).limits.kept == {"orders"}
