"""Faults of an application and its surroundings: processes, brokers, network, clock and disk."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, final

from millstream.drivers.spark.clock import host_clock
from millstream.testing.crash.crash_report import Kill
from millstream.testing.crash.kill_plan import Target
from millstream.testing.crash.network import Network
from millstream.testing.crash.processes import CrashedProgram, CrashTestError, kill_one, named, signalled
from millstream.testing.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psutil


T = TypeVar("T")

JUMPS_S = (-86_400, -3_600, 3_600, 86_400)
"""The possible jumps of the clock, in seconds."""


@dataclass(frozen=True)
class JumpingClock:
    """The host's clock plus an offset in ms from a file; it can be pickled for other processes."""

    path: Path

    def __call__(self) -> int:
        return host_clock() + (int(self.path.read_text()) if self.path.exists() else 0)

    def move(self, ms: int) -> None:
        """Set the offset of the clock relative to the host's clock, in ms."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(str(ms))
        partial.replace(self.path)  # atomic: a reader never sees half of the number


_NOBODY = "none is running any more"
_STANDS_S, _RUNS_S = 0.18, 0.02
"""How long a slowed victim is alternately stopped and running, in seconds."""


@dataclass(frozen=True)
class FaultTargets:
    """The surroundings of an application that faults affect.

    Attributes:
        network: The network between application and brokers, if it can be cut.
    """

    kafka: EmbeddedKafka
    state: Path
    clock: JumpingClock | None
    network: Network | None
    space: Space | None
    brokers: int


class Run(Protocol):
    """The interface of a run that faults use.

    Attributes:
        ends: The reasons why the application ended without being killed, in order.
    """

    ends: list[str]

    def start(self) -> None:
        """Start the application after killing the remains of an earlier start."""

    def until(self, holds: Callable[[], T], what: str) -> T:
        """Continue the run until ``holds`` returns a true value, and return it."""

    def at_end(self) -> bool:
        """Return whether the whole workload has been processed."""

    def pause(self, seconds: float) -> None:
        """Wait without supervising the application."""


@final
class Faults:
    """Carries out faults. Use it from one thread."""

    def __init__(
        self, surroundings: FaultTargets, application: str, program: CrashedProgram, run: Run
    ) -> None:
        self._around = surroundings
        self._id = application
        self._program = program
        self._run = run

    def strike(self, kill: Kill, choice: float) -> str:
        """Carry out a fault, and restart what the application cannot restart itself.

        Args:
            choice: Selects the victim if there are several, from 0 to 1.

        Returns:
            The name of the victim if it is one of several, otherwise an empty string.
        """
        if kill.stopped_s:
            return self._stop(kill, choice)
        return self._kill(kill.target, choice)

    def _kill(self, target: Target, choice: float) -> str:
        around = self._around
        if target in ("program", "host", "disk"):
            self._program.kill()
            if target == "host":
                shutil.rmtree(around.state / self._id / "tasks", ignore_errors=True)
            if target == "disk":
                shutil.rmtree(around.state, ignore_errors=True)
            self._run.start()
        elif target in ("broker", "transaction"):
            broker = self._broker(choice)
            around.kafka.kill(broker)
            around.kafka.restart(broker)
            return _broker_named(broker)
        elif target == "network":
            with self._without_network():
                pass
        elif target == "clock":
            return self._jump(choice)
        elif target == "space":
            self._fill()
        else:
            victim = self._choose_victim(target, choice)
            return _NOBODY if victim is None else kill_one(victim)
        return ""

    def _stop(self, kill: Kill, choice: float) -> str:
        """Stop a target for a while, without supervision in the meantime, because a real supervisor would not notice either."""
        if kill.target == "network":
            with self._without_network():
                self._run.pause(kill.stopped_s)
            return ""
        if kill.target == "clock":
            jumped = self._jump(choice)
            self._run.pause(kill.stopped_s)
            self._clock.move(0)
            return jumped
        send, victim = self._victim(kill.target, choice)
        if kill.slowed:
            self._slow(send, kill.stopped_s)
        else:
            send(signal.SIGSTOP)
            self._run.pause(kill.stopped_s)
            send(signal.SIGCONT)
        return victim

    def _victim(self, target: Target, choice: float) -> tuple[Callable[[signal.Signals], None], str]:
        """Return a function that sends signals to the victim, and the victim's name."""
        if target in ("broker", "transaction"):
            broker, kafka = self._broker(choice), self._around.kafka
            return (
                lambda number: kafka.pause(broker) if number == signal.SIGSTOP else kafka.resume(broker),
                _broker_named(broker),
            )
        if target == "program":
            return partial(signalled, self._program.family()), ""
        process = self._choose_victim(target, choice)
        if process is None:
            return partial(signalled, []), _NOBODY
        return partial(signalled, [process]), named(process)

    def _slow(self, send: Callable[[signal.Signals], None], seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            send(signal.SIGSTOP)
            self._run.pause(_STANDS_S)
            send(signal.SIGCONT)
            self._run.pause(_RUNS_S)

    @contextmanager
    def _without_network(self) -> Iterator[None]:
        assert self._around.network is not None
        self._around.network.cut()
        try:
            yield
        finally:
            self._around.network.heal()

    @property
    def _clock(self) -> JumpingClock:
        assert self._around.clock is not None
        return self._around.clock

    def _jump(self, choice: float) -> str:
        seconds = JUMPS_S[int(choice * len(JUMPS_S))]
        self._clock.move(seconds * 1000)
        return f"{seconds:+,} s"

    def _fill(self) -> None:
        """Keep the disk full until the application has ended twice: once while running, and once after a restart.

        An application that has processed the whole workload writes nothing more, so it does not end.
        """
        assert self._around.space is not None
        before = len(self._run.ends)
        self._around.space.fill()
        try:
            self._run.until(
                lambda: len(self._run.ends) >= before + 2 or self._run.at_end(), "its end, with a full disk"
            )
        finally:
            self._around.space.release()

    def _choose_victim(self, target: Target, choice: float) -> psutil.Process | None:
        """Return a victim, or None if the whole workload has been processed without one, such as an async worker without calls."""

        def candidates() -> Sequence[psutil.Process | None]:
            return self._program.victims(target) or ([None] if self._run.at_end() else [])

        found = self._run.until(candidates, f"a running {target}")
        return found[int(choice * len(found))]

    def _broker(self, choice: float) -> int | None:
        """Return the number of a broker, or None if there is only one."""
        return int(choice * self._around.brokers) if self._around.brokers > 1 else None


def _broker_named(broker: int | None) -> str:
    return "" if broker is None else f"broker {broker}"


_LARGEST = 4 << 30
_BLOCKS = (1 << 20, 1 << 12, 1)


@final
class Space:
    """The file system of a directory. Use it from one thread.

    Raises:
        CrashTestError: If more than 4 GiB are free: the file system is then not small, and filling it would affect others.
    """

    def __init__(self, directory: Path) -> None:
        stats = os.statvfs(directory)
        if (free := stats.f_bavail * stats.f_frsize) > _LARGEST:
            raise CrashTestError(
                f"{directory} has {free >> 20:,} MiB free; a disk that the harness fills must be a separate file system, such as "
                f"one from 'mount -t tmpfs -o size=256m tmpfs {directory}'"
            )
        self._filler = directory / "filler"

    def fill(self) -> None:
        """Fill the free space, down to single bytes."""
        with self._filler.open("ab", buffering=0) as file:
            for size in _BLOCKS:
                while _try_write(file.fileno(), bytes(size)):
                    pass

    def release(self) -> None:
        self._filler.unlink(missing_ok=True)


def _try_write(file: int, data: bytes) -> bool:
    try:
        return os.write(file, data) > 0
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return False
        raise
