"""Silence for the terminal: what this process and its children write goes to a file.

The JVM, its Python workers and librdkafka write to the file descriptors 1 and 2 that they inherit, so replacing
``sys.stderr`` would not reach them; the descriptors themselves are pointed at a file, and the terminal stays reachable
through a copy of the old descriptor 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def quiet(log: Path) -> Iterator[TextIO]:
    """Redirect the standard output and error of this process and its children to a file; yield the original output."""
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
