"""The command ``millstream``. This module must be importable without the extra ``cli``, because it explains how to install it."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from importlib import import_module

from millstream.edge.spark.required_packages import explained

_NEEDED = ("packaging", "rich", "typer")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """Run the command line; if packages are missing, or the output cannot be written, explain it in one line."""
    try:
        try:
            _run()
        except SystemExit:
            if sys.stdout is not None:  # None if it was closed before the start
                sys.stdout.flush()  # while an error can still be handled
            raise
    except OSError as error:
        # An error of writing to an open file does not name the file. The commands explain errors of their own files themselves.
        if error.filename is not None or error.errno not in (*_FULL, errno.EPIPE):
            raise
        if error.errno != errno.EPIPE and sys.stderr is not None:
            with suppress(OSError):
                sys.stderr.write(f"millstream: the output cannot be written: {error.strerror}\n")
        _discard_output()
        sys.exit(1)


def _discard_output() -> None:
    """Discard what a stream still has to write. Otherwise, Python would try it again when it exits, and show the error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run() -> None:
    try:
        for name in _NEEDED:
            import_module(name)
        from millstream.edge.cli.commands import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(
            f"The command millstream needs {', '.join(_NEEDED)}, which are not installed (no module {error.name!r}). "
            "Install them with:\n\n    pip install 'millstream[cli]'\n"
        )
        sys.exit(1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a terminal may not be able to show the text of a record
    try:
        app()
    except ModuleNotFoundError as error:
        explanation = explained(error, "this command")
        if explanation is error:
            raise
        sys.stderr.write(f"millstream: {explanation}\n")
        sys.exit(1)
