"""Unfinished offsets, reorder buffer, in-flight window and dispatcher, compared with simple models."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.asynchronous.call import (
    Call,
    Done,
    Failed,
    Raised,
    Returned,
    Settled,
    Start,
    Ticket,
    Waits,
)
from millstream.core.asynchronous.committable_offset import UnfinishedOffsets
from millstream.core.asynchronous.dispatcher import Dispatcher
from millstream.core.asynchronous.in_flight_window import InFlightWindow
from millstream.core.asynchronous.limits import Breaker, RateLimit
from millstream.core.asynchronous.reorder_buffer import ReorderBuffer
from millstream.core.model.answers import Later
from millstream.core.model.calls import CallOrder, Calls, CircuitBreaker, Retry

from .engines import Visits

SEEDS = st.integers(0, 2**32)


class TestCommittableOffset:
    def test_is_never_past_an_unfinished_offset_and_never_goes_back(self) -> None:
        visits = Visits()

        @settings(max_examples=200)
        @given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=30), SEEDS)
        def runs(records: list[tuple[int, int]], seed: int) -> None:
            """Records: the gap to the next offset, and into how many the record was split."""
            dice, offsets = random.Random(seed), UnfinishedOffsets()
            offset, last = 0, 0
            unfinished: Counter[int] = Counter()
            arrivals = list(records)
            while arrivals or unfinished:
                if arrivals and (not unfinished or dice.random() < 0.5):
                    gap, parts = arrivals.pop(0)
                    for _ in range(parts):
                        offsets.begin(offset)
                    unfinished[offset] = parts
                    offset += gap
                else:
                    ending = dice.choice(list(unfinished))
                    offsets.end(ending)
                    unfinished -= Counter([ending])
                committable = offsets.committable(offset)
                assert committable == min(unfinished, default=offset)
                assert committable >= last
                last = committable
                progress = offsets.progress(offset)
                in_runs = [
                    number for first, length in progress.unfinished for number in range(first, first + length)
                ]
                assert (progress.position, in_runs) == (offset, sorted(unfinished))
                visits["beyond a gap"] += committable + len(in_runs) < offset
                visits["a run"] += any(length > 1 for _, length in progress.unfinished)

        runs()
        visits.demand(**{"beyond a gap": 50, "a run": 20})


@pytest.mark.parametrize("groups", [None, 2])
def test_records_of_a_group_are_released_once_each_in_order_of_arrival(groups: int | None) -> None:
    @settings(max_examples=100)
    @given(st.integers(0, 20), SEEDS)
    def runs(count: int, seed: int) -> None:
        dice, buffer = random.Random(seed), ReorderBuffer()
        group_of = {number: None if groups is None else dice.randrange(groups) for number in range(count)}
        for number, group in group_of.items():
            buffer.add(number, group)
        retired: list[int] = []
        finished = list(range(count))
        dice.shuffle(finished)
        for position, number in enumerate(finished):
            retired += buffer.finish(number)
            assert buffer.finished == position + 1 - len(retired)
        assert sorted(retired) == list(range(count))
        if groups is None:
            assert retired == finished
        else:
            for group in range(groups):
                order = [number for number in retired if group_of[number] == group]
                assert order == sorted(order)

    runs()


class TestInFlightWindow:
    @pytest.mark.parametrize("closing", [False, True])
    def test_limits_hold_and_a_blocking_line_keeps_its_order(self, closing: bool) -> None:
        visits = Visits()

        @settings(max_examples=200)
        @given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 40), SEEDS)
        def runs(most: int, per_line: int, steps: int, seed: int) -> None:
            dice = random.Random(seed)
            window = InFlightWindow(most, per_line, blocking=closing)
            line_of: dict[int, Hashable] = {}
            out: list[int] = []
            waiting: dict[int, int] = {}
            ended: set[int] = set()
            now = 0
            for _ in range(steps):
                action = dice.randrange(5)
                if action == 0 or not line_of:
                    number = len(line_of)
                    line_of[number] = dice.choice(["hot", "hot", "cold", None])
                    window.add(number, line_of[number])
                elif action == 1 and out:
                    number = out.pop(dice.randrange(len(out)))
                    window.end(number)
                    ended.add(number)
                elif action == 2 and out:
                    number = out.pop(dice.randrange(len(out)))
                    waiting[number] = now + dice.randrange(5)
                    window.wait(number, waiting[number])
                elif action == 3 and out:
                    number = out.pop(dice.randrange(len(out)))
                    window.give_back(number)
                    visits["given back"] += 1
                else:
                    now += 1
                    assert window.next_due() == min(waiting.values(), default=None)
                    while (taken := window.take(now)) is not None:
                        waiting = {n: due for n, due in waiting.items() if due > now}
                        self.check(taken, line_of, out, waiting, ended, closing=closing, visits=visits)
                        out.append(taken)
                        assert len(out) <= 2 * most  # once for new records, once for records that have waited
                        in_line = Counter(line_of[n] for n in out if line_of[n] is not None)
                        assert max(in_line.values(), default=0) <= per_line
                    waiting = {n: due for n, due in waiting.items() if due > now}
                assert window.in_flight == len(out)
                if action != 4:
                    continue
                assert window.waiting == len(waiting)
                assert window.parked == len(line_of) - len(ended) - len(out) - len(waiting)
            self.drain(window, now, out, set(line_of) - ended)

        runs()
        visits.demand(**{"given back": 50, "taken": 100})

    @staticmethod
    def check(
        taken: int,
        line_of: dict[int, Hashable],
        out: list[int],
        waiting: dict[int, int],
        ended: set[int],
        *,
        closing: bool,
        visits: Visits,
    ) -> None:
        visits["taken"] += 1
        assert taken not in out
        assert taken not in ended
        assert taken not in waiting
        if closing and line_of[taken] is not None:
            before = [n for n in line_of if n < taken and line_of[n] == line_of[taken] and n not in ended]
            assert all(n in out for n in before), "something in front was left behind"

    @staticmethod
    def drain(window: InFlightWindow, now: int, out: list[int], left: set[int]) -> None:
        """Check that all remaining records can be taken: no turn gets lost."""
        now += 100
        while left:
            while (taken := window.take(now)) is not None:
                out.append(taken)
            assert out
            number = out.pop()
            window.end(number)
            left.remove(number)
        assert (window.in_flight, window.waiting, window.parked, window.next_due()) == (0, 0, 0, None)

    def test_a_hot_line_leaves_room_for_the_others(self) -> None:
        window = InFlightWindow(10, 4, blocking=True)
        for number in range(100):
            window.add(number, "hot")
        window.add(100, "cold")
        taken = []
        while (number := window.take(0)) is not None:
            taken.append(number)
        assert taken == [0, 100, 1, 2, 3]
        assert window.parked == 96
        assert window.longest == 100

    def test_records_that_have_waited_go_first_and_have_their_own_limit(self) -> None:
        window = InFlightWindow(2, None, blocking=False)
        for number in range(10):
            window.add(number, None)
        for due in (5, 4, 3):
            taken = window.take(0)
            assert taken is not None
            window.wait(taken, due)
        assert [window.take(0) for _ in range(3)] == [3, 4, None]
        assert [window.take(5) for _ in range(3)] == [2, 1, None]
        window.end(1)
        assert [window.take(5) for _ in range(2)] == [0, None]
        window.end(3)
        assert [window.take(5) for _ in range(2)] == [5, None]

    def test_waiting_records_do_not_count_as_in_flight(self) -> None:
        window = InFlightWindow(2, None, blocking=False)
        for number in range(1000):
            window.add(number, None)
        for _ in range(999):
            taken = window.take(0)
            assert taken is not None
            window.wait(taken, 60_000)
        assert window.take(0) == 999
        assert window.waiting == 999


class World:
    """A dispatcher with a simulated external system: calls take time and fail, and a journal lists every start and end."""

    def __init__(self, calls: Calls, dice: random.Random) -> None:
        self.calls = calls
        self.dice = dice
        self.dispatcher = Dispatcher(calls, seed="world")
        self.ahead = dice.choice([0, 0, 5])
        self.window = InFlightWindow(
            50, 4 if calls.order == "key" else calls.max_in_flight_per_key, blocking=calls.order == "key"
        )
        self.line_of: dict[int, Hashable] = {}
        self.attempts: dict[int, int] = defaultdict(lambda: 1)
        self.begun: dict[int, int | None] = {}
        self.due: dict[int, int] = {}
        self.turn: Counter[int] = Counter()
        self.running: list[tuple[int, Start]] = []
        self.journal: list[tuple[str, int, int]] = []
        self.ended: dict[int, Settled] = {}
        self.retries: Counter[int] = Counter()
        self.returned = 0
        self.now = 0

    def add(self, line: Hashable) -> None:
        number = len(self.line_of)
        self.line_of[number] = line
        self.window.add(number, line if self.calls.order == "key" else None)

    def tick(self, answer: Callable[[int, int], Any]) -> None:
        """Advance by a millisecond: calls end and begin, and sometimes a micro-batch exchanges calls and results."""
        self.pass_time(answer)
        if self.dice.random() < 0.3:
            self.micro_batch(answer)
        for start in self.dispatcher.start(self.now):
            self.journal += [("start", call.ticket.number, self.now) for call in start.calls]
            assert all(self.now >= self.due.get(call.ticket.number, 0) for call in start.calls), "never early"
            self.running.append((self.now + self.dice.randrange(1, 6), start))
            assert len(start.calls) <= self.calls.batch_records
        assert len(self.running) <= self.calls.max_in_flight

    def pass_time(self, answer: Callable[[int, int], Any]) -> None:
        self.now += 1
        for expired in self.dispatcher.expire(self.now):
            self.running = [(end_ms, start) for end_ms, start in self.running if start.number != expired]
        for end_ms, start in [each for each in self.running if each[0] <= self.now]:
            self.running.remove((end_ms, start))
            self.journal += [("end", call.ticket.number, self.now) for call in start.calls]
            answers = [answer(call.ticket.number, call.attempt) for call in start.calls]
            self.dispatcher.end(start.number, answers, self.now)

    def micro_batch(self, answer: Callable[[int, int], Any]) -> None:
        """Take in the calls that were settled when the batch began, and hand over new ones; calls end meanwhile."""
        settled = self.dispatcher.take_settled()
        for _ in range(self.dice.randrange(3)):
            self.pass_time(answer)
        for ticket, each in settled:
            self.take_in(ticket, each)
        self.hand_over()

    def hand_over(self) -> None:
        while (number := self.window.take(self.now + self.ahead)) is not None:
            self.turn[number] += 1
            ticket = Ticket("op", number, self.turn[number], "")
            self.dispatcher.offer(self.call(ticket), self.now)

    def call(self, ticket: Ticket) -> Call:
        number = ticket.number
        begun, due = self.begun.get(number), self.due.get(number, 0)
        return Call(ticket, print, (), self.line_of[number], self.attempts[number], begun, due_ms=due)

    def take_in(self, ticket: Ticket, settled: Settled) -> None:
        number = ticket.number
        assert number not in self.ended, "each record completes once"
        if isinstance(settled, Returned):
            self.returned += 1
            self.window.give_back(number)
        elif isinstance(settled, Waits):
            if settled.why == "retry":
                assert settled.attempt == self.attempts[number] + 1
                self.retries[number] += 1
            self.attempts[number], self.begun[number] = settled.attempt, settled.begun_ms
            self.due[number] = settled.due_ms
            self.window.wait(number, settled.due_ms)
        else:
            self.ended[number] = settled
            self.window.end(number)


def intervals(world: World) -> dict[int, list[tuple[int, int]]]:
    """Return the intervals in which the calls of each record ran."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    begins: dict[int, int] = {}
    for event, number, time_ms in world.journal:
        if event == "start":
            begins[number] = time_ms
        elif number in begins:
            found[number].append((begins.pop(number), time_ms))
    return found


@pytest.mark.parametrize("order", ["key", "partition", "completion"])
@pytest.mark.parametrize("batch", [None, (3, 2)])
def test_every_record_is_called_until_it_completes_and_keys_keep_their_order(
    order: CallOrder, batch: tuple[int, int] | None
) -> None:
    visits = Visits()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 5), st.integers(1, 40), SEEDS)
    def runs(in_flight: int, count: int, seed: int) -> None:
        dice = random.Random(seed)
        retry = Retry(initial=3, factor=2, cap=20, max_attempts=4)
        world = World(Calls(order=order, max_in_flight=in_flight, retry=retry, batch=batch), dice)
        failures = {number: dice.choice([0, 0, 0, 1, 2, 9]) for number in range(count)}
        delayed = {number for number in range(count) if dice.random() < 0.1}

        def answer(number: int, attempt: int) -> Any:
            if number in delayed:
                delayed.remove(number)
                return Later(in_ms=dice.randrange(20))
            return Raised(OSError("down")) if attempt <= failures[number] else number

        for _ in range(count):
            world.add(dice.choice(["hot", "hot", "warm", "cold", None]))
            if dice.random() < 0.5:
                world.tick(answer)
        for _ in range(3000):
            if len(world.ended) == count:
                break
            world.tick(answer)
        for number in range(count):
            expected: Settled = Done(number)
            if failures[number] == 9:
                error = world.ended[number].error  # type: ignore[union-attr]
                expected = Failed(4, "OSError: down", error, kind="builtins.OSError")
                visits["exhausted"] += 1
            assert world.ended[number] == expected
            assert world.retries[number] == min(failures[number], 3)
        assert world.dispatcher.wake_at_ms(world.now) is None
        assert world.dispatcher.idle
        assert sum(world.dispatcher.work(world.now).queued) == 0
        visits["returned"] += world.returned
        if order == "key" and batch is None:
            check_keys(world, visits)

    runs()
    visits.demand(exhausted=20)
    if order == "key":
        visits.demand(returned=20)


def check_keys(world: World, visits: Visits) -> None:
    """Check that calls of a key never overlap, and that each record is called only after the one before it has completed."""
    ran = intervals(world)
    for line in ("hot", "warm", "cold"):
        numbers = [number for number, key in world.line_of.items() if key == line]
        spans = [span for number in numbers for span in ran[number]]
        assert spans == sorted(spans)
        for (_, end), (begin, _) in pairwise(spans):
            assert begin >= end
            visits["one after the other"] += 1


@settings(max_examples=100)
@given(st.integers(1, 20), st.integers(1, 1000), SEEDS)
def test_a_rate_is_never_exceeded_and_never_wasted(calls: int, per_ms: int, seed: int) -> None:
    dice, rate, now = random.Random(seed), RateLimit(calls, per_ms), 0
    taken: list[int] = []
    for _ in range(200):
        free = rate.next_ms(now)
        assert free >= now
        if free == now:
            rate.take(now)
            taken.append(now)
        else:
            if free > now + 1:
                assert rate.next_ms(free - 1) == free
            now = free
        now += dice.choice([0, 0, 1, per_ms])
    for first, begin in enumerate(taken):
        in_window = sum(1 for time_ms in taken[first:] if time_ms - begin < per_ms)
        assert in_window <= calls


@settings(max_examples=200)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["try", "fail", "succeed", "wait"]), st.integers(0, 3)), max_size=60),
)
def test_a_breaker_opens_after_failures_in_a_row_and_allows_one_trial_call(
    most: int, moves: list[tuple[str, int]]
) -> None:
    breaker, now = Breaker(CircuitBreaker(failures=most, reset_after=10)), 0
    in_row, opened, trial = 0, None, None
    running: list[int] = []
    for number, (move, which) in enumerate(moves):
        allowed = opened is None or (now >= opened + 10 and trial is None)
        assert breaker.allows(now) == allowed
        assert breaker.closed == (opened is None)
        assert breaker.unused == (opened is None and not in_row and not running)
        if move == "wait":
            now += 7
        elif move == "try" and allowed:
            breaker.began(number)
            running.append(number)
            trial = None if opened is None else number
        elif move == "fail" and running:
            ended = running.pop(which % len(running))
            breaker.failed(ended, now)
            if opened is None or ended == trial:
                in_row += 1
                if opened is not None or in_row >= most:
                    opened, trial = now, None
        elif move == "succeed" and running:
            running.pop(which % len(running))
            breaker.succeeded()
            in_row, opened, trial = 0, None, None
