"""The decisions of an async worker for one task, tested without threads and clocks."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.core.asynchronous.async_worker import Queued
from millstream.core.asynchronous.call import Done, Raised, Returned, Start, Ticket, Waits, grouped
from millstream.core.model.answers import delay
from millstream.core.model.calls import Calls, CircuitBreaker, Retry
from millstream.core.model.errors import AsyncWorkerError
from millstream.drivers.async_worker.task_session import Session
from millstream.drivers.async_worker.worker_messages import WorkerQuestion, columns

DAY_MS = 86_400_000
FUNCTION, OPTIONS, OTHER_OPTIONS = b"function", b"options", b"others"
LOADED: dict[bytes, Any] = {
    FUNCTION: str.upper,
    OPTIONS: Calls(retry=Retry(initial=10, jitter=0)),
    OTHER_OPTIONS: Calls(order="completion"),
}


def ticket(number: int, epoch: str) -> Ticket:
    return Ticket("call", number, 1, epoch)


def order(call_ticket: Ticket, call_key: str = "k") -> tuple[Any, ...]:
    return (
        call_ticket.number,
        call_ticket.turn,
        call_ticket.epoch,
        FUNCTION,
        ("v",),
        call_key,
        1,
        None,
        "",
        0,
    )


def question(
    *orders: tuple[Any, ...],
    unfinished: tuple[Ticket, ...] = (),
    batch: int = 1,
    options: bytes = OPTIONS,
    now_ms: int = 0,
) -> WorkerQuestion:
    tickets = [*unfinished, *(Ticket("call", *each[:3]) for each in orders)]
    return WorkerQuestion(
        "0_0", batch, now_ms, grouped(tickets), {"call": columns(orders)}, {"call": options}
    )


def starts(session: Session, now_ms: int = 0) -> list[Start]:
    return [start for _, start in session.start(now_ms, lambda call: True)]


def begun(session: Session, now_ms: int = 0) -> list[Ticket]:
    return [call.ticket for start in starts(session, now_ms) for call in start.calls]


def test_a_result_is_repeated_until_its_ticket_is_no_longer_in_flight() -> None:
    session, first = Session("0_0"), ticket(0, "a")
    session.ask(question(order(first)), LOADED, 0)
    (start,) = starts(session)
    session.end("call", start.number, ["V"], 5)
    for _ in range(2):
        answer = session.ask(question(unfinished=(first,), batch=2), LOADED, 6)
        assert (answer.settled, answer.lost) == (((first, Done("V")),), ())
    assert not session.idle
    assert session.ask(question(batch=3), LOADED, 7).settled == ()
    assert session.idle


def test_a_repeated_question_does_not_repeat_the_call() -> None:
    session, first = Session("0_0"), ticket(0, "a")
    for _ in range(2):
        session.ask(question(order(first)), LOADED, 0)
    assert begun(session) == [first]


@pytest.mark.parametrize(("batch_ms", "lease_ms"), [(100, 30_000), (20_000, 200_000)])
def test_no_call_starts_after_the_lease_of_the_task_has_expired(batch_ms: int, lease_ms: int) -> None:
    session = Session("0_0")
    first, *queued = (ticket(number, "a") for number in range(3))
    session.ask(question(*map(order, (first, *queued))), LOADED, 0)
    (start,) = starts(session)
    session.ask(question(unfinished=(first, *queued), batch=2), LOADED, batch_ms)
    last_ms = batch_ms + lease_ms
    session.end("call", start.number, ["V"], last_ms)
    (second,) = starts(session, last_ms)
    session.end("call", second.number, ["V"], last_ms + 1)
    assert begun(session, last_ms + 1) == []
    assert session.wake_at_ms(last_ms + 1) is None
    session.ask(question(unfinished=(first, *queued), batch=3), LOADED, last_ms + 2)
    assert begun(session, last_ms + 2) == [queued[1]]


def test_a_running_call_still_times_out_after_the_lease() -> None:
    session, slow = Session("0_0"), {**LOADED, OPTIONS: Calls(timeout=90_000)}
    session.ask(question(order(ticket(0, "a"))), slow, 0)
    (start,) = starts(session)
    assert session.wake_at_ms(60_000) == 90_000
    assert session.expire(90_000) == [("call", start.number)]


def test_a_pause_without_calls_does_not_extend_the_lease() -> None:
    session, first = Session("0_0"), ticket(0, "a")
    session.ask(question(), LOADED, 0)
    session.ask(question(order(first), batch=2), LOADED, DAY_MS)
    assert session.lease_ends_ms == DAY_MS + 30_000


def test_calls_whose_options_have_changed_are_abandoned() -> None:
    session, first = Session("0_0"), ticket(0, "a")
    session.ask(question(order(first)), LOADED, 0)
    (start,) = starts(session)
    assert session.ask(question(unfinished=(first,), batch=2, options=OTHER_OPTIONS), LOADED, 1).lost == (
        first,
    )
    assert session.expire(2) == [("call", start.number)]
    assert session.expire(2) == []


def test_unknown_tickets_are_reported_as_lost() -> None:
    session, earlier = Session("0_0"), ticket(0, "a")
    assert session.ask(question(unfinished=(earlier,)), LOADED, 0).lost == (earlier,)
    unknown = Ticket("gone", 0, 1, "a")
    assert session.ask(question(unfinished=(unknown,)), LOADED, 0).lost == (unknown,)


def test_queued_calls_of_a_failed_attempt_are_dropped() -> None:
    session = Session("0_0")
    session.ask(question(*(order(ticket(n, "a"), f"k{n}") for n in range(3))), LOADED, 0)
    session.ask(question(), LOADED, 0)
    assert begun(session) == []
    assert session.idle


def test_a_failed_attempt_does_not_block_its_keys() -> None:
    session = Session("0_0")
    session.ask(question(order(ticket(0, "a"))), LOADED, 0)
    (start,) = starts(session)
    session.end("call", start.number, [Raised(OSError("down"))], 1)
    again = ticket(5, "b")
    session.ask(question(), LOADED, 2)
    answer = session.ask(question(order(again)), LOADED, 2)
    assert answer.settled == ()
    assert begun(session) == [again]


@pytest.mark.parametrize("ahead_ms", [-DAY_MS, DAY_MS])
def test_the_delay_of_a_retry_does_not_depend_on_differences_between_clocks(ahead_ms: int) -> None:
    session, first = Session("0_0"), ticket(0, "a")
    now = 2 * DAY_MS
    session.ask(question(order(first), now_ms=now + ahead_ms), LOADED, now)
    (start,) = starts(session, now)
    session.end("call", start.number, [Raised(OSError("down"))], now + 5)
    answer = session.ask(question(unfinished=(first,), batch=2, now_ms=now + 6 + ahead_ms), LOADED, now + 6)
    (settled,) = answer.settled
    waits = Waits(now + ahead_ms + 15, 2, now + ahead_ms, "retry", "OSError: down")
    assert settled == (first, waits)
    again = (0, 2, "a", FUNCTION, ("v",), "k", 2, waits.begun_ms, "", waits.due_ms)
    session.ask(question(again, batch=3, now_ms=now + 7 + ahead_ms), LOADED, now + 7)
    assert begun(session, now + 14) == []
    assert begun(session, now + 15) == [Ticket("call", 0, 2, "a")]


def test_delay_until_uses_the_clock_of_the_application() -> None:
    session, first = Session("0_0"), ticket(0, "a")
    session.ask(question(order(first), now_ms=DAY_MS), LOADED, 0)
    (start,) = starts(session)
    session.end("call", start.number, [delay(until=DAY_MS + 500)], 1)
    answer = session.ask(question(unfinished=(first,), batch=2, now_ms=DAY_MS + 2), LOADED, 2)
    assert answer.settled == ((first, Waits(DAY_MS + 500, 1, None, "until")),)


def fail_first_call(session: Session, first: Ticket, later: Ticket) -> None:
    """Fail the call of a record, and issue the call of a later record with the same key; both are returned to the task."""
    session.ask(question(order(first)), LOADED, 0)
    (start,) = starts(session)
    session.end("call", start.number, [Raised(OSError("down"))], 1)
    answer = session.ask(question(order(later), unfinished=(first,), batch=2), LOADED, 2)
    waits = Waits(11, 2, 0, "retry", "OSError: down")
    assert answer.settled == ((first, waits), (later, Returned()))
    assert begun(session, 3) == []


def test_a_waiting_record_blocks_its_key_until_its_call_is_issued_again() -> None:
    session, first, later = Session("0_0"), ticket(0, "a"), ticket(1, "a")
    fail_first_call(session, first, later)
    again, then = first._replace(turn=2), later._replace(turn=2)
    session.ask(question(order(again), order(then), batch=3), LOADED, 11)
    assert begun(session, 11) == [again]


def test_a_waiting_record_no_longer_blocks_its_key_after_the_task_ran_elsewhere() -> None:
    session, first, later = Session("0_0"), ticket(0, "a"), ticket(1, "a")
    fail_first_call(session, first, later)
    session.ask(question(batch=3), LOADED, 11)  # then another async worker finishes the records
    late = ticket(7, "z")
    session.ask(question(order(late), batch=9), LOADED, 900)
    assert begun(session, 900) == [late]


def test_results_of_calls_with_earlier_options_are_ignored() -> None:
    session, first = Session("0_0"), ticket(0, "a")
    session.ask(question(order(first)), LOADED, 0)
    (old,) = starts(session)
    assert session.ask(question(unfinished=(first,), batch=2, options=OTHER_OPTIONS), LOADED, 1).lost == (
        first,
    )
    second = first._replace(turn=2)
    session.ask(question(order(second), batch=2, options=OTHER_OPTIONS), LOADED, 1)
    (new,) = starts(session)
    session.end("call", old.number, ["late"], 2)
    assert (
        session.ask(question(unfinished=(second,), batch=3, options=OTHER_OPTIONS), LOADED, 3).settled == ()
    )
    session.end("call", new.number, ["V"], 4)
    assert session.ask(question(unfinished=(second,), batch=3, options=OTHER_OPTIONS), LOADED, 5).settled == (
        (second, Done("V")),
    )


def test_a_question_of_an_earlier_micro_batch_is_refused() -> None:
    session = Session("0_0")
    session.ask(question(batch=2), LOADED, 0)
    with pytest.raises(AsyncWorkerError, match="task 0_0 is already in micro-batch 2"):
        session.ask(question(order(ticket(0, "a")), batch=1), LOADED, 0)
    assert begun(session) == []


def test_an_answer_reports_what_calls_wait_for_and_how_long_they_take() -> None:
    loaded = {**LOADED, OPTIONS: Calls(max_in_flight=2, rate_limit=(2, 1_000))}
    session = Session("0_0")
    orders = [order(ticket(n, "a"), call_key) for n, call_key in enumerate("aabcc")]
    assert session.ask(question(*orders), loaded, 0).work["call"].queued == Queued(key=2, limit=3)
    first, second = starts(session)
    assert session.ask(question(*orders), loaded, 1).work["call"].queued == Queued(key=2, limit=1)
    session.end("call", first.number, ["V"], 10)
    session.end("call", second.number, ["V"], 20)
    work = session.ask(question(*orders, batch=2), loaded, 20).work["call"]
    assert (work.running, work.call_ms) == (0, 15)
    assert work.queued == Queued(key=1, rate=2)


def test_an_answer_reports_the_calls_that_an_open_circuit_breaker_holds_back() -> None:
    breaker = CircuitBreaker(failures=1, reset_after=1_000)
    loaded = {**LOADED, OPTIONS: Calls(max_in_flight=1, circuit_breaker=breaker)}
    session = Session("0_0")
    orders = [order(ticket(n, "a"), call_key) for n, call_key in enumerate("abc")]
    session.ask(question(*orders), loaded, 0)
    (start,) = starts(session)
    session.end("call", start.number, [Raised(OSError("down"))], 5)
    assert starts(session, 6) == []
    assert session.ask(question(*orders[1:], batch=2), loaded, 6).work["call"].queued == Queued(breaker=2)


@pytest.mark.parametrize(
    ("options", "next_ms"),
    [
        (Calls(max_in_flight=1, rate_limit=(1, 60_000)), 60_000 - 6),
        (Calls(max_in_flight=1, circuit_breaker=CircuitBreaker(failures=1, reset_after=1_000)), 1_000 - 1),
        (Calls(max_in_flight=1), 0),
    ],
    ids=["rate", "breaker", "at once"],
)
def test_an_answer_reports_when_the_next_call_starts(options: Calls, next_ms: int) -> None:
    loaded = {**LOADED, OPTIONS: options}
    session = Session("0_0")
    orders = [order(ticket(n, "a"), call_key) for n, call_key in enumerate("abc")]
    session.ask(question(*orders), loaded, 0)
    (start,) = starts(session)
    assert session.ask(question(*orders), loaded, 1).work["call"].next_ms is None
    session.end("call", start.number, [Raised(OSError("down"))], 5)
    if next_ms:
        assert starts(session, 6) == []
    assert session.ask(question(*orders[1:], batch=2), loaded, 6).work["call"].next_ms == next_ms


def test_an_answer_reports_when_a_partial_batch_starts() -> None:
    loaded = {**LOADED, OPTIONS: Calls(batch=(100, 10_000))}
    session = Session("0_0")
    orders = [order(ticket(n, "a"), call_key) for n, call_key in enumerate("abc")]
    session.ask(question(*orders), loaded, 0)
    assert starts(session, 1) == []
    assert session.ask(question(*orders), loaded, 400).work["call"].next_ms == 9_600


def test_an_answer_reports_that_results_are_ready() -> None:
    session, first, second = Session("0_0"), ticket(0, "a"), ticket(1, "a")
    session.ask(question(order(first, "k"), order(second, "l")), LOADED, 0)
    first_call, second_call = starts(session)
    session.end("call", first_call.number, ["V"], 5)
    session.end("call", second_call.number, [Raised(OSError("down"))], 5)
    answered = session.ask(WorkerQuestion("0_0", 1, 6, None, {}, {"call": OPTIONS}), LOADED, 6)
    assert answered.work["call"].next_ms == 0
    answered = session.ask(question(unfinished=(first, second), batch=2), LOADED, 7)
    assert answered.work["call"].next_ms is None
