"""The life cycle of processors: creation, init, process and close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError, TopologyError
from unit.helpers import Host

Events = list[str]


def tracing(events: Events, name: str, *, fails_in: str | None = None) -> Callable[[], ms.Processor]:
    """Return a supplier of processors that record which methods are called, and fail in ``fails_in``."""

    class Tracing(ms.Processor):
        def init(self, context: ms.ProcessorContext) -> None:
            super().init(context)
            self._note("init")

        def process(self, record: ms.Record) -> None:
            self._note("process")
            self.context.forward(record)

        def close(self) -> None:
            self._note("close")

        def _note(self, method: str) -> None:
            events.append(f"{name}.{method}")
            if method == fails_in:
                raise RuntimeError(f"{name} breaks")

    return Tracing


def chain(events: Events, **fails_in: str) -> ms.Topology:
    """Build b -> a -> c, which is not the alphabetical order."""
    topology, parent = ms.Topology().add_source("in", "in"), "in"
    for name in ("b", "a", "c"):
        topology.add_processor(name, tracing(events, name, fails_in=fails_in.get(name)), parent)
        parent = name
    return topology


def test_init_and_close_follow_the_order_of_the_topology() -> None:
    events: Events = []
    host = Host(chain(events))
    host.run("in", (None, "x", 0))
    host.task.close()
    assert events == [
        "b.init", "a.init", "c.init",
        "b.process", "a.process", "c.process",
        "b.close", "a.close", "c.close",
    ]  # fmt: skip


def test_every_task_creates_its_own_processors() -> None:
    created: list[Any] = []

    def supplier() -> ms.Processor:
        created.append(tracing([], "p")())
        return created[-1]

    topology = ms.Topology().add_source("in", "in").add_processor("p", supplier, "in")
    created.clear()  # the topology called the supplier twice to check that it returns two processors
    host = Host(topology)
    host.restart()
    assert len(created) == 2
    assert created[0] is not created[1]


@pytest.mark.parametrize("failing", [("a",), ("b", "c"), ("b", "a", "c")])
def test_close_is_called_for_all_processors_even_if_some_fail(failing: tuple[str, ...]) -> None:
    events: Events = []
    host = Host(chain(events, **dict.fromkeys(failing, "close")))
    events.clear()
    with pytest.raises(
        ProcessingError,
        match=rf"^close\(\) of Tracing, the processor of '{failing[0]}', failed in task 0_0: RuntimeError: {failing[0]} breaks \(",
    ):
        host.task.close()
    assert events == ["b.close", "a.close", "c.close"]


def test_close_can_be_called_after_a_failed_step() -> None:
    events: Events = []
    host = Host(chain(events, a="process"))
    with pytest.raises(ProcessingError):
        host.run("in", (None, "x", 0))
    host.task.close()
    assert events[-3:] == ["b.close", "a.close", "c.close"]


def test_the_error_of_a_failing_init_names_the_processor_and_the_task() -> None:
    events: Events = []
    with pytest.raises(
        ProcessingError,
        match=r"^init\(\) of Tracing, the processor of 'a', failed in task 0_0: RuntimeError: a breaks \(",
    ) as caught:
        Host(chain(events, a="init"))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert events == ["b.init", "a.init"]


@pytest.mark.parametrize(
    ("product", "missing"), [(None, "init, process, close"), (object(), "init, process, close")]
)
def test_a_supplier_must_return_a_processor(product: object, missing: str) -> None:
    topology = ms.Topology().add_source("in", "in").add_processor("odd", lambda: product, "in")
    with pytest.raises(
        TopologyError,
        match=rf"supplier of processor 'odd' returned .*, which has no {missing}\(\); derive its class from",
    ):
        Host(topology)


def test_any_class_with_the_three_methods_is_a_processor() -> None:
    class Plain:
        def init(self, context: ms.ProcessorContext) -> None:
            self.seen: list[ms.Record] = []

        def process(self, record: ms.Record) -> None:
            self.seen.append(record)

        def close(self) -> None:
            assert self.seen

    host = Host(ms.Topology().add_source("in", "in").add_processor("plain", Plain, "in"))
    host.run("in", (None, "x", 0))
    host.task.close()


def test_a_processor_without_process_is_refused() -> None:
    class Unfinished(ms.Processor):
        pass

    with pytest.raises(TopologyError, match=r"'p': Unfinished does not define process\(self, record\)$"):
        ms.Topology().add_source("in", "in").add_processor("p", Unfinished, "in")
