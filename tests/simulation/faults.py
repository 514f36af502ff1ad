"""Faults: the seed decides which ones happen and when, a few times per run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from simulation.copies import LAST_PART

if TYPE_CHECKING:
    from simulation.world import World

_EVERY = 60
_LONGEST_STOP = 400
_LONGEST_OUTAGE_MS = 3_000


class Faults:
    """Faults of one run.

    Args:
        world: The run that they disturb.
        count: The maximum number of faults.

    Attributes:
        over: Whether no more faults may happen.
    """

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self._left = count
        self._kills_next_writer = False
        """Whether to kill the next worker that has written only a part of its copy."""
        self.over = False
        self._kinds: list[Callable[[], None]] = [
            self._kill_worker,
            self._kill_worker,
            self._arm_writer_kill,
            self._kill_driver,
            self._kill_driver,
            self._crash_host,
            self._stop,
            self._stop,
            self._time_out,
            self._break_broker,
            self._damage_parked,
        ]

    def disturb(self) -> None:
        """Cause a fault, or none."""
        choose = self._world.scheduler.random
        if self._kills_next_writer:
            self._kill_writing()
        if not self.over and self._left and choose.random() < 1 / _EVERY:
            self._left -= 1
            choose.choice(self._kinds)()

    def _kill_worker(self) -> None:
        running = self._world.running_attempts()
        if running:
            self._world.scheduler.kill(self._world.scheduler.random.choice(running).process)

    def _arm_writer_kill(self) -> None:
        self._kills_next_writer = True

    def _kill_writing(self) -> None:
        scheduler = self._world.scheduler
        for actor in self._world.running_attempts():
            if actor.doing == LAST_PART and actor.process.alive:
                self._kills_next_writer = False
                scheduler.kill(actor.process)
                return

    def _kill_driver(self) -> None:
        if self._world.driver.alive:
            self._world.scheduler.kill(self._world.driver)

    def _crash_host(self) -> None:
        """Kill all processes of a host; its disk may be lost as well."""
        choose = self._world.scheduler.random
        host = choose.choice(self._world.hosts)
        self._world.scheduler.note(f"{host.name} crashes")
        for actor in self._world.running_attempts():
            if self._world.placed[actor][1] is host and actor.process.alive:
                self._world.scheduler.kill(actor.process)
        host.restart_executor()
        if choose.random() < 0.5:
            self._world.scheduler.note(f"the disk of {host.name} is lost")
            host.lose_disk()

    def _stop(self) -> None:
        scheduler = self._world.scheduler
        actor = scheduler.random.choice(scheduler.actors)
        actor.stopped_until = scheduler.steps + scheduler.random.randint(20, _LONGEST_STOP)
        scheduler.note(f"{actor.name} stands still")

    def _time_out(self) -> None:
        broker, scheduler = self._world.broker, self._world.scheduler
        open_ids = [name for name, transaction in broker.ids.items() if transaction.open and name != "feeder"]
        if open_ids:
            name = scheduler.random.choice(open_ids)
            scheduler.note(f"the transaction of {name} has taken too long")
            broker.time_out(name)

    def _break_broker(self) -> None:
        scheduler = self._world.scheduler
        self._world.broker.down_until_ms = scheduler.now_ms + scheduler.random.randint(50, _LONGEST_OUTAGE_MS)
        scheduler.note("the broker does not answer for a while")

    def _damage_parked(self) -> None:
        """Cut a file of parked changes off, as a full disk or a crash of the machine would."""
        choose = self._world.scheduler.random
        files = sorted(
            path
            for host in self._world.hosts
            for path in Path(host.directory).glob("**/parked-*")
            if path.is_file()
        )
        if files:
            path = choose.choice(files)
            data = path.read_bytes()
            path.write_bytes(data[: choose.randrange(max(len(data), 1))])
            self._world.scheduler.note("a file of parked changes is damaged")
