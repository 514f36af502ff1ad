"""Logs of Spark's Python processes: the program's levels, and lines with time, level, logger and task.

Without this module, a worker would show only warnings, without time, level or name. The levels of the program's loggers are sent with
the code that workers run. Lines go to the standard error of the worker, which Spark forwards: under a local master to the file of the
application's log, otherwise to the log of the executor. A worker whose root logger has a handler remains unchanged.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import dataclass
from typing import Final

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s [pid %(process)d%(in_task)s]: %(message)s"
_OWN: Final = "millstream"
_OF_SPARK: Final = ("py4j", "pyspark")


class JsonLines(logging.Formatter):
    """One JSON object per line.

    Args:
        process: Whether lines contain the process, the task and the traceback of an error.
    """

    def __init__(self, *, process: bool = False) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            line |= {"process": record.process, **({"task": _NOW.task} if _NOW.task else {})}
            if record.exc_info:
                line["traceback"] = self.formatException(record.exc_info)
        return json.dumps({**line, **getattr(record, "facts", {})}, default=str)


@dataclass
class _Shown:
    """How this program shows its log. One object per process."""

    as_json: bool = False
    least: int = logging.NOTSET
    own: int | None = None


@dataclass
class _Now:
    """The current task of this process. One object per process."""

    task: str = ""
    applied: WorkerLogs | None = None
    handler: logging.Handler | None = None


_SHOWN: Final = _Shown()
_NOW: Final = _Now()


def choose(*, as_json: bool, least: int, own: int) -> None:
    """Set how workers log for a program that has not configured logging.

    Args:
        own: The level of Millstream's own loggers. In the program, they pass everything on and handlers filter.
    """
    _SHOWN.as_json, _SHOWN.least, _SHOWN.own = as_json, least, own


def running_task(task: str) -> None:
    """Add the running task to the following lines."""
    _NOW.task = task


@dataclass(frozen=True)
class WorkerLogs:
    """The logging configuration of a program. Picklable.

    Attributes:
        levels: The levels of the program's loggers, by name. The root logger has an empty name.
        pid: The process of the program, whose logging is not changed.
    """

    levels: tuple[tuple[str, int], ...]
    as_json: bool
    least: int
    pid: int

    @classmethod
    def of_this_process(cls) -> WorkerLogs:
        known = logging.getLogger().manager.loggerDict.items()
        set_here = [
            (name, logger.level)
            for name, logger in known
            if isinstance(logger, logging.Logger) and logger.level and not name.startswith(_OF_SPARK)
        ]
        levels = {"": logging.getLogger().level, **dict(sorted(set_here))}
        if _SHOWN.own is not None:
            levels[_OWN] = _SHOWN.own
        return cls(tuple(levels.items()), _SHOWN.as_json, _SHOWN.least, os.getpid())

    def apply(self) -> None:
        """Log in this process like the program, unless the process has a handler or is the program itself."""
        if self == _NOW.applied or os.getpid() == self.pid:
            return
        root = logging.getLogger()
        if _NOW.handler is None and root.handlers:
            return
        if _NOW.handler is None:
            _NOW.handler = _Handler(sys.stderr)
            root.addHandler(_NOW.handler)
        _NOW.handler.setLevel(self.least)
        _NOW.handler.setFormatter(JsonLines(process=True) if self.as_json else logging.Formatter(_TEXT))
        for name, level in self.levels:
            logging.getLogger(name).setLevel(level)
        _NOW.applied = self


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    def filter(self, record: logging.LogRecord) -> bool:
        record.in_task = f", task {_NOW.task}" if _NOW.task else ""
        return bool(super().filter(record))
