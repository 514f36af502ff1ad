"""The main thread of ``millstream demo``: shows the board, handles signals, and reports the result.

Exit codes: 0 if the counts are correct, 1 if they are wrong or the demo failed, 130 after Ctrl-C (or SIGTERM, SIGHUP). The demo removes
the settings of the user's own applications (``MILLSTREAM_...``) from its environment: it must not use their credentials or write to their
checkpoint.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from rich.console import Console

from millstream.core.model.errors import MillstreamError
from millstream.edge.application.stop_signals import handling
from millstream.edge.cli.demo.board import Board
from millstream.edge.cli.demo.conductor import APPLICATION_ID, Conductor, DemoOptions, Verdict
from millstream.edge.cli.demo.display import display_for
from millstream.edge.cli.demo.wordcount import COUNTS, LINES
from millstream.edge.settings.settings import Settings
from millstream.testing._jars import kafka_jars
from millstream.testing._java import find_java

_JOIN_S = 0.1
_SHOWN_ERRORS = 5


def demonstrate(options: DemoOptions) -> int:
    """Run the demo; return the exit code."""
    set_settings_aside()
    handle, name = tempfile.mkstemp(prefix="millstream-demo-", suffix=".log")
    os.close(handle)
    log = Path(name)
    with quiet(log) as terminal:
        logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
        console = Console(file=terminal)
        code = _conducted(options, console)
        if code == 1:
            say(console, f"What Spark and the clients wrote is in {log}")
        else:
            log.unlink(missing_ok=True)
    return code


def set_settings_aside() -> None:
    """Remove the settings of applications from the environment, but keep those of the embedded broker."""
    names = {f"MILLSTREAM_{name.upper()}" for name in (*Settings.model_fields, "config")}
    for name in [name for name in os.environ if name.upper().split("__")[0] in names]:
        del os.environ[name]


def _conducted(options: DemoOptions, console: Console) -> int:
    board = Board(options.lines)
    conductor = Conductor(options, board)
    with _signals() as received:
        watch = _Watch(conductor, received)
        conductor.start()
        with display_for(console, board.scene) as display:
            watch.until(lambda: options.keep and conductor.verdict is not None, display.refresh)
        if options.keep and conductor.verdict is not None:
            report(console, options, conductor.verdict)
            _wait_for_user(console, conductor, received)
            watch.until(lambda: False)
        conductor.join()
    return _result(console, options, conductor)


class _Watch:
    """Waits for the conductor, and passes signals to it. Used only by the main thread."""

    def __init__(self, conductor: Conductor, received: list[int]) -> None:
        self._conductor = conductor
        self._received = received
        self._handed = 0

    def until(self, ended: Callable[[], bool], refresh: Callable[[], None] = lambda: None) -> None:
        """Wait until a condition holds, or the conductor has ended."""
        while self._conductor.is_alive() and not ended():
            self._conductor.join(_JOIN_S)
            refresh()
            if len(self._received) > self._handed:
                self._handed = len(self._received)
                self._conductor.interrupt()


def _result(console: Console, options: DemoOptions, conductor: Conductor) -> int:
    """Print the result, unless it was already printed; return the exit code."""
    if conductor.interrupted:
        say(console, "Interrupted. All started processes have been stopped.")
        return 130
    verdict, code = conductor.verdict, 1
    if verdict is not None:
        code = int(bool(verdict.wrong)) if options.keep else report(console, options, verdict)
    if conductor.error is not None:
        known = isinstance(conductor.error, MillstreamError)
        why = str(conductor.error) if known else "".join(traceback.format_exception(conductor.error))
        say(console, f"✗ The demo failed: {why}", style="red")
        return 1
    return code


def report(console: Console, options: DemoOptions, verdict: Verdict) -> int:
    """Print whether the counts are correct; return the exit code."""
    what = f"{verdict.words:,} words ({verdict.different:,} different) in {options.lines:,} lines"
    if not verdict.wrong:
        say(
            console,
            f"✓ Correct: {what} were counted in {verdict.seconds:.1f} s, and every count in the topic {COUNTS!r} equals "
            "that of Python's Counter.",
            style="green",
        )
        return 0
    say(
        console,
        f"✗ Wrong: of {what}, {len(verdict.wrong):,} have another count in the topic {COUNTS!r}:",
        style="red",
    )
    for word, right, found in verdict.wrong[:_SHOWN_ERRORS]:
        say(console, f"    {word!r} should be {right:,}, but is {found:,}")
    return 1


def commands(servers: str, java: str, jars: Path) -> list[tuple[str, str]]:
    """Return commands, each with a description, that inspect the demo's topics and group."""
    tool = f"{java} -Dlog4j2.level=OFF -cp '{jars}/*' org.apache.kafka.tools."
    bootstrap = f"--bootstrap-server {servers}"
    longs = "value.deserializer=org.apache.kafka.common.serialization.LongDeserializer"
    read = f"consumer.ConsoleConsumer {bootstrap} --topic {COUNTS} --from-beginning"
    form = f"--formatter-property print.key=true --formatter-property {longs}"
    lag = f"consumer.group.ConsumerGroupCommand {bootstrap} --describe --group {APPLICATION_ID}"
    return [
        (f"The topic {COUNTS!r}, as kafka-console-consumer shows it", f"{tool}{read} {form}"),
        ("The lag, as kafka-consumer-groups shows it", f"{tool}{lag}"),
        (
            f"More lines for the topic {LINES!r}, typed by you",
            f"{tool}ConsoleProducer {bootstrap} --topic {LINES}",
        ),
    ]


def _wait_for_user(console: Console, conductor: Conductor, received: list[int]) -> None:
    """Print the commands, and wait for Enter, a signal or the end of the conductor."""
    for what, command in commands(conductor.servers, find_java(), kafka_jars()):
        say(console, f"\n{what}:\n  {command}")
    say(console, "\nBroker and application keep running. Press Enter or Ctrl-C to stop them.")
    listening = sys.stdin is not None
    while conductor.is_alive() and not received:
        if not listening:
            conductor.join(_JOIN_S)
        elif select.select([sys.stdin], [], [], _JOIN_S)[0]:
            if sys.stdin.readline():
                break
            listening = False  # the standard input has ended; only signals remain
    say(console, "Stopping ...")
    conductor.release()


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect stop signals instead of being interrupted by them."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    with handling([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], note):
        yield received


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line unchanged: without markup, highlighting or line breaks inside a command."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def quiet(log: Path) -> Iterator[TextIO]:
    """Redirect the standard output and error of this process and its children to a file; yield the original output.

    Replacing ``sys.stderr`` is not enough: the JVM, its Python workers and librdkafka write to the inherited file descriptors 1 and 2.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    try:
        with os.fdopen(os.dup(kept[0]), "w", encoding=sys.stdout.encoding, errors="replace") as terminal:
            yield terminal
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
