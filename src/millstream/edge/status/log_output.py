"""Output: what the program of an application shows in its terminal, unless it has configured logging.

Progress, warnings and errors go to the standard error. Everything else goes to a file beside the state: the output of Spark's JVM and
Python workers, the logs of Kafka's clients, and tracebacks. A program that has configured logging receives the same lines as records of
the loggers ``millstream.*``.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
import warnings
from functools import cache
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from millstream.core.model.errors import MillstreamError
from millstream.drivers.spark.logs import JsonLines, choose
from millstream.edge.checkpoint.disk_space import unwritable

Output = Literal["lines", "json", "quiet", "debug"]

PROGRESS: Final = "millstream.progress"
"""The logger for progress lines."""
CLIENTS: Final = "millstream.librdkafka"
"""The logger of Kafka's clients."""

_OWN: Final = "millstream"
_JVM: Final = "py4j"
_PANDAS: Final = "PySpark does not yet fully support pandas"  # tests cover the operators that are used here


def attach(output: Output, file: Path) -> Path | None:
    """Log to the terminal, unless the program has configured logging. The first application of a process determines the output.

    If its directory has been deleted since, such as that of a closed lab, the next application determines it.

    Args:
        file: File for everything that the terminal does not show; an older file is renamed to ``<file>.1``.

    Returns:
        File for Spark's output; None for the standard error.
    """
    own, terminal = logging.getLogger(_OWN), _attached()
    if terminal is not None and (terminal.file is None or terminal.file.parent.exists()):
        return terminal.file
    _detach()
    shown = None if output == "debug" else _rotate_log(file)
    if logging.getLogger().handlers or own.handlers:
        return shown
    choose(
        as_json=output == "json",
        least=logging.WARNING if output == "quiet" else logging.NOTSET,
        own=logging.INFO if output == "debug" else logging.WARNING,
    )
    terminal = Terminal(output, shown)
    own.addHandler(terminal)
    if own.level == logging.NOTSET:  # otherwise the program has set the level
        own.setLevel(logging.DEBUG)
    own.propagate = False
    if shown is not None:
        try:
            kept = _Kept(shown, encoding="utf-8", errors="replace")
        except OSError as error:
            raise unwritable(shown, error) from None
        kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        own.addHandler(kept)
        warnings.filterwarnings("ignore", _PANDAS, FutureWarning)
        logging.getLogger(_JVM).addHandler(kept)
        logging.getLogger(_JVM).propagate = False
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _uncaught
    return shown


class Terminal(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes progress, warnings and errors to the standard error."""

    def __init__(self, output: Output, file: Path | None) -> None:
        super().__init__(sys.stderr)
        self.file = file
        self._output = output
        self.setFormatter(JsonLines() if output == "json" else _Line())

    def filter(self, record: logging.LogRecord) -> bool:
        if self._output == "debug":
            return record.levelno >= logging.INFO
        if record.name == PROGRESS:
            return self._output != "quiet"
        return record.levelno >= logging.WARNING and record.name != CLIENTS


class _Kept(WatchedFileHandler):
    """Writes to a file. On a full disk, or in a deleted directory, it drops records, and shows no errors about them in the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # WatchedFileHandler opens the file again before it handles errors
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - overrides a method of logging
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.getMessage()}"


def _attached() -> Terminal | None:
    handlers = logging.getLogger(_OWN).handlers
    return next((handler for handler in handlers if isinstance(handler, Terminal)), None)


def _detach() -> None:
    for logger in map(logging.getLogger, (_OWN, _JVM)):
        for handler in [each for each in logger.handlers if isinstance(each, Terminal | _Kept)]:
            logger.removeHandler(handler)
            handler.close()


@cache
def _rotate_log(file: Path) -> Path:
    """Rename the file of an earlier process, and return the path."""
    if file.exists():
        file.replace(file.with_name(f"{file.name}.1"))
    return file


def report(error: MillstreamError) -> bool:
    """Show the error that ends the program as one message, and write its traceback to the file.

    Returns:
        False if the program has configured logging, or no application has started: nothing is shown.
    """
    terminal = _attached()
    if terminal is None:
        return False
    log, trace = logging.getLogger(_OWN), "".join(traceback.format_exception(error)).rstrip()
    facts = {"facts": {"error": type(error).__name__}}
    if terminal.file is None:
        log.error("%s", trace, extra=facts)
    else:
        log.debug("%s", trace)
        log.error("%s (details: %s)", error, terminal.file, extra=facts)
    return True


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not (isinstance(error, MillstreamError) and report(error)):
        sys.__excepthook__(kind, error, trace)
