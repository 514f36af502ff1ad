"""A seeded scheduler: the seed decides which of all possible events happens next.

Everything that runs concurrently in reality is an *actor* here. Each actor has a thread, but only one of them runs at a time: it
passes the turn where it calls :meth:`Scheduler.step`, and the seed chooses the next actor, whether one is suspended for a while, and
whether a process dies. So a seed repeats a run exactly, and product code runs unchanged.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

_LONGEST_RUN = 15_000


class KilledError(BaseException):
    """The process of the actor has died. Not an Exception, so that no handler catches it."""


class StuckError(AssertionError):
    """A run that does not end."""


@dataclass(eq=False)
class Process:
    """A process, whose actors die together.

    Attributes:
        name: For the trace.
        alive: Whether it has not been killed.
    """

    name: str
    alive: bool = True


@dataclass(eq=False)
class Actor:
    """One thread of control.

    Attributes:
        name: For the trace.
        process: The process that it belongs to.
        finished: Whether it has ended or was killed.
        error: The exception that it raised, if it failed.
        until: Returns whether it can continue.
        stopped_until: The step until which it is suspended.
        doing: The action that it is about to take.
    """

    name: str
    process: Process
    finished: bool = False
    error: Exception | None = None
    until: Callable[[], bool] | None = None
    stopped_until: int = 0
    doing: str = ""
    turn: threading.Lock = field(default_factory=threading.Lock)

    def ready(self) -> bool:
        """Return whether it can continue."""
        return not self.process.alive or self.until is None or self.until()


class Scheduler:
    """Runs actors one at a time, in an order that a seed decides."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_700_000_000_000
        self.steps = 0
        self.trace: list[str] = []
        self.disturb: Callable[[], None] = lambda: None
        """Called before each step to cause faults."""
        self.failure: BaseException | None = None
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._done = threading.Lock()
        self._ending = False

    def spawn(self, name: str, process: Process, work: Callable[[], None]) -> Actor:
        """Begin an actor; it takes its first turn when it is chosen."""
        actor = Actor(name, process)
        actor.turn.acquire()
        self._actors.append(actor)
        threading.Thread(target=self._live, args=(actor, work), name=name, daemon=True).start()
        return actor

    def run(self) -> None:
        """Run until all actors have finished.

        Raises:
            StuckError: If they do not finish.
            BaseException: The failure, if an actor or a fault found one.
        """
        self._done.acquire()
        self._hand_on(None)
        self._ending = True
        for actor in self._actors:  # after a failure, some actors still wait
            actor.process.alive = False
            if not actor.finished:
                self._current = actor
                actor.turn.release()
                self._done.acquire()
        if self.failure is not None:
            raise self.failure

    def step(self, action: str, until: Callable[[], bool] | None = None) -> None:
        """Let other actors run; return when this actor is scheduled again.

        Args:
            action: The action that the actor is about to take, for the trace.
            until: Returns whether it can continue; by default, it always can.

        Raises:
            KilledError: If its process has been killed.
        """
        me = self._current
        assert me is not None
        if not me.process.alive:
            raise KilledError(me.name)
        me.until, me.doing = until, action
        self._hand_on(me)
        if not me.process.alive:
            raise KilledError(me.name)
        self.trace.append(f"{me.name}: {action}")

    def sometimes(self, action: str, chance: float) -> None:
        """Take a step with a probability."""
        if self.random.random() < chance:
            self.step(action)

    def note(self, event: str) -> None:
        """Write an event of the environment into the trace."""
        self.trace.append(f"-- {event}")

    @property
    def actors(self) -> list[Actor]:
        """The actors that have not finished."""
        return [actor for actor in self._actors if not actor.finished]

    def kill(self, process: Process) -> None:
        """Kill a process; its actors end at their next step."""
        process.alive = False
        self.note(f"{process.name} is killed")

    def _live(self, actor: Actor, work: Callable[[], None]) -> None:
        actor.turn.acquire()
        try:
            if actor.process.alive:
                work()
        except KilledError:
            pass
        except AssertionError as error:
            self.failure = self.failure or error
        except Exception as error:
            actor.error = error
            self.trace.append(f"{actor.name}: fails with {type(error).__name__}: {str(error)[:160]}")
        except BaseException as error:
            self.failure = self.failure or error
        actor.finished = True
        self._hand_on(actor)

    def _hand_on(self, me: Actor | None) -> None:
        if self._ending:
            self._done.release()
            return
        try:
            chosen = self._chosen()
        except BaseException as error:
            self.failure, chosen = self.failure or error, None
        if chosen is me and me is not None:
            return
        self._current = chosen
        (self._done if chosen is None else chosen.turn).release()
        if me is None:
            self._done.acquire()
        elif not me.finished:
            me.turn.acquire()

    def _chosen(self) -> Actor | None:
        if self.failure is not None:
            return None
        self.steps += 1
        self.now_ms += self.random.randrange(20)
        if self.steps > _LONGEST_RUN:
            raise StuckError(f"the run has not come to its end after {_LONGEST_RUN} steps")
        self.disturb()
        self._actors = [actor for actor in self._actors if not actor.finished]
        if not self._actors:
            return None
        runnable = [actor for actor in self._actors if actor.ready()]
        if not runnable:
            raise StuckError(f"no actor can continue: {', '.join(actor.name for actor in self._actors)}")
        awake = [actor for actor in runnable if actor.stopped_until <= self.steps]
        return self.random.choice(awake or runnable)
