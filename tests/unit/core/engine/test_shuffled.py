"""What a task reports about unfinished records that it received through Spark's shuffle."""

from __future__ import annotations

import millstream as ms
from millstream.core.asynchronous.call import Done
from millstream.core.engine.records.readiness import InputFacts
from millstream.core.engine.step_outcome import Outcome
from millstream.core.model.ids import TopicPartition
from millstream.core.runtime.origins import first_offset
from unit.helpers import Host, records

REPARTITION = TopicPartition("app-again-repartition", 0)


def repartitioned(*, twice: bool = False, join: bool = False) -> ms.Topology:
    builder = ms.StreamsBuilder()
    stream = builder.stream("in").repartition(name="again")
    if join:
        stream = stream.merge(builder.stream("other"))
    stream = stream.map_values_async(str.upper, name="first")
    if twice:
        stream = stream.map_values_async(str.lower, name="second")
    stream.to("out")
    return builder.build()


def run(host: Host, batch: int, *values: str, lane: str = "in-0") -> Outcome:
    """Feed records of a micro-batch as they arrive through the shuffle, and take a step."""
    chunk = records([(value, value, 1) for value in values], first_offset(batch, 0))
    host.task.feed(REPARTITION, chunk, 0, lane=lane)
    return host.step()


def answer(host: Host, outcome: Outcome) -> Outcome:
    for call in outcome.issue:
        host.task.done(call.ticket, Done(call.function(*call.args)))
    return host.step()


def test_the_lowest_offset_is_that_of_the_oldest_micro_batch_until_it_is_finished() -> None:
    host = Host(repartitioned(), sub=1)
    first = run(host, 3, "a", "b")
    second = run(host, 4, "c", lane="in-1")
    assert first.shuffled == second.shuffled == {REPARTITION: first_offset(3, 0)}
    assert first.committable == {}
    host.restart()
    assert host.step().shuffled == {REPARTITION: first_offset(3, 0)}
    assert answer(host, first).shuffled == {REPARTITION: first_offset(4, 0)}
    assert answer(host, second).shuffled == {}


def test_a_record_keeps_its_origin_from_one_operator_to_the_next() -> None:
    host = Host(repartitioned(twice=True), sub=1)
    first = run(host, 3, "a")
    second = answer(host, first)
    assert [call.ticket.operator for call in second.issue] == ["second"]
    assert second.shuffled == {REPARTITION: first_offset(3, 0)}
    assert run(host, 9).shuffled == {REPARTITION: first_offset(3, 0)}
    assert answer(host, second).shuffled == {}


def test_records_that_wait_for_another_input_are_reported() -> None:
    """The records wait in front of the operator."""
    host = Host(repartitioned(join=True), sub=1, max_task_idle_ms=1_000)
    other = TopicPartition("other", 0)
    host.task.inform(InputFacts((REPARTITION, other), {other: 5}))
    outcome = run(host, 3, "a")
    assert (outcome.issue, outcome.shuffled) == ((), {REPARTITION: first_offset(3, 0)})


def test_a_task_without_unfinished_records_reports_no_offset() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").repartition(name="again").map_values(str.upper).to("out")
    assert run(Host(builder.build(), sub=1), 3, "a").shuffled == {}
